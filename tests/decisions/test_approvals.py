"""People who approve a call: groups, a quorum, the requester, changed arguments, expiry and escalation."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contracts.people.policy import ApprovalTerms, PolicyVerdict, Verdict
from contracts.run.question import Question
from contracts.run.signals import Decision, HumanInput
from contracts.run.state import Call, RunState
from contracts.sender import Sender
from contracts.tool import Approval, Effect, ToolKind, ToolRoute
from decisions.people.approvals import expire_questions, judge_answer, open_turn_questions, record_answer
from decisions.text.formatting import waiting_for_people
from tests.decisions.runs import new_state

NOW, HOUR = datetime(2026, 2, 16, 12, tzinfo=UTC), timedelta(hours=1)
GROUPS = {"ann": ("finance",), "bob": ("finance", "leads"), "cleo": ("leads",), "dan": ()}
PEOPLE = st.sampled_from(sorted(GROUPS))


def asking(requester: str = "dan", **terms: Any) -> RunState:
    """Return a run that asks about two calls, in their order."""
    verdict = PolicyVerdict(verdict=Verdict.ask, policy="p", terms=ApprovalTerms(**terms))
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
    state = new_state(calls=calls, sender=Sender(door="gateway", token=requester)).model_copy(
        update={"tools": (route,)}
    )
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
    if hours == 1:
        assert waiting_for_people([first]) == "human: approve refund (leads)"
