"""A lane: which requests it accepts, and in which order they become turns (B8).

One turn at a time, first come, first served. Every accepted request ends once: as a turn, as part of one, or dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pydantic_core import to_json

from perdure.contracts.conversation import (
    MAX_REQUEST_TEXT,
    Active,
    Headers,
    LaneFault,
    LaneState,
    LaneView,
    Queued,
    RecentTurns,
    SubmitRequest,
    Submitted,
    Turn,
    TurnEnd,
    WaitingView,
    WhenBusy,
)
from perdure.contracts.people import Sender
from perdure.contracts.run.events import BeginEvent, StartPayload
from perdure.contracts.run.signals import HumanInput
from perdure.decisions.errors import IllegalMoveError
from perdure.decisions.ids import digest, turn_run_id
from perdure.decisions.run.transcript import PAGE_BYTES
from perdure.decisions.text.formatting import escape_markdown, truncate

MAX_QUEUED = 2000
MAX_QUEUED_BYTES = 1024 * 1024  # of all waiting requests: continue-as-new carries them, and takes at most 2 MiB
ANSWERS, ANSWER_BYTES = 10, 64 * 1024  # extra room for answers: the turn that a full lane waits for may ask a question
MAX_REQUEST_BYTES = PAGE_BYTES  # bytes of one request, which is carried with them while it runs; a run takes no more
REQUEST_OVERHEAD = 160  # bytes that a lane adds to a request
MAX_SEEN_REQUESTS = 5000  # request ids that are recognized; an older one finds its run, which has ended
NO_TURN = (TurnEnd.steered, TurnEnd.answered, TurnEnd.dropped)  # requests that joined another turn, or none
MAX_AFTER = 5  # turns that the next one continues
TURN_EXCERPT = 400  # characters of a request or an outcome
RETRY_AFTER = 5.0  # seconds; about the time of a short turn


@dataclass(frozen=True)
class LaneRefusal:
    kind: LaneFault
    reason: str


@dataclass(frozen=True)
class Steer:
    """Hand the message to the running turn."""

    message: Queued


@dataclass(frozen=True)
class AnswerQuestion:
    """Give the message to the running turn, as the answer to its question."""

    message: Queued


@dataclass(frozen=True)
class CancelTurn:
    run_id: str
    reason: str
    sender: Sender | None = None


@dataclass(frozen=True)
class PassOn:
    """Hand a person's answer to the lane on to the running turn, whatever its question."""

    answer: HumanInput


TurnDelivery = Steer | AnswerQuestion | CancelTurn | PassOn


@dataclass(frozen=True)
class AcceptedRequest:
    """The result of an accepted request: the new state, the reply, and what to deliver to the running turn at once."""

    state: LaneState
    answer: Submitted
    delivery: TurnDelivery | None = None


def admit(state: LaneState, request: SubmitRequest, now: datetime) -> AcceptedRequest | LaneRefusal:
    """Accept or refuse a request: a repeat first, then size, room and a busy lane; then place it."""
    run_id = turn_run_id(state.conversation_id, request.request_id)
    key = digest(request.request_id.encode(errors="surrogatepass"), 8)
    # The same request may arrive through another door.
    body = digest(to_json(request.evolve(sender=None, signature=None)), 8)
    if (known := state.seen.get(key)) is not None:
        if known != body:
            used = f"request id {truncate(request.request_id, 80)!r} was used with another body"
            return LaneRefusal(LaneFault.request_reused, f"{used}: that was {known}, this is {body}; take another id")
        return AcceptedRequest(state, Submitted(run_id=run_id, position=queue_position(state, run_id), duplicate=True))
    message = Queued(request=request, run_id=run_id, size=len(to_json(request)) + REQUEST_OVERHEAD, at=now)
    if refusal := _find_refusal(state, message):
        return refusal
    seen = dict([*state.seen.items(), (key, body)][-MAX_SEEN_REQUESTS:])
    return _place_message(state.evolve(seen=seen, accepted=state.accepted + 1), message)


