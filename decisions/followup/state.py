"""A follow-up's state machine: what its tasks wait for, when they are resolved, and when the work goes on.

Every function takes the state and gives the next one. A task is resolved once: what comes for it afterwards is late.
Times are milliseconds since 1970.
"""

from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from contracts.failures import ToolFault
from contracts.followup import (
    MOST_RESULT,
    MOST_TASKS,
    Completion,
    CreateCommand,
    FollowUpState,
    FollowUpStatus,
    Late,
    Outbound,
    Task,
    TaskData,
    TaskResolved,
)
from contracts.models import MOST_DEPTH, depth
from contracts.run.signals import HumanInput
from contracts.tool import ToolOutcome, failed
from contracts.topic import Event
from decisions.followup import kinds
from decisions.followup.topic import event_id
from decisions.ids import follow_up_workflow_id
from decisions.signature import Asked, signature_error

FIRST_TASK_WITHIN = 3600 * 1000  # where no run is named that will have made them
MOST_NOTED = 20
TEXT_KEPT = 4000  # characters of a text that is too large to keep
TIMEOUT, CLOCK, SENT = "timeout", "clock", "sent"  # what a task may be resolved by, beside events and people


@dataclass(frozen=True)
class Subscribe:
    """Wait for the events of a topic."""

    task: Task
    topic: str


@dataclass(frozen=True)
class Send:
    """Send a message out; `number` is the task's place in its follow-up."""

    task: Task
    number: int
    message: Outbound


@dataclass(frozen=True)
class Wait:
    """Nothing to do before `until`, or before something comes."""

    until: int | None


@dataclass(frozen=True)
class Resume:
    """All is there: a new request enters the lane."""


@dataclass(frozen=True)
class End:
    """It is over, and nothing is resumed."""


Move = Subscribe | Send | Wait | Resume | End


def opened(command: CreateCommand, now: int, execution: str) -> FollowUpState:
    run = command.data.run_id
    return FollowUpState(
        workflow_id=command.data.workflow_id,
        definition=command.data.definition,
        headers=command.headers,
        created_at=now,
        updated_at=now,
        runs=(run,) if run else (),
        idle_until=None if run else now + FIRST_TASK_WITHIN,
        execution=execution,
        agent=command.data.agent,
        created_by=run,
        share=command.data.share,
        answer_keys=command.answer_keys,
    )


def next_move(state: FollowUpState, *, is_sending: bool = False) -> Move:
    """What the follow-up does next, of a state that is up to date (`advanced`).

    Messages go out one after the other. `is_sending`: one is on its way, though its task may be resolved by now.
    """
    if state.state.is_final:
        return Resume() if state.state is not FollowUpStatus.cancelled and state.resume_seq else End()
    for number, task in enumerate(state.tasks, 1):
        if task.state is FollowUpStatus.queued:
            kind, given = kinds.read(task)
            if kind.sends is not None and not (is_sending or sends_now(state)):
                return Send(task, number, kind.sends(given))
            if kind.topic is not None:
                return Subscribe(task, kind.topic(given))
    ends = [task.expires_at for task in open_tasks(state) if task.expires_at is not None and not _sends(task)]
    if not state.tasks and state.idle_until is not None:
        ends.append(state.idle_until)
    return Wait(min(ends, default=None))


def open_tasks(state: FollowUpState) -> tuple[Task, ...]:
    return tuple(task for task in state.tasks if not task.state.is_final)


def sends_now(state: FollowUpState) -> bool:
    """The message of a task goes out; what becomes of it is not known yet."""
    return any(task.state is FollowUpStatus.running and _sends(task) for task in state.tasks)


def _sends(task: Task) -> bool:
    return kinds.KINDS[task.kind].sends is not None


def task_of(state: FollowUpState, task_id: str) -> Task | None:
    return next((task for task in state.tasks if task.task_id == task_id), None)


def topics(state: FollowUpState) -> tuple[tuple[Task, str], ...]:
    """The tasks that a topic may know of, and which."""
    read = [(task, *kinds.read(task)) for task in state.tasks if task.state is not FollowUpStatus.queued]
    return tuple((task, kind.topic(given)) for task, kind, given in read if kind.topic is not None)


def misdirected(state: FollowUpState, workflow_id: str | None) -> str | None:
    """Why a command that names this follow-up is not for this one; None where it is, or names none."""
    if workflow_id in (None, state.workflow_id):
        return None
    return f"this is follow-up {state.workflow_id}, not {workflow_id[:100]}"


def refusal(state: FollowUpState, wanted: TaskData, now: int) -> str | None:
    """Why this task is not taken now; None where it is, or was before."""
    if why := misdirected(state, wanted.workflow_id):
        return why
    if task_of(state, wanted.task_id) is not None:
        return None
    if state.state.is_final:
        return f"follow-up {state.workflow_id} is {state.state}: create another one"
    if len(state.tasks) >= MOST_TASKS:
        return f"a follow-up has at most {MOST_TASKS} tasks"
    return kinds.refusal(wanted.kind, wanted.input, now)


