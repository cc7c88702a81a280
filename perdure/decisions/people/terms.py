"""People: the terms on which they approve a call, senders, and the work that runs pass on."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from perdure.contracts.people import Account, Sender, SentBy, Work
from perdure.contracts.policy import ApprovalTerms
from perdure.contracts.run.signals import AskedTerms, Decision, HumanInput, Question
from perdure.contracts.run.state import Call, RunState


def sent_by(body: Any, identity: str) -> SentBy:
    """Return the sender of a body from history, which may be any value."""
    if not isinstance(body, Mapping):
        return SentBy(identity=identity)
    by = body.get("by")
    try:
        sender = Sender.model_validate(body.get("sender"))
    except ValidationError:
        sender = None
    return SentBy(sender=sender, by=by if isinstance(by, str) else None, identity=identity)


def name_of(sender: Sender | None) -> str:
    """Return the name of the person who sent it: the gateway's token, or the person at a terminal; empty if unknown."""
    return (sender and (sender.token or sender.person)) or ""


def format_sent_by(sent: SentBy) -> str:
    """Format as "ann (gateway)", or "cli, as ann": what is known first, what is claimed after it."""
    door = sent.sender.door if sent.sender else "temporal"
    name = name_of(sent.sender) if door == "gateway" else ""  # a person at a terminal is a claim
    known = f"{name} ({door})" if name else door
    client = f", client {sent.identity}" if sent.identity and not name else ""
    claim = f", as {sent.by}" if sent.by and sent.by != name else ""
    return f"{known}{client}{claim}"


def ask_terms(
    terms: Sequence[ApprovalTerms], now: datetime, timeout: timedelta | None, before: Sequence[AskedTerms] = ()
) -> tuple[AskedTerms, ...]:
    """Return the terms as they are asked from now on, without approvals.

    Those without a time of their own have the tool's `timeout`. Those that were asked `before`, about the call as it
    was before a change, keep their time and group.
    """
    asked = {_fields(old): old for old in before}
    return tuple(
        asked[_fields(one)].evolve(approved_by=())
        if _fields(one) in asked
        else AskedTerms(**dict(_fields(one)), expires_at=now + time if (time := one.expires or timeout) else None)
        for one in terms
    )


def _fields(terms: ApprovalTerms) -> tuple[tuple[str, Any], ...]:
    return tuple((name, getattr(terms, name)) for name in ApprovalTerms.model_fields)


def person_of(answer: HumanInput) -> str:
    """Return the name of the person who answers, as far as the entry point knows it; else the name they give."""
    return name_of(answer.sender) or answer.by or ""


def is_met(terms: AskedTerms) -> bool:
    return len(terms.approved_by) >= terms.quorum


def unmet_terms(question: Question) -> tuple[AskedTerms, ...]:
    return tuple(terms for terms in question.terms if not is_met(terms))


def asked_groups(terms: AskedTerms) -> tuple[str, ...]:
    """Return the groups of people whose approval counts for these terms now. If empty, everyone's does."""
    return terms.approvers if terms.on_expiry == "deny" else terms.approvers[terms.group : terms.group + 1]


def count_approval(question: Question, answer: HumanInput, requesters: Sequence[str]) -> Question:
    """Count a person's approval for each of the terms that let this person approve.

    The run carries out a request of the `requesters`.
    """
    terms = tuple(
        one.evolve(approved_by=(*one.approved_by, person_of(answer)))
        if not is_met(one) and _refusal(question, one, answer, requesters) is None
        else one
        for one in question.terms
    )
    return _with_terms(question, terms)


def may_not_answer(question: Question, answer: HumanInput, requesters: Sequence[str]) -> str | None:
    """Return the reason why this person's answer counts for none of the terms, if so.

    An approval has to count for terms that are not met yet; each person who could approve may deny.
    """
    asked = unmet_terms(question) if answer.decision is Decision.approve else question.terms
    refusals = [_refusal(question, terms, answer, requesters) for terms in asked]
    return refusals[0] if refusals and all(refusals) else None


def _refusal(question: Question, terms: AskedTerms, answer: HumanInput, requesters: Sequence[str]) -> str | None:
    name, groups = person_of(answer), asked_groups(terms)
    if groups and not set(groups) & set(answer.sender.groups if answer.sender else ()):
        return f"question {question.id} is for {' or '.join(groups)}; {name or 'the sender'} is in none of these groups"
    if not name and (terms.quorum > 1 or terms.not_requester):
        return f"question {question.id} needs to know who answers: use a gateway token or --by"
    if terms.not_requester and name in requesters:
        return f"question {question.id} is for other people than {name}, who started this"
    if answer.decision is Decision.approve and name in terms.approved_by:
        return f"{name} has approved question {question.id} already; {terms.quorum} different people must"
    return None