def _find_refusal(state: LaneState, message: Queued) -> LaneRefusal | None:
    if message.size > MAX_REQUEST_BYTES:
        size = f"the request has {message.size:,} bytes; the limit is {MAX_REQUEST_BYTES:,}"
        return LaneRefusal(LaneFault.invalid_input, f"{size}: put the rest into a file that a tool can read")
    waits = message.request.question_id is None or state.active is None
    limit = MAX_QUEUED if waits else MAX_QUEUED + ANSWERS
    max_bytes = MAX_QUEUED_BYTES if waits else MAX_QUEUED_BYTES + ANSWER_BYTES
    waiting = (*state.queue, *state.steering)
    used = sum(waiter.size for waiter in waiting)
    if len(waiting) >= limit or used + message.size > max_bytes:
        full = f"{len(waiting):,} requests of {used:,} bytes wait; the limits are {limit:,} and {max_bytes:,}"
        return LaneRefusal(LaneFault.lane_full, f"the lane is full: {full}; try again in {RETRY_AFTER:g} s")
    if message.request.when_busy is WhenBusy.reject and waits and (state.active or state.queue):
        return LaneRefusal(LaneFault.lane_busy, f"the lane is busy; try again in {RETRY_AFTER:g} s, or let it queue")
    return None


def _place_message(state: LaneState, message: Queued) -> AcceptedRequest:
    active, request = state.active, message.request
    answers = request.question_id is not None
    if active and (answers or request.when_busy is WhenBusy.steer):
        state = state.evolve(steering=(*state.steering, message))
        joined = Submitted(run_id=active.queued.run_id, position=0, duplicate=False)
        return AcceptedRequest(state, joined, AnswerQuestion(message) if answers else Steer(message))
    delivery = None
    if active and request.when_busy is WhenBusy.interrupt:
        state = state.evolve(queue=(message, *state.queue))
        reason = f"interrupted by request {truncate(request.request_id, 80)}"
        delivery = CancelTurn(active.queued.run_id, reason, request.sender)
    else:
        state = enqueue_request(state, message)
    position = queue_position(state, message.run_id)
    return AcceptedRequest(state, Submitted(run_id=message.run_id, position=position, duplicate=False), delivery)


def queue_position(state: LaneState, run_id: str) -> int:
    """Return how many requests come before this one; 0 also if it runs or has run."""
    at = next((i for i, queued in enumerate(state.queue) if queued.run_id == run_id), None)
    return 0 if at is None else at + (state.active is not None)


def is_next(state: LaneState, run_id: str) -> bool:
    """Return whether this request's turn is about to begin: it waits, and nothing runs or waits before it."""
    return state.active is None and bool(state.queue) and state.queue[0].run_id == run_id


def drop_reason(state: LaneState, run_id: str) -> str | None:
    turn = next((turn for turn in reversed(state.recent) if turn.run_id == run_id), None)
    return f"it was dropped: {turn.said}" if turn is not None and turn.end is TurnEnd.dropped else None


def enqueue_request(state: LaneState, message: Queued) -> LaneState:
    return state.evolve(queue=(*state.queue, message))


def adopt_open_turn(state: LaneState, turn: Queued) -> LaneState:
    """Adopt a turn that still runs after an earlier lane of the conversation was terminated."""
    return state.evolve(active=Active(queued=turn), agent=turn.request.agent)


def begin_next_turn(state: LaneState) -> LaneState:
    """Begin the turn of the first request in the queue. Its agent, if it names one, becomes the lane's.

    Raises IllegalMoveError if a turn runs already, or nothing waits.
    """
    if state.active is not None:
        raise IllegalMoveError("begin a turn", f"run {state.active.queued.run_id} is one")
    if not state.queue:
        raise IllegalMoveError("begin a turn", "nothing waits")
    first, *rest = state.queue
    agent = first.request.agent or state.agent or first.request.default_agent
    active = Active(queued=first, forget=state.forget)
    return state.evolve(active=active, queue=tuple(rest), agent=agent)