def added(state: FollowUpState, wanted: TaskData, now: int) -> FollowUpState:
    """With one task more, which was not refused; the same command again changes nothing."""
    if task_of(state, wanted.task_id) is not None:
        return state
    kind = kinds.KINDS[wanted.kind]
    given = kind.input.model_validate(wanted.input)
    ends = [now + given.timeout_ms] if given.timeout_ms else []
    if kind.due is not None:
        ends.append(kind.due(given, now))
    task = Task(
        task_id=wanted.task_id,
        kind=wanted.kind,
        description=wanted.description,
        input=wanted.input,
        created_at=now,
        updated_at=now,
        expires_at=min(ends, default=None),
    )
    runs = state.runs if wanted.run_id in (None, *state.runs) else (*state.runs, wanted.run_id)
    return state.model_copy(update={"tasks": (*state.tasks, task), "runs": runs, "updated_at": now})


def turn_ended(state: FollowUpState, run_id: str) -> FollowUpState:
    """From this run no more tasks are to be expected."""
    return state.model_copy(update={"runs": tuple(run for run in state.runs if run != run_id)})


def begun(state: FollowUpState, task_id: str, now: int) -> FollowUpState:
    """What the task needs is being done: subscribing, or sending."""
    return _changed(state, task_id, now, state=FollowUpStatus.running)


def blocked(state: FollowUpState, task_id: str, now: int) -> FollowUpState:
    """Now it waits; unless what it waits for has come in the meantime."""
    task = task_of(state, task_id)
    return (
        _changed(state, task_id, now, state=FollowUpStatus.blocked)
        if task and task.state is FollowUpStatus.running
        else state
    )


def sent(state: FollowUpState, task_id: str, outcome: ToolOutcome, now: int) -> FollowUpState:
    """The message went out, or it is known why not, or that nobody knows; unless the task has its end already."""
    task = task_of(state, task_id)
    if task is None or task.state.is_final:
        return state
    if outcome.error is None:
        return _resolved(state, task_id, {"status": "sent"}, SENT, now)
    result = {"status": outcome.error.kind, "message": outcome.error.message[:TEXT_KEPT]}
    return _resolved(state, task_id, result, SENT, now, FollowUpStatus.failed)


def took(state: FollowUpState, brought: TaskResolved, now: int) -> tuple[FollowUpState, str | None]:
    """What an event, or a result from outside, makes of a task; or why it makes nothing of it."""
    task, why = task_of(state, brought.task_id), misdirected(state, brought.workflow_id)
    if task is None:
        why = why or f"there is no task {brought.task_id[:100]}"
    elif brought.event is None and state.answer_keys and kinds.KINDS[task.kind].asks is not None:
        why = why or f"task {task.task_id} asks a person: only a signed answer resolves it"
    if why or task is None:
        return state, why
    result, by = brought.result, brought.resolved_by or "task_resolved"
    if brought.event is not None:
        result, by = _judged(task, brought.event), event_id(brought.event)
    if task.resolved_by == by:
        return state, None  # it came again
    if result is None:
        return state, f"event {by[:100]} is not what task {task.task_id} waits for"
    if task.state.is_final:
        late = Late(task_id=task.task_id, event=by, at=now)
        if late.event in (each.event for each in state.late if each.task_id == task.task_id):
            return state, None
        return state.model_copy(update={"late": (*state.late, late)[-MOST_NOTED:]}), None
    return _resolved(state, task.task_id, result, by, now), None


def _judged(task: Task, event: Event) -> dict[str, Any] | None:
    kind, given = kinds.read(task)
    return kind.result(given, event)


def questions(state: FollowUpState) -> tuple[Task, ...]:
    """The tasks that ask a person, the oldest first."""
    return tuple(task for task in open_tasks(state) if kinds.KINDS[task.kind].asks is not None)


def answer_refusal(state: FollowUpState, answer: HumanInput) -> str | None:
    """Why this answers none of the open questions; None if it does. With several open, it must name its question."""
    asked = questions(state)
    if not asked:
        return f"no question is open on follow-up {state.workflow_id}"
    if answer.question_id is None and len(asked) > 1:
        return f"several questions are open, so name one of them: {', '.join(task.task_id for task in asked)}"
    if answer.question_id not in (None, *(task.task_id for task in asked)):
        return f"question {answer.question_id} is not open; open: {', '.join(task.task_id for task in asked)}"
    if answer.decision is not None or not (answer.text or "").strip():
        return "the question takes a text"
    about = answer.question_id or asked[0].task_id
    asked_here = Asked(follow_up_workflow_id(state.workflow_id), state.execution, about)
    return signature_error(state.answer_keys, asked_here, answer)


def answered(state: FollowUpState, answer: HumanInput, now: int) -> FollowUpState:
    """The answer, which was not refused, to the question that it names, or to the only one."""
    task_id = answer.question_id or questions(state)[0].task_id
    result = {"status": "answered", "text": answer.text} | ({"by": answer.by} if answer.by else {})
    return _resolved(state, task_id, result, answer.by or "a person", now)