def expire_question(question: Question, now: datetime) -> Question:
    """Return the question as it is now: its time may have passed, so that it has expired or is for the next group."""
    while question.answer is None and question.expires_at is not None and now >= question.expires_at:
        late = [one for one in unmet_terms(question) if one.expires_at == question.expires_at]
        if not late or not all(map(_has_next_group, late)):
            return question.evolve(answer=HumanInput())
        question = _with_terms(question, tuple(_ask_next(one) if one in late else one for one in question.terms))
    return question


def postpone_question(question: Question, now: datetime, timeout: timedelta | None) -> Question:
    """Return the question with its whole time again, if its time has passed. `timeout` is that of its tool."""
    if question.answer is not None or question.expires_at is None or now < question.expires_at:
        return question
    if not question.terms:
        return question.evolve(expires_at=now + (timeout or now - question.asked_at))
    late = [one for one in unmet_terms(question) if one.expires_at is not None and one.expires_at <= now]
    again = {id(one): now + (one.expires or timeout or now - question.asked_at) for one in late}
    terms = (one.evolve(expires_at=again[id(one)]) if id(one) in again else one for one in question.terms)
    return _with_terms(question, tuple(terms))


def _has_next_group(terms: AskedTerms) -> bool:
    return terms.on_expiry == "escalate" and terms.group + 1 < len(terms.approvers)


def _ask_next(terms: AskedTerms) -> AskedTerms:
    if terms.expires is None or terms.expires_at is None:
        raise AssertionError("terms without a time do not expire")
    return terms.evolve(group=terms.group + 1, expires_at=terms.expires_at + terms.expires)


def first_expiry(terms: Sequence[AskedTerms]) -> datetime | None:
    """Return the time at which the first of the terms that are not met expires, if one does."""
    return min((one.expires_at for one in terms if one.expires_at and not is_met(one)), default=None)


def time_to_decide(terms: Sequence[ApprovalTerms], timeout: timedelta | None) -> timedelta | None:
    """Return the time in which people must decide, of all groups that are asked one after the other."""
    times = [
        one.expires * (len(one.approvers) if one.on_expiry == "escalate" else 1) if one.expires else timeout
        for one in terms
    ]
    return min(filter(None, times), default=None) if times else timeout


def _with_terms(question: Question, terms: tuple[AskedTerms, ...]) -> Question:
    return question.evolve(terms=terms, expires_at=first_expiry(terms))


MAIL = "mail"  # the source of text that came from outside as a message
_MAIL_DOORS = ("mailbox", "follow-up", "webhook")  # their starts quote messages from outside


def root_of(state: RunState) -> str:
    """Return the id of the first run of the request that the run works for."""
    return (state.work and state.work.root) or state.key_id or state.run_id


def requesters_of(state: RunState) -> tuple[str, ...]:
    """Return the names of the people whose request the run carries out, as far as they are known."""
    others = state.work.requesters if state.work else ()
    return tuple(dict.fromkeys(name for name in (name_of(state.sender), *others) if name))


def sources_of_start(sender: Sender | None, work: Work | None = None) -> tuple[str, ...]:
    """Return the sources of the text that a run begins with."""
    mail = (MAIL,) if sender and sender.door.partition(":")[0] in _MAIL_DOORS else ()
    return tuple(dict.fromkeys((*(work.has_read if work else ()), *mail)))


def sources_of_call(call: Call) -> tuple[str, ...]:
    """Return what the run had read before a call that sets off other work, as its verdict recorded it."""
    return tuple(call.verdict.facts.get("has_read", ())) if call.verdict else ()


def pass_on(state: RunState, call: Call) -> Work | None:
    """Return the work of the runs that the call sets off."""
    is_governed = state.policy or state.work or call.verdict
    if not is_governed:
        return Work(account=state.account) if state.account else None
    return work_of(state).with_sources(sources_of_call(call))


def work_of(state: RunState) -> Work:
    """Return the work of a run that continues this one."""
    has_read = sources_of_start(state.sender, state.work)
    return Work(root=root_of(state), has_read=has_read, requesters=requesters_of(state), account=state.account)


def split_account(work: Work | None) -> tuple[Work | None, Account | None]:
    """Return the work as rules of a policy are about it, None if there is no such, and its account."""
    if work is None or work.account is None:
        return work, None
    rest = work.evolve(account=None)
    return None if rest == Work() else rest, work.account


def add_requester(state: RunState, sender: Sender | None) -> RunState:
    """Add the sender of a message to a run that a policy is about: it carries out that person's request, too."""
    if not state.policy or name_of(sender) in ("", *requesters_of(state)):
        return state
    work = state.work or Work()
    return state.evolve(work=work.evolve(requesters=(*work.requesters, name_of(sender))))