def mark_repeat(state: LaneState) -> LaneState:
    """Record that the turn's run was started before, for a request that the lane has forgotten."""
    active = state.active and state.active.evolve(is_repeat=True)
    return state.evolve(active=active)


def steering_text(request: SubmitRequest) -> str:
    """Return the text for a turn at work. It has its brief already, so all of it joins the conversation."""
    return "\n\n".join(text for text in (request.brief, request.text) if text)[:MAX_REQUEST_TEXT]


def answer_in_request(request: SubmitRequest) -> HumanInput:
    """Convert the request to the answer to the question that it names."""
    return HumanInput(
        question_id=request.question_id,
        text=request.text,
        attachments=request.attachments,
        sender=request.sender,
        signature=request.signature,
    )


def begin_event(state: LaneState, message: Queued) -> BeginEvent:
    """Return the input of the turn's run."""
    request, origin = message.request, message.request.origin or Headers()
    payload = StartPayload(
        goal=request.text,
        context=request.context,
        agent=state.agent,
        conversation_id=state.conversation_id,
        attachments=request.attachments,
        quiet=request.quiet,
    )
    headers = Headers(
        request_id=request.request_id,
        session_id=state.conversation_id,
        request_client=request.request_client or origin.request_client,
        user_id=origin.user_id,
    )
    return BeginEvent(
        type="agentic.begin",
        payload=payload,
        headers=headers,
        brief=request.brief,
        is_turn=True,
        after=state.after,
        forget=state.forget,
        raw=request.raw,
        choices=request.choices,
        share=request.share,
        work=request.work,
        sender=request.sender,
    )


def end_turn(state: LaneState, end: TurnEnd, text: str, now: datetime) -> LaneState:
    """End the turn. Messages that were to steer it, and that it did not take, come next in the queue.

    After a repeated turn, only the conversation's store knows which turn was the latest. Raises IllegalMoveError if
    no turn runs.
    """
    if state.active is None:
        raise IllegalMoveError("end a turn", "none runs")
    done = state.active.queued
    after = () if state.active.is_repeat else (done.run_id, *state.after)[:MAX_AFTER]
    # A turn that was cut off may not have joined the conversation, so the next one applies its omissions.
    left_out = () if end in (TurnEnd.cancelled, TurnEnd.timed_out) else state.active.forget
    return _record_end(
        state.evolve(
            active=None,
            after=after,
            queue=(*state.steering, *state.queue),
            steering=(),
            forget=tuple(run_id for run_id in state.forget if run_id not in left_out),
        ),
        done,
        end,
        text,
        now,
    )


def forget_ended_turn(state: LaneState, run_id: str | None) -> tuple[LaneState, Turn] | None:
    """Leave an ended turn out of the conversation from the next turn on: the latest, or the one named.

    Return None if there is no such turn among the latest.
    """
    turns = [turn for turn in state.recent if turn.end not in NO_TURN and not turn.forgotten]
    turn = next((turn for turn in reversed(turns) if run_id in (None, turn.run_id)), None)
    if turn is None:
        return None
    forgotten = turn.evolve(forgotten=True)
    recent = RecentTurns(forgotten if other is turn else other for other in state.recent)
    return state.evolve(recent=recent, forget=(*state.forget, turn.run_id)), forgotten


def record_steered(state: LaneState, request_id: str, now: datetime) -> LaneState:
    taken = next((message for message in state.steering if message.request.request_id == request_id), None)
    return _end_steering(state, taken, TurnEnd.steered, now) if taken else state


def record_turn_answer(state: LaneState, message: Queued, now: datetime, *, took: bool) -> LaneState:
    """Record whether the running turn took the message as its answer. If not, the message waits in the queue."""
    if took:
        return _end_steering(state, message, TurnEnd.answered, now)
    return enqueue_request(_remove_steering(state, message), message) if message in state.steering else state


