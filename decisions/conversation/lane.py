"""A lane: which requests it takes, and in which order they become turns (B8).

One turn at a time, first come, first served. Every request that was accepted ends once: as a turn, as part of one, or
dropped by somebody.
"""

from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b

from pydantic_core import to_json

from contracts.conversation import (
    MOST_TEXT,
    Active,
    Headers,
    LaneFault,
    LaneState,
    Queued,
    SubmitRequest,
    Submitted,
    Turn,
    TurnEnd,
    WhenBusy,
    Word,
)
from contracts.run.events import BeginEvent, StartPayload
from contracts.run.signals import HumanInput
from contracts.sender import Sender
from decisions.errors import IllegalMove
from decisions.ids import turn_run_id
from decisions.run.transcript import PAGE_BYTES
from decisions.text.formatting import cut

MOST_QUEUED = 2000
MOST_BYTES = 1024 * 1024  # of all that wait: they are carried over continue-as-new, which takes 2 MiB
ANSWERS, ANSWER_BYTES = 10, 64 * 1024  # room beside those, for answers: the turn that a full lane waits for may ask
MOST_REQUEST = PAGE_BYTES  # bytes of one, which is carried beside them while it runs; more a run would not take
FRAME = 160  # bytes that a lane keeps beside a request
MOST_SEEN = 5000  # request ids that are known again; older ones find their run, which has ended
NO_TURN = (TurnEnd.steered, TurnEnd.answered, TurnEnd.dropped)  # requests that became part of another, or nothing
MOST_RECENT, MOST_NOTICES, MOST_AFTER = 20, 20, 5
EXCERPT = 400  # characters of a request or an outcome
RETRY_AFTER = 5.0  # seconds; about the time of a short turn


@dataclass(frozen=True)
class Refusal:
    kind: LaneFault
    why: str


@dataclass(frozen=True)
class Steer:
    """Hand the message to the turn that runs."""

    message: Queued


@dataclass(frozen=True)
class Answer:
    """Give the message to the turn that runs, as the answer to its question."""

    message: Queued


@dataclass(frozen=True)
class Cancel:
    """Cancel the turn `run_id`."""

    run_id: str
    reason: str
    sender: Sender | None = None


@dataclass(frozen=True)
class PassOn:
    """Hand on what a person sent to the lane: it is for the turn that runs, whatever that asks."""

    answer: HumanInput


Errand = Steer | Answer | Cancel | PassOn


@dataclass(frozen=True)
class Accepted:
    """What an accepted request makes of the lane, what is answered, and what is to be done about it at once."""

    state: LaneState
    answer: Submitted
    errand: Errand | None = None


def admit(state: LaneState, request: SubmitRequest, now: datetime) -> Accepted | Refusal:
    """Judged in this order: known, too much, busy; then where it goes."""
    run_id = turn_run_id(state.conversation_id, request.request_id)
    data = to_json(request)
    key, body = _hashed(request.request_id.encode(errors="surrogatepass")), _hashed(to_json(_unsigned(request)))
    if (known := state.seen.get(key)) is not None:
        if known != body:
            used = f"request id {cut(request.request_id, 80)!r} was used with another body"
            return Refusal(LaneFault.request_reused, f"{used}: that was {known}, this is {body}; take another id")
        return Accepted(state, Submitted(run_id=run_id, position=position_of(state, run_id), duplicate=True))
    message = Queued(request=request, run_id=run_id, size=len(data) + FRAME, at=now)
    if refusal := _no_room(state, message):
        return refusal
    seen = dict(list(state.seen.items())[-MOST_SEEN + 1 :]) if len(state.seen) >= MOST_SEEN else dict(state.seen)
    state = state.model_copy(update={"seen": {**seen, key: body}, "accepted": state.accepted + 1})
    return _placed(state, message)


def _unsigned(request: SubmitRequest) -> SubmitRequest:
    """Return what the caller said: the same request may come again through another door."""
    return request.model_copy(update={"sender": None, "signature": None})


def _no_room(state: LaneState, message: Queued) -> Refusal | None:
    if message.size > MOST_REQUEST:
        took = f"the request takes {message.size:,} bytes, and {MOST_REQUEST:,} is the most"
        return Refusal(LaneFault.invalid_input, f"{took}: put the rest into a file that a tool can read")
    waits = message.request.question_id is None or state.active is None
    most, most_bytes = (MOST_QUEUED, MOST_BYTES) if waits else (MOST_QUEUED + ANSWERS, MOST_BYTES + ANSWER_BYTES)
    waiting = (*state.queue, *state.steering)
    used = sum(each.size for each in waiting)
    if len(waiting) >= most or used + message.size > most_bytes:
        full = f"{len(waiting):,} requests of {used:,} bytes wait, and {most:,} or {most_bytes:,} are the most"
        return Refusal(LaneFault.lane_full, f"the lane is full: {full}; try again in {RETRY_AFTER:g} s")
    if message.request.when_busy is WhenBusy.reject and waits and (state.active or state.queue):
        return Refusal(LaneFault.lane_busy, f"the lane is busy; try again in {RETRY_AFTER:g} s, or let it queue")
    return None


