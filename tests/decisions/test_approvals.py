"""People who approve a call: groups, a quorum, the requester, changed arguments, expiry and escalation."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.people import Sender
from perdure.contracts.policy import ApprovalTerms, PolicyVerdict, Verdict
from perdure.contracts.run.events import PlanInForce
from perdure.contracts.run.signals import Decision, HumanInput, Question
from perdure.contracts.run.state import Call, RunState
from perdure.contracts.tool import Approval, Effect, ToolKind, ToolRoute
from perdure.decisions.ids import call_digest
from perdure.decisions.people.approvals import (
    expire_questions,
    judge_answer,
    open_turn_questions,
    postpone_questions,
    record_answer,
)
from perdure.decisions.people.terms import time_to_decide
from perdure.decisions.run import next_calls
from perdure.decisions.text.formatting import waiting_for_people
from tests.decisions.runs import new_state

NOW, HOUR = datetime(2026, 2, 16, 12, tzinfo=UTC), timedelta(hours=1)
GROUPS = {"ann": ("finance",), "bob": ("finance", "leads"), "cleo": ("leads",), "dan": ()}
PEOPLE = st.sampled_from(sorted(GROUPS))


def asking(requester: str = "dan", **terms: Any) -> RunState:
    """Return a run that asks about two calls, in their order."""
    return asking_all([ApprovalTerms(**terms)], requester)


def asking_all(terms: Sequence[ApprovalTerms], requester: str) -> RunState:
    verdict = PolicyVerdict(verdict=Verdict.ask, policy="p", terms=tuple(terms))
    calls = tuple(
        Call(
            tool_use_id=f"t{step}",
            tool="refund",
            kind=ToolKind.native,
            effect=Effect.once,
            step=step,
            arguments={"cents": step},
            verdict=verdict,
        )
        for step in (1, 2)
    )
    route = ToolRoute(name="refund", kind=ToolKind.native, effect=Effect.once, approval=Approval.always)
    state = new_state(calls=calls, sender=Sender(door="gateway", token=requester)).evolve(tools=(route,))
    return open_turn_questions(state, NOW)


def by(name: str, decision: Decision = Decision.approve, **fields: Any) -> HumanInput:
    sender = Sender(door="gateway", token=name, groups=GROUPS[name])
    return HumanInput(decision=decision, sender=sender, **{"question_id": "q1", **fields})


def answer(state: RunState, given_answer: HumanInput, now: datetime = NOW) -> RunState | str:
    question = judge_answer(state, given_answer, now)
    return question if isinstance(question, str) else record_answer(state, question, given_answer, now)


def is_approved(state: RunState) -> bool:
    first = next(question for question in state.asked if question.id == "q1")
    return first.answer is not None and first.answer.decision is Decision.approve


@given(st.lists(PEOPLE, max_size=8), st.integers(1, 3), st.booleans(), PEOPLE)
def test_a_quorum_is_different_people_of_the_group_and_never_the_requester(
    names: list[str], quorum: int, not_requester: bool, requester: str
) -> None:
    state = asking(requester, approvers=("finance", "leads"), quorum=quorum, not_requester=not_requester)
    for name in names:
        after = answer(state, by(name))
        state = state if isinstance(after, str) else after
    able = {name for name in names if GROUPS[name] and not (not_requester and name == requester)}
    assert is_approved(state) == (len(able) >= quorum)
    assert state.asked[1].answer is None  # the other call has no approval by this


@given(st.lists(st.tuples(PEOPLE, st.sampled_from([None, 7, 8])), max_size=8))
def test_a_change_lapses_the_approvals_of_what_was_shown_before(votes: list[tuple[str, int | None]]) -> None:
    state = asking(approvers=("finance", "leads"), quorum=2)
    approvers: set[str] = set()
    for name, cents in votes:
        shown = state.asked[0].call
        after = answer(state, by(name, call=shown, arguments=None if cents is None else {"cents": cents}))
        if isinstance(after, str):
            continue
        changed = after.calls[0].arguments != state.calls[0].arguments
        assert (after.asked[0].call != shown) == changed
        approvers = {name} if changed else approvers | {name}
        if changed:
            assert isinstance(answer(after, by("ann", call=shown)), str)  # an approval of what is not asked any more
        state = after
    assert is_approved(state) == (len(approvers) >= 2)


def _terms(draw: st.DrawFn) -> ApprovalTerms:
    approvers = draw(st.lists(st.sampled_from(["finance", "leads"]), max_size=2, unique=True))
    expires = draw(st.sampled_from([None, HOUR, 2 * HOUR]))
    escalates = expires is not None and len(approvers) > 1 and draw(st.booleans())
    return ApprovalTerms(
        approvers=tuple(approvers),
        quorum=draw(st.integers(1, 2)),
        not_requester=draw(st.booleans()),
        expires=expires,
        on_expiry="escalate" if escalates else "deny",
    )


TERMS = st.composite(_terms)()


@given(TERMS, TERMS, st.lists(st.tuples(st.integers(0, 5), PEOPLE), max_size=6), PEOPLE)
def test_what_two_rules_ask_is_approved_if_and_only_if_each_of_them_alone_would_be(
    one: ApprovalTerms, two: ApprovalTerms, votes: list[tuple[int, str]], requester: str
) -> None:
    both, *alone = (asking_all(terms, requester) for terms in ((one, two), (one,), (two,)))
    for half_hours, name in sorted(votes):
        now = NOW + half_hours * HOUR / 2
        after = answer(both, by(name), now)
        singly = [answer(state, by(name), now) for state in alone]
        assert isinstance(after, RunState) <= any(isinstance(state, RunState) for state in singly)
        both = both if isinstance(after, str) else after
        alone = [old if isinstance(new, str) else new for old, new in zip(alone, singly, strict=True)]
    assert is_approved(both) == all(map(is_approved, alone))


def test_each_rule_has_its_own_people_and_denies_by_any_of_them() -> None:
    terms = [ApprovalTerms(approvers=("finance",), quorum=2), ApprovalTerms(approvers=("leads",), expires=HOUR)]
    state = asking_all(terms, "dan")
    assert waiting_for_people([state.asked[0]]) == "human: approve refund (finance and leads)"
    assert "is in none" in str(answer(state, by("dan")))
    one = answer(state, by("bob"))  # is in both groups
    assert isinstance(one, RunState)
    assert not is_approved(one)
    assert waiting_for_people([one.asked[0]]) == "human: approve refund (finance)"
    assert one.asked[0].expires_at is None  # only the terms that are met had a time
    assert "is for finance" in str(answer(one, by("cleo")))
    assert "bob has approved question q1 already; 2 different people must" in str(answer(one, by("bob")))
    two = answer(one, by("ann"))
    assert isinstance(two, RunState)
    assert is_approved(two)
    denied = answer(one, by("cleo", Decision.deny))
    assert isinstance(denied, RunState)
    assert denied.asked[0].answer is not None
    assert expire_questions(state, NOW + HOUR).asked[0].answer == HumanInput()


def test_the_arguments_as_they_are_count_as_an_approval_and_lapse_nothing() -> None:
    state = asking(approvers=("finance",), quorum=2)
    one = answer(state, by("ann"))
    assert isinstance(one, RunState)
    assert isinstance(answer(one, by("ann", arguments={"cents": 1})), str)
    two = answer(one, by("bob", arguments={"cents": 1}))
    assert isinstance(two, RunState)
    assert is_approved(two)


def test_a_call_by_whose_arguments_a_later_one_was_judged_is_not_changed() -> None:
    state = asking(approvers=("finance",))
    first, second = state.calls
    verdict = PolicyVerdict(verdict=Verdict.ask, policy="p", facts={"history": {"calls": 1, "digest": "d"}})
    state = state.evolve(calls=(first, second.evolve(verdict=verdict)))
    change = by("ann", arguments={"cents": 9})
    assert "step 2 of the same reply was judged by the call as it is" in str(answer(state, change))
    assert isinstance(answer(state, by("ann", arguments={"cents": 1})), RunState)
    denied = answer(state, by("ann", Decision.deny, question_id="q2"))
    assert isinstance(denied, RunState)
    assert isinstance(answer(denied, change), RunState)


def test_who_has_approved_a_call_may_still_change_it() -> None:
    state = answer(asking(approvers=("finance",), quorum=2), by("ann"))
    assert isinstance(state, RunState)
    changed = answer(state, by("ann", arguments={"cents": 9}))
    assert isinstance(changed, RunState)
    assert [terms.approved_by for terms in changed.asked[0].terms] == [("ann",)]


def test_an_answer_without_a_group_or_for_the_whole_run_is_not_taken() -> None:
    state = asking(approvers=("finance",))
    assert answer(state, by("dan")) == "question q1 is for finance; dan is in none of these groups"
    assert "is in none" in str(answer(state, HumanInput(question_id="q1", decision=Decision.approve, by="ann")))
    assert "about this call alone" in str(answer(state, by("ann", Decision.approve_tool)))
    assert "approve_tool" not in state.asked[0].options


@given(st.integers(0, 5))
def test_an_expired_question_goes_to_the_next_group_and_then_is_denied(hours: int) -> None:
    state = asking(approvers=("finance", "leads"), expires=HOUR, on_expiry="escalate")
    now = NOW + hours * HOUR
    taken = {name: not isinstance(answer(state, by(name), now), str) for name in ("ann", "cleo")}
    assert taken == {"ann": hours < 1, "cleo": 1 <= hours < 2}
    first: Question = expire_questions(state, now).asked[0]
    assert (first.answer == HumanInput()) == (hours >= 2)
    assert time_to_decide(state.calls[0].verdict.terms if state.calls[0].verdict else (), None) == 2 * HOUR
    if hours == 1:
        assert waiting_for_people([first]) == "human: approve refund (leads)"


def test_the_table_of_the_documentation_is_the_one_that_decides() -> None:
    rows = [
        f"| `{rule.__name__}` | {(rule.__doc__ or '').removesuffix('.')} | {'yes' if needed else 'no'} |"
        for rule, needed in next_calls.APPROVALS
    ]
    page = (Path(next_calls.__file__).parents[3] / "docs" / "approvals.md").read_text(encoding="utf-8")
    assert "\n".join(rows) in page


@given(st.lists(st.booleans(), min_size=7, max_size=7))
def test_an_approval_is_needed_as_the_rules_say_together(facts: list[bool]) -> None:
    """In other words: a rule of the policy that asks is stricter than any approval of the tool, and loosens no plan."""
    approved, asks, loosens, of_tool, planned, changes, declared = facts
    verdict = PolicyVerdict(verdict=Verdict.ask if asks else Verdict.allow, policy="p", loosens=loosens and not asks)
    effect = Effect.once if changes else Effect.read
    call = Call(
        tool_use_id="t1", tool="pay", kind=ToolKind.native, effect=effect, step=1, arguments={}, verdict=verdict
    )
    call = call.evolve(approval=call_digest("pay", {})) if approved else call
    approval = Approval.always if declared else Approval.never
    route = ToolRoute(name="pay", kind=ToolKind.native, effect=effect, approval=approval)
    state = new_state(calls=(call,)).evolve(tools=(route,), approved_tools=("pay",) if of_tool else ())
    state = state.evolve(planned=PlanInForce(run_id="dry")) if planned else state
    unplanned = planned and changes
    by_declaration = (unplanned or declared) and not of_tool and not (verdict.loosens and not unplanned)
    assert next_calls.needs_approval(state, call) is (not approved and (asks or by_declaration))


@given(st.integers(0, 50))
def test_a_postponed_question_has_its_whole_time_again_with_the_same_people(hours: int) -> None:
    state, now = asking(approvers=("finance", "leads"), expires=HOUR, on_expiry="escalate"), NOW + hours * HOUR
    later: Question = postpone_questions(state, now).asked[0]
    assert (later.answer, later.group) == (None, 0)
    assert later.expires_at == (NOW + HOUR if hours < 1 else now + HOUR)
    assert not isinstance(answer(postpone_questions(state, now), by("ann"), now), str)