def defer_turn_answer(state: LaneState, message: Queued, now: datetime) -> LaneState:
    """Keep the answer for when the running turn continues: for now it does not reply."""
    return _end_steering(state, message, TurnEnd.answered, now, ", when it goes on")


def _remove_steering(state: LaneState, message: Queued) -> LaneState:
    others = tuple(other for other in state.steering if other.run_id != message.run_id)
    return state.evolve(steering=others)


def _end_steering(state: LaneState, message: Queued, end: TurnEnd, now: datetime, when: str = "") -> LaneState:
    """Record that the message, if it still waits for the running turn, has joined it."""
    if message not in state.steering:
        return state
    joined = f"run {state.active.queued.run_id}" if state.active else ""
    return _record_end(_remove_steering(state, message), message, end, joined + when, now)


def drop_request(state: LaneState, request_id: str, by: str, now: datetime) -> LaneState | None:
    message = next((message for message in state.queue if message.request.request_id == request_id), None)
    if message is None:
        return None
    others = tuple(other for other in state.queue if other is not message)
    return _record_end(state.evolve(queue=others), message, TurnEnd.dropped, by, now)


def drop_all_requests(state: LaneState, by: str, now: datetime) -> LaneState:
    for message in state.queue:
        state = drop_request(state, message.request.request_id, by, now) or state
    return state


def _record_end(state: LaneState, message: Queued, end: TurnEnd, text: str, now: datetime) -> LaneState:
    """Add the request's end to the latest turns."""
    turn = Turn(
        request_id=message.request.request_id,
        run_id=message.run_id,
        asked=truncate(message.request.text, TURN_EXCERPT),
        end=end,
        said=truncate(text, TURN_EXCERPT),
        at=now,
    )
    return state.evolve(recent=state.recent.add(turn))


def is_lane_over(state: LaneState) -> bool:
    """Return whether a lane that closes itself has nothing left to do."""
    return state.closes and not (state.queue or state.steering or state.active)


def record_lane_refusal(state: LaneState, notice: str) -> LaneState:
    return add_lane_notice(state, notice).evolve(refused=state.refused + 1)


def add_lane_notice(state: LaneState, notice: str) -> LaneState:
    return state.evolve(notices=state.notices.add(truncate(notice, 300)))


@dataclass(frozen=True)
class DeliverToTurn:
    """Deliver to the running turn what has arrived for it."""

    delivery: TurnDelivery


@dataclass(frozen=True)
class RecordTurn:
    """Record the outcome of the turn that has ended."""


@dataclass(frozen=True)
class StopTurn:
    """Stop the running turn: the lane is cancelled."""

    delivery: CancelTurn


@dataclass(frozen=True)
class DropAll:
    """Drop every waiting request: the lane is cancelled."""

    reason: str


@dataclass(frozen=True)
class EndExecution:
    """End this execution. The lane continues in another, unless it is over or cancelled."""


@dataclass(frozen=True)
class BeginTurn:
    """Begin the turn of the first request in the queue."""

    message: Queued


@dataclass(frozen=True)
class AwaitEvent:
    """Wait: nothing is due."""


LaneMove = DeliverToTurn | RecordTurn | StopTurn | DropAll | EndExecution | BeginTurn | AwaitEvent


@dataclass(frozen=True)
class LaneFacts:
    """The facts that the lane's state does not contain."""

    delivery: TurnDelivery | None = None  # the first that waits
    turn_is_over: bool = False
    turn_is_stopping: bool = False
    cancelled: str | None = None  # the reason, if the lane itself is cancelled
    history_is_long: bool = False
    leaves_build: bool = False  # another build is current


def delivery_waits(_: LaneState, facts: LaneFacts) -> DeliverToTurn | None:
    """Something has arrived for the turn."""
    return DeliverToTurn(facts.delivery) if facts.delivery else None


def turn_is_over(_: LaneState, facts: LaneFacts) -> RecordTurn | None:
    """The turn has ended."""
    return RecordTurn() if facts.turn_is_over else None