def _placed(state: LaneState, message: Queued) -> Accepted:
    active, request = state.active, message.request
    answers = request.question_id is not None
    if active and (answers or request.when_busy is WhenBusy.steer):
        state = state.model_copy(update={"steering": (*state.steering, message)})
        return Accepted(state, _with(active), Answer(message) if answers else Steer(message))
    if active and request.when_busy is WhenBusy.interrupt:
        state = state.model_copy(update={"queue": (message, *state.queue)})
        why = f"interrupted by request {cut(request.request_id, 80)}"
        errand = Cancel(active.queued.run_id, why, request.sender)
        return Accepted(state, Submitted(run_id=message.run_id, position=1, duplicate=False), errand)
    state = queued(state, message)
    position = position_of(state, message.run_id)
    return Accepted(state, Submitted(run_id=message.run_id, position=position, duplicate=False))


def _with(active: Active) -> Submitted:
    return Submitted(run_id=active.queued.run_id, position=0, duplicate=False)


def position_of(state: LaneState, run_id: str) -> int:
    """Return how many requests come before this one; 0 also if it runs or has run."""
    at = next((i for i, queued in enumerate(state.queue) if queued.run_id == run_id), None)
    return 0 if at is None else at + (state.active is not None)


def is_next(state: LaneState, run_id: str) -> bool:
    """Whether this request waits, and nothing runs or waits before it: its turn is about to begin."""
    return state.active is None and bool(state.queue) and state.queue[0].run_id == run_id


def drop_reason(state: LaneState, run_id: str) -> str | None:
    """Return why a request that waited did not become a turn; None if it was not dropped."""
    turn = next((turn for turn in reversed(state.recent) if turn.run_id == run_id), None)
    return f"it was dropped: {turn.said}" if turn is not None and turn.end is TurnEnd.dropped else None


