"""What a lane does next: an example of each rule, and a lane that is played by them whatever comes, in any order."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from perdure.contracts.conversation import LaneState, SubmitRequest, TurnEnd
from perdure.contracts.run.signals import HumanInput
from perdure.decisions import lane
from perdure.decisions.errors import IllegalMoveError
from perdure.decisions.lane import (
    LANE_RULES,
    AwaitEvent,
    BeginTurn,
    DeliverToTurn,
    DropAll,
    EndExecution,
    LaneFacts,
    LaneMove,
    RecordTurn,
    StopTurn,
    delivery_waits,
    lane_is_done,
    lane_moves,
    next_lane_move,
    nothing_is_due,
    queue_is_to_drop,
    request_waits,
    turn_is_over,
    turn_is_to_stop,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDLE = LaneState(conversation_id="c")


def admit(state: LaneState, request_id: str, **fields: Any) -> lane.AcceptedRequest:
    request = SubmitRequest.model_validate({"request_id": request_id, "goal": f"do {request_id}", **fields})
    admission = lane.admit(state, request, NOW)
    assert isinstance(admission, lane.AcceptedRequest), admission
    return admission


DELIVERY = lane.PassOn(HumanInput(text="blue"))
QUEUED = admit(IDLE, "next").state
BUSY = admit(lane.begin_next_turn(admit(IDLE, "now").state), "next").state


@pytest.mark.parametrize(
    ("holds", "state", "facts"),
    [
        (
            delivery_waits,
            BUSY,
            LaneFacts(delivery=DELIVERY, turn_is_over=True, cancelled="enough"),
        ),
        (turn_is_over, BUSY, LaneFacts(turn_is_over=True, cancelled="enough", history_is_long=True)),
        (turn_is_to_stop, BUSY, LaneFacts(cancelled="enough", history_is_long=True)),
        (queue_is_to_drop, QUEUED, LaneFacts(cancelled="enough", history_is_long=True)),
        (lane_is_done, IDLE, LaneFacts(cancelled="enough", history_is_long=True)),
        (request_waits, QUEUED, LaneFacts(history_is_long=True)),
        (lane_moves, QUEUED, LaneFacts(leaves_build=True)),
        (lane_moves, IDLE, LaneFacts(leaves_build=True)),
        (nothing_is_due, BUSY, LaneFacts(leaves_build=True)),  # it would have to poll for the end of its turn
        (queue_is_to_drop, QUEUED, LaneFacts(leaves_build=True, cancelled="enough")),
        (lane_is_done, IDLE, LaneFacts(leaves_build=True, cancelled="enough")),
        (lane_is_done, BUSY, LaneFacts(history_is_long=True)),
        (lane_is_done, IDLE.evolve(closes=True), LaneFacts()),
        (request_waits, QUEUED, LaneFacts()),
        (nothing_is_due, IDLE, LaneFacts()),
        (nothing_is_due, BUSY, LaneFacts()),
        (nothing_is_due, BUSY, LaneFacts(cancelled="enough", turn_is_stopping=True, history_is_long=True)),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_of_the_rules_that_hold_the_first_one_says_what_is_done(holds: Any, state: LaneState, facts: LaneFacts) -> None:
    assert next(each for each in LANE_RULES if each(state, facts)) is holds
    assert next_lane_move(state, facts) == holds(state, facts)


@pytest.mark.parametrize("state", [BUSY, IDLE])
def test_a_turn_that_is_begun_beside_another_or_out_of_nothing_is_an_illegal_move(state: LaneState) -> None:
    with pytest.raises(IllegalMoveError, match="cannot begin a turn"):
        lane.begin_next_turn(state)


def test_a_turn_that_ends_where_none_runs_is_an_illegal_move() -> None:
    with pytest.raises(IllegalMoveError, match="cannot end a turn"):
        lane.end_turn(IDLE, TurnEnd.completed, "", NOW)


class LaneMachine(RuleBasedStateMachine):
    """Played as the workflow does: a move at a time, while requests, answers, ends of turns and a cancel come."""

    def __init__(self) -> None:
        super().__init__()
        self.state = IDLE
        self.deliveries: list[lane.TurnDelivery] = []
        self.turn_is_over = self.turn_is_stopping = self.has_left = False
        self.history_is_long = self.leaves_build = False
        self.cancelled: str | None = None
        self.number = 0
        self.queued: list[str] = []  # requests that only queued, in their order
        self.begun: list[str] = []

    @property
    def move(self) -> LaneMove:
        delivery = self.deliveries[0] if self.deliveries else None
        ends = (self.turn_is_over, self.turn_is_stopping, self.cancelled, self.history_is_long, self.leaves_build)
        return next_lane_move(self.state, LaneFacts(delivery, *ends))

    @precondition(lambda self: self.cancelled is None)
    @rule(
        when_busy=st.sampled_from(["queue", "queue", "steer", "interrupt"]),
        answers=st.sampled_from([None, None, "q1"]),
    )
    def submit(self, when_busy: str, answers: str | None) -> None:
        self.number += 1
        name = f"r{self.number}"
        admission = admit(self.state, name, when_busy=when_busy, question_id=answers)
        self.state = admission.state
        if admission.delivery is not None:
            self.deliveries.append(admission.delivery)
        elif when_busy == "queue" and answers is None:
            self.queued.append(name)

    @precondition(lambda self: self.state.active is not None)
    @rule()
    def end_turn(self) -> None:
        self.turn_is_over = True

    @rule()
    def lengthen(self) -> None:
        self.history_is_long = True

    @rule()
    def deploy(self) -> None:
        self.leaves_build = True

    @rule(sure=st.sampled_from([False, False, False, True]))
    def cancel(self, sure: bool) -> None:
        self.cancelled = self.cancelled or ("enough" if sure else None)

    @precondition(lambda self: not self.has_left)
    @rule(took=st.booleans())
    def make(self, took: bool) -> None:
        match self.move:
            case DeliverToTurn(delivery):
                self.bring(delivery, took)
            case RecordTurn():
                self.state, self.turn_is_over = lane.end_turn(self.state, TurnEnd.completed, "", NOW), False
            case StopTurn(delivery):
                assert self.state.active is not None
                assert delivery.run_id == self.state.active.queued.run_id
                self.turn_is_stopping = True
            case DropAll(reason):
                self.state = lane.drop_all_requests(self.state, reason, NOW)
            case BeginTurn(message):
                self.state = lane.begin_next_turn(self.state)  # raises where a turn runs
                assert self.state.active is not None
                assert self.state.active.queued == message
                self.begun.append(message.request.request_id)
            case EndExecution():
                self.leave()
            case AwaitEvent():
                self.must_have_nothing_to_do()

    def bring(self, delivery: lane.TurnDelivery, took: bool) -> None:
        assert self.deliveries.pop(0) == delivery
        if isinstance(delivery, lane.AnswerQuestion):
            self.state = lane.record_turn_answer(self.state, delivery.message, NOW, took=took)
        elif isinstance(delivery, lane.Steer) and took:
            self.state = lane.record_steered(self.state, delivery.message.request.request_id, NOW)

    def leave(self) -> None:
        assert not self.deliveries
        if self.cancelled is None:
            self.history_is_long = self.leaves_build = False  # it goes on in another execution
        else:
            assert (self.state.active, self.state.queue, self.state.steering) == (None, (), ())
            self.has_left = True

    def must_have_nothing_to_do(self) -> None:
        assert not any((self.deliveries, self.turn_is_over))
        if self.cancelled is not None:
            assert self.turn_is_stopping
        assert self.state.active is not None or not self.state.queue

    @invariant()
    def queued_requests_run_in_order(self) -> None:
        ran = [name for name in self.begun if name in self.queued]
        assert ran == sorted(ran, key=self.queued.index)

    @invariant()
    def nothing_runs_twice(self) -> None:
        assert len(set(self.begun)) == len(self.begun)

    def teardown(self) -> None:
        """With turns that end, it comes to rest: everything has run, or was dropped."""
        for _ in range(10 * self.number + 20):
            if self.has_left or (isinstance(self.move, AwaitEvent) and self.state.active is None):
                break
            if isinstance(self.move, AwaitEvent):
                self.end_turn()
            self.make(took=True)
        assert (self.state.active, self.state.queue, self.state.steering) == (None, (), ())
        assert self.has_left == (self.cancelled is not None)


TestLane = LaneMachine.TestCase
TestLane.settings = settings(max_examples=150, stateful_step_count=40)