def turn_is_to_stop(state: LaneState, facts: LaneFacts) -> StopTurn | None:
    """The lane is cancelled, and its turn has not been asked to stop."""
    if facts.cancelled is None or facts.turn_is_stopping or state.active is None:
        return None
    return StopTurn(CancelTurn(state.active.queued.run_id, facts.cancelled))


def queue_is_to_drop(state: LaneState, facts: LaneFacts) -> DropAll | None:
    """The lane is cancelled, nothing runs, and something waits."""
    is_left = facts.cancelled is not None and state.active is None and state.queue
    return DropAll(facts.cancelled or "") if is_left else None


def lane_moves(state: LaneState, facts: LaneFacts) -> EndExecution | None:
    """Another build is current, nothing runs, and the lane is not cancelled. The next turn begins on that build."""
    return EndExecution() if facts.leaves_build and state.active is None and facts.cancelled is None else None


def request_waits(state: LaneState, facts: LaneFacts) -> BeginTurn | None:
    """Nothing runs, something waits, and the lane is not cancelled."""
    return BeginTurn(state.queue[0]) if facts.cancelled is None and state.active is None and state.queue else None


def lane_is_done(state: LaneState, facts: LaneFacts) -> EndExecution | None:
    """If cancelled: nothing runs. If not: the history is long, or a lane that closes has nothing left to do."""
    if facts.cancelled is not None:
        # Even if the history is long: the cancel belongs to this execution, and would be lost with it.
        return EndExecution() if state.active is None else None
    return EndExecution() if facts.history_is_long or is_lane_over(state) else None


def nothing_is_due(_: LaneState, __: LaneFacts) -> AwaitEvent:
    """No other rule holds."""
    return AwaitEvent()


# Checked in this order; the first rule that holds decides.
LANE_RULES: tuple[Callable[[LaneState, LaneFacts], LaneMove | None], ...] = (
    delivery_waits,
    turn_is_over,
    turn_is_to_stop,
    queue_is_to_drop,
    lane_moves,
    request_waits,
    lane_is_done,
    nothing_is_due,
)


def next_lane_move(state: LaneState, facts: LaneFacts) -> LaneMove:
    """Return the lane's next move: the most urgent one that is due."""
    return next(move for rule in LANE_RULES if (move := rule(state, facts)) is not None)


MAX_SHOWN_REQUESTS = 50


def lane_view(state: LaneState) -> LaneView:
    return LaneView(
        conversation_id=state.conversation_id,
        agent=state.agent,
        active=_waiting_view(state.active.queued) if state.active else None,
        queued=len(state.queue),
        most_queued=MAX_QUEUED,
        waiting=tuple(_waiting_view(message) for message in state.queue[:MAX_SHOWN_REQUESTS]),
        recent=state.recent,
        accepted=state.accepted,
        refused=state.refused,
        notices=state.notices,
    )


def _waiting_view(message: Queued) -> WaitingView:
    request = message.request
    asked = truncate(request.text, TURN_EXCERPT)
    return WaitingView(request_id=request.request_id, run_id=message.run_id, asked=asked, at=message.at)


def lane_details(state: LaneState) -> str:
    running = f"run `{state.active.queued.run_id}`" if state.active else "idle"
    blocks = [f"**{running}** · {len(state.queue):,} waiting · {state.accepted:,} accepted · {state.refused:,} refused"]
    if state.active:
        blocks.append(f"**Now** {escape_markdown(truncate(state.active.queued.request.text, TURN_EXCERPT))}")
    if state.notices:
        blocks.append(f"**Ignored** {escape_markdown(state.notices[-1])}")
    latest = reversed(state.recent[-5:])
    lines = [f"- {turn.end} `{turn.run_id}` {escape_markdown(truncate(turn.asked, 80))}" for turn in latest]
    return "\n\n".join([*blocks, *(["\n".join(["**Lately**", "", *lines])] if lines else [])])