def _hashed(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def queued(state: LaneState, message: Queued) -> LaneState:
    return state.model_copy(update={"queue": (*state.queue, message)})


def found_open(state: LaneState, turn: Queued) -> LaneState:
    """An earlier lane of the conversation was terminated, and its turn runs on: it is this lane's now."""
    return state.model_copy(update={"active": Active(queued=turn), "agent": turn.request.agent})


def begun(state: LaneState) -> LaneState:
    """The first request of the queue becomes the turn that runs. The agent it names is spoken to from now on.

    Raises IllegalMove where a turn runs already, or nothing waits.
    """
    if state.active is not None:
        raise IllegalMove("begin a turn", f"run {state.active.queued.run_id} is one")
    if not state.queue:
        raise IllegalMove("begin a turn", "nothing waits")
    first, *rest = state.queue
    agent = first.request.agent or state.agent or first.request.default_agent
    return state.model_copy(
        update={"active": Active(queued=first, forget=state.forget), "queue": tuple(rest), "agent": agent}
    )


def repeated(state: LaneState) -> LaneState:
    """The turn's run had been started before, for a request that the lane has forgotten since."""
    active = state.active and state.active.model_copy(update={"is_repeat": True})
    return state.model_copy(update={"active": active})


def spoken(request: SubmitRequest) -> str:
    """What is said to a turn at work, which has its brief already: all of it goes into the conversation."""
    return "\n\n".join(text for text in (request.brief, request.text) if text)[:MOST_TEXT]


def answer_of(request: SubmitRequest) -> HumanInput:
    """Return the answer that the request is to the question it names."""
    return HumanInput(
        question_id=request.question_id, text=request.text, sender=request.sender, signature=request.signature
    )


def begin_event(state: LaneState, message: Queued) -> BeginEvent:
    """The input of the turn's run."""
    request, origin = message.request, message.request.origin or Headers()
    payload = StartPayload(
        goal=request.text, context=request.context, agent=state.agent, conversation_id=state.conversation_id
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
        sender=request.sender,
    )


def ended(state: LaneState, end: TurnEnd, said: str, now: datetime) -> LaneState:
    """The turn is over. What it was to be steered by, and did not take, comes next.

    After one that ran before, nobody here knows which turn was the latest: the conversation's store does. Raises
    IllegalMove where no turn runs.
    """
    if state.active is None:
        raise IllegalMove("end a turn", "none runs")
    done = state.active.queued
    after = () if state.active.is_repeat else (done.run_id, *state.after)[:MOST_AFTER]
    # A turn that was cut off may not have joined the conversation, so the next one leaves them out.
    left_out = () if end in (TurnEnd.cancelled, TurnEnd.timed_out) else state.active.forget
    changes = {
        "active": None,
        "after": after,
        "queue": (*state.steering, *state.queue),
        "steering": (),
        "forget": tuple(run_id for run_id in state.forget if run_id not in left_out),
    }
    return _told(state.model_copy(update=changes), done, end, said, now)


def forget(state: LaneState, run_id: str | None) -> tuple[LaneState, Turn] | None:
    """Leave an ended turn, the latest if none is named, out of the conversation from the next turn on.

    None if there is no such turn among the latest.
    """
    turns = [turn for turn in state.recent if turn.end not in NO_TURN and not turn.forgotten]
    turn = next((turn for turn in reversed(turns) if run_id in (None, turn.run_id)), None)
    if turn is None:
        return None
    gone = turn.model_copy(update={"forgotten": True})
    recent = tuple(gone if each is turn else each for each in state.recent)
    return state.model_copy(update={"recent": recent, "forget": (*state.forget, turn.run_id)}), gone


def steered(state: LaneState, request_id: str, now: datetime) -> LaneState:
    """The turn that runs has taken the message."""
    taken = next((each for each in state.steering if each.request.request_id == request_id), None)
    return _told(_without(state, taken), taken, TurnEnd.steered, _joined(state), now) if taken else state


def answered(state: LaneState, message: Queued, now: datetime, *, took: bool) -> LaneState:
    """Whether the turn that runs took it as the answer to its question. What answers nothing waits its turn."""
    if message not in state.steering:
        return state
    left = _without(state, message)
    return _told(left, message, TurnEnd.answered, _joined(state), now) if took else queued(left, message)


def left(state: LaneState, message: Queued, now: datetime) -> LaneState:
    """The turn that runs answers nobody for now: what was left with it counts when it goes on."""
    if message not in state.steering:
        return state
    return _told(_without(state, message), message, TurnEnd.answered, f"{_joined(state)}, when it goes on", now)


def _without(state: LaneState, message: Queued) -> LaneState:
    left = tuple(each for each in state.steering if each.run_id != message.run_id)
    return state.model_copy(update={"steering": left})


def _joined(state: LaneState) -> str:
    return f"run {state.active.queued.run_id}" if state.active else ""


def dropped(state: LaneState, request_id: str, by: str, now: datetime) -> LaneState | None:
    """None where no such request waits."""
    found = next((each for each in state.queue if each.request.request_id == request_id), None)
    if found is None:
        return None
    left = tuple(each for each in state.queue if each is not found)
    return _told(state.model_copy(update={"queue": left}), found, TurnEnd.dropped, by, now)


def emptied(state: LaneState, by: str, now: datetime) -> LaneState:
    """Nothing waits any more."""
    for message in state.queue:
        state = dropped(state, message.request.request_id, by, now) or state
    return state


def _told(state: LaneState, message: Queued, end: TurnEnd, said: str, now: datetime) -> LaneState:
    request_id, mailbox = message.request.request_id, message.request.mailbox
    if mailbox is not None:
        word = Word(mailbox=mailbox, request_id=request_id, run_id=message.run_id, end=end)
        state = state.model_copy(update={"words": (*state.words, word)})
    turn = Turn(
        request_id=request_id,
        run_id=message.run_id,
        asked=cut(message.request.text, EXCERPT),
        end=end,
        said=cut(said, EXCERPT),
        at=now,
    )
    return state.model_copy(update={"recent": (*state.recent, turn)[-MOST_RECENT:]})


def heard(state: LaneState) -> LaneState:
    """A mailbox has heard the first of the words."""
    return state.model_copy(update={"words": state.words[1:]})


def is_over(state: LaneState) -> bool:
    """Whether nothing is left in a lane that closes after itself."""
    return state.closes and not (state.queue or state.steering or state.words or state.active)


def refused(state: LaneState, notice: str) -> LaneState:
    """A message that was not taken: counted, and told where people look."""
    return noticed(state, notice).model_copy(update={"refused": state.refused + 1})


def noticed(state: LaneState, notice: str) -> LaneState:
    return state.model_copy(update={"notices": (*state.notices, cut(notice, 300))[-MOST_NOTICES:]})
