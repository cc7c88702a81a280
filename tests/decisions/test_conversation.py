"""The lane's rules, without a server: order, one end each, bounds (B8)."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from perdure.contracts.bounds import LatestNotices
from perdure.contracts.conversation import (
    MAX_EXTRAS_NESTING,
    MAX_REQUEST_TEXT,
    LaneFault,
    LaneState,
    SteerRequest,
    SubmitRequest,
    TurnEnd,
)
from perdure.contracts.run.signals import HumanInput
from perdure.decisions import lane
from perdure.decisions.lane import AcceptedRequest, AnswerQuestion, CancelTurn, LaneRefusal, Steer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDLE = LaneState(conversation_id="c")


def request(request_id: str, **fields: Any) -> SubmitRequest:
    goal = {} if "messages" in fields else {"goal": f"do {request_id}"}
    return SubmitRequest.model_validate({"request_id": request_id, **goal, **fields})


def accept(state: LaneState, request_id: str, **fields: Any) -> AcceptedRequest:
    admission = lane.admit(state, request(request_id, **fields), NOW)
    assert isinstance(admission, AcceptedRequest), admission
    return admission


def busy_lane(*waiting: str) -> LaneState:
    state = accept(IDLE, "now").state
    state = lane.begin_next_turn(state)
    for request_id in waiting:
        state = accept(state, request_id).state
    return state


def queued(state: LaneState) -> list[str]:
    return [each.request.request_id for each in state.queue]


def test_requests_wait_in_the_order_in_which_they_came() -> None:
    state = busy_lane("a", "b", "c")
    assert queued(state) == ["a", "b", "c"]
    assert accept(state, "d").answer.position == 4
    assert accept(state, "b").answer.position == 2
    assert accept(state, "now").answer.position == 0


@pytest.mark.parametrize(
    ("fields", "delivery", "place"),
    [
        ({"when_busy": "queue"}, type(None), ["a", "x"]),
        ({"when_busy": "steer"}, Steer, ["a"]),
        ({"when_busy": "interrupt"}, CancelTurn, ["x", "a"]),
        ({"question_id": "q1"}, AnswerQuestion, ["a"]),
    ],
)
def test_a_sender_says_what_a_busy_lane_does_with_it(fields: dict[str, Any], delivery: type, place: list[str]) -> None:
    admission = accept(busy_lane("a"), "x", **fields)
    assert isinstance(admission.delivery, delivery)
    assert queued(admission.state) == place


@pytest.mark.parametrize("when_busy", ["queue", "reject", "steer", "interrupt"])
def test_an_idle_lane_takes_every_request_as_the_next_turn(when_busy: str) -> None:
    admission = accept(IDLE, "x", when_busy=when_busy)
    assert (queued(admission.state), admission.delivery, admission.answer.position) == (["x"], None, 0)


def test_bounds_count_bytes_too() -> None:
    state, number = busy_lane(), 0
    while isinstance(admission := lane.admit(state, request(f"r{number}", goal="x" * 150_000), NOW), AcceptedRequest):
        state, number = admission.state, number + 1
    assert isinstance(admission, LaneRefusal)
    assert admission.kind is LaneFault.lane_full
    assert number == 6
    assert len(state.model_dump_json()) < 1.5 * 1024 * 1024


def test_a_full_lane_takes_the_answer_that_its_turn_waits_for() -> None:
    state = busy_lane(*(f"r{number}" for number in range(lane.MAX_QUEUED)))
    refused = lane.admit(state, request("late"), NOW)
    assert isinstance(refused, LaneRefusal)
    taken = 0
    while isinstance(admission := lane.admit(state, request(f"a{taken}", question_id="q1"), NOW), AcceptedRequest):
        state, taken = admission.state, taken + 1
    assert taken == lane.ANSWERS
    assert admission.kind is LaneFault.lane_full


def test_the_fullest_lane_fits_into_what_continue_as_new_takes() -> None:
    """2 MiB is the most; a lane above it could never go on."""
    largest, wide = "漢" * 155_000, "é" * 190
    state = lane.begin_next_turn(accept(IDLE, "now", messages=split(largest)).state)
    for number in range(lane.MAX_SEEN_REQUESTS):
        state = lane.drop_request(accept(state, f"{number}").state, f"{number}", wide * 3, NOW) or state
    fields = {"question_id": "q1", "messages": split("é" * 60_000)}
    while isinstance(
        admission := lane.admit(state, request(f"{wide}{state.accepted}", **fields), NOW), AcceptedRequest
    ):
        state = admission.state
    while isinstance(admission := lane.admit(state, request(f"{wide}{state.accepted}"), NOW), AcceptedRequest):
        state = admission.state
    for _ in range(LatestNotices.most + 1):
        state = lane.record_lane_refusal(state, wide * 3)
    assert len(state.seen) == lane.MAX_SEEN_REQUESTS
    assert 1.6 * 1024 * 1024 < len(state.model_dump_json().encode()) < 1.9 * 1024 * 1024


def test_a_request_larger_than_a_run_takes_is_refused_at_once() -> None:
    refused = lane.admit(IDLE, request("x", goal="漢" * 190_000), NOW)
    assert isinstance(refused, LaneRefusal)
    assert refused.kind is LaneFault.invalid_input
    assert "put the rest into a file" in refused.reason


@pytest.mark.parametrize("count", [2, 100])
def test_every_request_that_is_taken_can_begin_steer_and_answer(count: int) -> None:
    """Messages are joined with blank lines, which count too."""
    each = "x" * ((MAX_REQUEST_TEXT + 2) // count - 2)
    fits = request("x", messages=[{"role": "user", "content": each}] * count)
    state = lane.begin_next_turn(accept(IDLE, "x", **fits.model_dump(include={"messages"})).state)
    assert state.active is not None
    assert lane.begin_event(state, state.active.queued).payload.goal == fits.text
    assert SteerRequest(request_id="x", text=fits.text).text == fits.text
    assert HumanInput(text=fits.text).text == fits.text
    with pytest.raises(ValueError, match="the messages together may have"):
        request("x", messages=[{"role": "user", "content": each + "xx"}] * count)


@pytest.mark.parametrize("name", ["context", "raw"])
def test_what_is_nested_too_deep_to_be_continued_is_refused(name: str) -> None:
    request("x", **{name: nest(MAX_EXTRAS_NESTING)})
    with pytest.raises(ValueError, match="64 levels deep"):
        request("x", **{name: nest(MAX_EXTRAS_NESTING + 1)})


def nest(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def test_an_answer_waits_with_the_turn_until_it_is_known_whether_it_was_taken() -> None:
    state = accept(busy_lane("a"), "x", question_id="q1").state
    message = state.steering[0]
    assert queued(lane.record_turn_answer(state, message, NOW, took=False)) == ["a", "x"]
    taken = lane.record_turn_answer(state, message, NOW, took=True)
    assert (queued(taken), taken.steering, taken.recent[-1].end) == (["a"], (), TurnEnd.answered)
    assert lane.record_turn_answer(taken, message, NOW, took=False) == taken


def split(text: str) -> list[dict[str, str]]:
    half = len(text) // 2
    return [{"role": "user", "content": text[:half]}, {"role": "user", "content": text[half:]}]


@pytest.mark.parametrize(
    ("known", "named", "speaks"),
    [(None, {}, "ops"), ("guide", {}, "guide"), ("guide", {"agent": "clerk"}, "clerk")],
)
def test_a_default_agent_takes_a_conversation_that_has_none(known: Any, named: dict[str, str], speaks: str) -> None:
    idle = LaneState(conversation_id="c", agent=known)
    state = lane.begin_next_turn(accept(idle, "r", default_agent="ops", **named).state)
    assert state.active is not None
    assert (state.agent, lane.begin_event(state, state.active.queued).payload.agent) == (speaks, speaks)


def test_what_a_turn_did_not_take_comes_next() -> None:
    state = accept(busy_lane("a"), "s", when_busy="steer").state
    state = accept(state, "t", when_busy="steer").state
    state = lane.record_steered(state, "s", NOW)
    state = lane.end_turn(state, TurnEnd.completed, "done", NOW)
    assert queued(state) == ["t", "a"]
    assert [(turn.request_id, turn.end) for turn in state.recent] == [("s", "steered"), ("now", "completed")]


def test_the_conversation_goes_on_from_the_latest_turn_that_left_something() -> None:
    state = busy_lane("a", "b")
    first = state.active.queued.run_id if state.active else ""
    state = lane.end_turn(state, TurnEnd.completed, "", NOW)
    assert state.after == (first,)
    state = lane.begin_next_turn(state)
    second = state.active.queued.run_id if state.active else ""
    state = lane.end_turn(state, TurnEnd.cancelled, "terminated", NOW)
    assert state.after == (second, first)


def test_after_a_turn_that_had_run_before_the_store_knows_which_was_the_latest() -> None:
    state = lane.end_turn(busy_lane("a"), TurnEnd.completed, "", NOW)
    state = lane.end_turn(lane.mark_repeat(lane.begin_next_turn(state)), TurnEnd.completed, "", NOW)
    assert state.after == ()


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_ids_of_any_kind_are_kept_apart(one: str, other: str) -> None:
    state = accept(IDLE, one).state
    assert accept(state, one).answer.duplicate
    if one != other:
        assert not accept(state, other).answer.duplicate


class LaneMachine(RuleBasedStateMachine):
    """Whatever is sent, and however turns end: each accepted request ends once, and queued ones run in order."""

    def __init__(self) -> None:
        super().__init__()
        self.state = IDLE
        self.accepted: list[str] = []
        self.order: list[str] = []  # of those that only queued
        self.begun: list[str] = []
        self.over: list[str] = []
        self.number = 0

    @rule(when_busy=st.sampled_from(["queue", "queue", "reject", "steer", "interrupt"]))
    def submit(self, when_busy: str) -> None:
        self.number += 1
        name = f"r{self.number}"
        admission = lane.admit(self.state, request(name, when_busy=when_busy), NOW)
        if isinstance(admission, LaneRefusal):
            assert when_busy == "reject"
            return
        self.accepted.append(name)
        if when_busy in ("queue", "reject"):
            self.order.append(name)
        self.state = admission.state

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.accepted))
        before = self.state
        for when_busy in ("queue", "reject", "steer", "interrupt"):
            admission = lane.admit(self.state, request(name, when_busy=when_busy), NOW)
            same = isinstance(admission, AcceptedRequest) and admission.answer.duplicate
            assert same or (isinstance(admission, LaneRefusal) and admission.kind is LaneFault.request_reused)
        assert self.state == before

    @precondition(lambda self: self.state.active is None and self.state.queue)
    @rule()
    def begin(self) -> None:
        self.state = lane.begin_next_turn(self.state)
        assert self.state.active is not None
        self.begun.append(self.state.active.queued.request.request_id)

    @precondition(lambda self: self.state.active is not None)
    @rule(end=st.sampled_from([TurnEnd.completed, TurnEnd.failed, TurnEnd.cancelled]))
    def end(self, end: TurnEnd) -> None:
        self.state = lane.end_turn(self.state, end, "", NOW)
        self._record_messages()

    @precondition(lambda self: self.state.steering)
    @rule()
    def take(self) -> None:
        self.state = lane.record_steered(self.state, self.state.steering[0].request.request_id, NOW)
        self._record_messages()

    @precondition(lambda self: self.state.steering)
    @rule(took=st.booleans())
    def answer(self, took: bool) -> None:
        message = self.state.steering[-1]
        self.state = lane.record_turn_answer(self.state, message, NOW, took=took)
        if took:
            self._record_messages()

    @precondition(lambda self: self.state.queue)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(queued(self.state)))
        dropped = lane.drop_request(self.state, name, "", NOW)
        assert dropped is not None
        self.state = dropped
        self._record_messages()

    def _record_messages(self) -> None:
        self.over.append(self.state.recent[-1].request_id)

    @invariant()
    def every_request_is_somewhere_once(self) -> None:
        active = [self.state.active.queued.request.request_id] if self.state.active else []
        steering = [each.request.request_id for each in self.state.steering]
        assert sorted([*self.over, *active, *queued(self.state), *steering]) == sorted(self.accepted)

    @invariant()
    def queued_requests_run_in_order(self) -> None:
        ran = [name for name in self.begun if name in self.order]
        assert ran == sorted(ran, key=self.order.index)

    @invariant()
    def nothing_runs_twice(self) -> None:
        assert len(set(self.begun)) == len(self.begun)


TestLane = LaneMachine.TestCase


def test_a_closing_lane_is_over_when_nothing_is_left_to_run() -> None:
    closing = IDLE.evolve(closes=True)
    assert lane.is_lane_over(closing)
    assert not lane.is_lane_over(IDLE)
    state = accept(closing, "r1").state
    assert not lane.is_lane_over(state)
    state = lane.begin_next_turn(state)
    assert not lane.is_lane_over(state)
    assert lane.is_lane_over(lane.end_turn(state, TurnEnd.completed, "", NOW))