def cancelled(state: FollowUpState, now: int) -> FollowUpState:
    """It ends as it stands, and nothing is resumed: not even where all is there, and no lane has taken it yet."""
    if state.state.is_final and not isinstance(next_move(state), Resume):
        return state
    for task in state.tasks:
        if task.state is FollowUpStatus.running and _sends(task):  # for longer than a cancel waits for
            state = sent(state, task.task_id, failed(ToolFault.in_doubt, "it may have been sent, or not"), now)
    return _cancel_open(state, now).model_copy(update={"state": FollowUpStatus.cancelled, "resolved_at": now})


def advanced(state: FollowUpState, now: int) -> FollowUpState:
    """Brought up to date: what waits without any doing, what the clock has resolved, and whether all is there."""
    if state.state.is_final:
        return state
    for task in open_tasks(state):
        if _sends(task):
            continue
        kind, given = kinds.read(task)
        if task.expires_at is not None and task.expires_at <= now:
            due = kind.due(given, task.created_at) if kind.due else None
            by = CLOCK if due is not None and due <= now else TIMEOUT
            status = {"status": "elapsed" if by == CLOCK else TIMEOUT, "at": now}
            state = _resolved(state, task.task_id, status, by, now)
        elif task.state is FollowUpStatus.queued and kind.topic is None:
            state = _changed(state, task.task_id, now, state=FollowUpStatus.blocked)
    return _completed(state, now)


def _completed(state: FollowUpState, now: int) -> FollowUpState:
    """`any` is judged at once; `all` when no run is left that may add tasks (E2)."""
    left = open_tasks(state)
    is_any = state.definition.completion is Completion.any and any(_is_answer(task) for task in state.tasks)
    is_any = is_any and not sends_now(state)  # a message that went out must not be told as cancelled
    if not is_any and (left or state.runs or (not state.tasks and now < (state.idle_until or now))):
        at_work = {FollowUpStatus.queued, FollowUpStatus.running} & {task.state for task in left}
        waits = FollowUpStatus.running if at_work else FollowUpStatus.blocked
        new = waits if state.tasks else FollowUpStatus.queued
        return state if new is state.state else state.model_copy(update={"state": new, "updated_at": now})
    state = _cancel_open(state, now)
    has_failed = all(task.state is FollowUpStatus.failed for task in state.tasks)
    changes: dict[str, Any] = {
        "state": FollowUpStatus.failed if has_failed else FollowUpStatus.resolved,
        "resolved_at": now,
    }
    if any(_is_awaited(task) for task in state.tasks):
        changes["resume_seq"] = state.resume_seq + 1
    return state.model_copy(update=changes)


def _is_answer(task: Task) -> bool:
    """Enough for `any`: a timeout is not, nor what nobody waits for."""
    return task.state is FollowUpStatus.resolved and not timed_out(task) and _is_awaited(task)


def timed_out(task: Task) -> bool:
    """Nothing came in time. A person, or who resolved it, may be called like that, too."""
    status = task.result.get("status") if isinstance(task.result, dict) else None
    return task.resolved_by == status == TIMEOUT


def _is_awaited(task: Task) -> bool:
    kind, given = kinds.read(task)
    return kind.is_awaited(given)


def _cancel_open(state: FollowUpState, now: int) -> FollowUpState:
    for task in open_tasks(state):
        state = _changed(state, task.task_id, now, state=FollowUpStatus.cancelled)
    return state.model_copy(update={"updated_at": now})


def _resolved(  # noqa: PLR0913 - facts
    state: FollowUpState, task_id: str, result: Any, by: str, now: int, end: FollowUpStatus = FollowUpStatus.resolved
) -> FollowUpState:
    return _changed(state, task_id, now, state=end, result=_fitted(result), resolved_at=now, resolved_by=by)


def _fitted(result: Any) -> Any:
    """A large or deep result is cut: the state of all tasks has to fit one payload."""
    size = len(to_json(result))
    if size <= MOST_RESULT and depth(result) <= MOST_DEPTH:
        return result
    if not isinstance(result, dict):
        return {"text": str(result)[:TEXT_KEPT], "cut": size}
    small = {name: value for name, value in result.items() if _is_small(name, value)}
    text = {"text": str(result["text"])[:TEXT_KEPT]} if "text" in result else {}
    few = dict(list(small.items())[:8])
    return {**few, **text, "cut": size}


def _is_small(name: str, value: Any) -> bool:
    return len(to_json({name: value})) <= MOST_RESULT // 16 and depth(value) < MOST_DEPTH


def _changed(state: FollowUpState, task_id: str, now: int, /, **changes: Any) -> FollowUpState:
    tasks = tuple(
        task.model_copy(update={**changes, "updated_at": now}) if task.task_id == task_id else task
        for task in state.tasks
    )
    return state.model_copy(update={"tasks": tasks, "updated_at": now})
