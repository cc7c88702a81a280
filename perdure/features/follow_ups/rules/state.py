"""A follow-up's state machine: when its tasks are resolved, and when the work resumes.

Functions take the state and return the next one. A task is resolved once; later events for it are recorded as late.
Times are milliseconds since 1970.
"""

from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from perdure.contracts.failures import ToolFault
from perdure.contracts.models import MAX_NESTING, nesting_depth
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.decisions.ids import follow_up_workflow_id
from perdure.decisions.people.signature import SignedQuestion, signature_error
from perdure.features.follow_ups.contract import (
    MAX_FOLLOW_UP_TASKS,
    MAX_TASK_RESULT,
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
from perdure.features.follow_ups.rules import kinds
from perdure.features.follow_ups.rules.topic import event_id

FIRST_TASK_WITHIN = 3600 * 1000  # if no run is named that may create tasks
TEXT_KEPT = 4000  # characters of a text that is too large to keep
TIMEOUT, CLOCK, SENT = "timeout", "clock", "sent"  # `resolved_by`, if it is not an event or a person
NOT_SENT = "not sent, as this is a trial: go on as if it had been sent"


@dataclass(frozen=True)
class Subscribe:
    task: Task
    topic: str


@dataclass(frozen=True)
class Send:
    """Send a task's message. `number` is the task's place in its follow-up."""

    task: Task
    number: int
    message: Outbound


@dataclass(frozen=True)
class WaitForTasks:
    until: int | None


@dataclass(frozen=True)
class Resume:
    """Submit the request that resumes the work."""


@dataclass(frozen=True)
class EndFollowUp:
    """End without resuming the work."""


Move = Subscribe | Send | WaitForTasks | Resume | EndFollowUp


def open_follow_up(command: CreateCommand, now: int, execution: str) -> FollowUpState:
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
        work=command.data.work,
        quiet=command.data.quiet,
        answer_keys=command.answer_keys,
    )


def next_follow_up_move(state: FollowUpState, *, is_sending: bool = False) -> Move:
    """Return the next move for a state that is up to date (`advanced`).

    Messages are sent one at a time. `is_sending`: one is in flight, although its task may already be resolved.
    """
    if state.state.is_final:
        return Resume() if state.state is not FollowUpStatus.cancelled and state.resume_seq else EndFollowUp()
    for number, task in enumerate(state.tasks, 1):
        if task.state is FollowUpStatus.queued:
            kind, parsed = kinds.parse_task(task)
            if kind.sends is not None and not (is_sending or is_send_in_flight(state)):
                return Send(task, number, kind.sends(parsed))
            if kind.topic is not None:
                return Subscribe(task, kind.topic(parsed))
    ends = [task.expires_at for task in open_tasks(state) if task.expires_at is not None and not _is_send_task(task)]
    if not state.tasks and state.idle_until is not None:
        ends.append(state.idle_until)
    return WaitForTasks(min(ends, default=None))


def open_tasks(state: FollowUpState) -> tuple[Task, ...]:
    return tuple(task for task in state.tasks if not task.state.is_final)


def is_send_in_flight(state: FollowUpState) -> bool:
    """Return whether a message is in flight: its outcome is not known yet."""
    return any(task.state is FollowUpStatus.running and _is_send_task(task) for task in state.tasks)


def _is_send_task(task: Task) -> bool:
    return kinds.KINDS[task.kind].sends is not None


def task_of(state: FollowUpState, task_id: str) -> Task | None:
    return next((task for task in state.tasks if task.task_id == task_id), None)


def subscribed_topics(state: FollowUpState) -> tuple[tuple[Task, str], ...]:
    """Return the tasks that a topic may know, each with the topic's key."""
    rows = [(task, *kinds.parse_task(task)) for task in state.tasks if task.state is not FollowUpStatus.queued]
    return tuple((task, kind.topic(arguments)) for task, kind, arguments in rows if kind.topic is not None)


def misdirection_reason(state: FollowUpState, workflow_id: str | None) -> str | None:
    if workflow_id in (None, state.workflow_id):
        return None
    return f"this is follow-up {state.workflow_id}, not {workflow_id[:100]}"


def task_rejection_reason(state: FollowUpState, data: TaskData, now: int) -> str | None:
    """Return the reason, if any, to reject this task now. A task that was accepted before is not rejected."""
    if reason := misdirection_reason(state, data.workflow_id):
        return reason
    if task_of(state, data.task_id) is not None:
        return None
    if state.state.is_final:
        return f"follow-up {state.workflow_id} is {state.state}: create another one"
    if len(state.tasks) >= MAX_FOLLOW_UP_TASKS:
        return f"a follow-up has at most {MAX_FOLLOW_UP_TASKS} tasks"
    return kinds.kind_rejection_reason(data.kind, data.input, now)


def add_task(state: FollowUpState, data: TaskData, now: int) -> FollowUpState:
    """Add a task that was not refused. The same command again changes nothing."""
    if task_of(state, data.task_id) is not None:
        return state
    kind = kinds.KINDS[data.kind]
    parsed = kind.input.model_validate(data.input)
    ends = [now + parsed.timeout_ms] if parsed.timeout_ms else []
    if kind.due is not None:
        ends.append(kind.due(parsed, now))
    given = data.model_dump(include={"task_id", "kind", "description", "input"}, by_alias=False)
    task = Task(**given, created_at=now, updated_at=now, expires_at=min(ends, default=None))
    runs = (*state.runs, data.run_id) if data.run_id is not None and data.run_id not in state.runs else state.runs
    work = state.work and state.work.with_sources(data.has_read)
    return state.evolve(tasks=(*state.tasks, task), runs=runs, work=work, updated_at=now)


def remove_creator_run(state: FollowUpState, run_id: str) -> FollowUpState:
    """Record that this run adds no more tasks."""
    return state.evolve(runs=tuple(run for run in state.runs if run != run_id))


def begin_follow_up_task(state: FollowUpState, task_id: str, now: int) -> FollowUpState:
    """Record that the task's subscription, or its message, is in progress."""
    task = task_of(state, task_id)
    return state if task is None else _replace_task(state, task.evolve(state=FollowUpStatus.running), now)


def block_task(state: FollowUpState, task_id: str, now: int) -> FollowUpState:
    """Record that the task waits, unless it was resolved in the meantime."""
    task = task_of(state, task_id)
    if task is None or task.state is not FollowUpStatus.running:
        return state
    return _replace_task(state, task.evolve(state=FollowUpStatus.blocked), now)


def skip_send(state: FollowUpState, task_id: str, now: int) -> FollowUpState:
    """Resolve a message of a trial, which sends none."""
    return _resolve_task(state, task_id, {"status": "not_sent", "message": NOT_SENT}, SENT, now)


def record_send(state: FollowUpState, task_id: str, outcome: ToolOutcome, now: int) -> FollowUpState:
    """Record the outcome of a send: sent, failed, or in doubt. A task that has ended does not change."""
    task = task_of(state, task_id)
    if task is None or task.state.is_final:
        return state
    if outcome.error is None:
        return _resolve_task(state, task_id, {"status": "sent"}, SENT, now)
    result = {"status": outcome.error.kind, "message": outcome.error.message[:TEXT_KEPT]}
    return _resolve_task(state, task_id, result, SENT, now, FollowUpStatus.failed)


def resolve_task(state: FollowUpState, resolution: TaskResolved, now: int) -> tuple[FollowUpState, str | None]:
    """Apply an event, or a result from outside, to its task. Return the reason if it does not apply."""
    task, reason = task_of(state, resolution.task_id), misdirection_reason(state, resolution.workflow_id)
    if task is None:
        reason = reason or f"there is no task {resolution.task_id[:100]}"
    elif resolution.event is None and state.answer_keys and kinds.KINDS[task.kind].asks:
        reason = reason or f"task {task.task_id} asks a person: only a signed answer resolves it"
    if reason or task is None:
        return state, reason
    result, by = resolution.result, resolution.resolved_by or "task_resolved"
    if resolution.event is not None:
        kind, parsed = kinds.parse_task(task)
        result, by = kind.result(parsed, resolution.event), event_id(resolution.event)
    if task.resolved_by == by:
        return state, None  # a duplicate
    if result is None:
        return state, f"event {by[:100]} is not what task {task.task_id} waits for"
    if task.state.is_final:
        if by in (late.event for late in state.late if late.task_id == task.task_id):
            return state, None
        late = Late(task_id=task.task_id, event=by, at=now)
        return state.evolve(late=state.late.add(late)), None
    return _resolve_task(state, task.task_id, result, by, now), None


def open_prompts(state: FollowUpState) -> tuple[Task, ...]:
    """Return the open tasks that ask a person, oldest first."""
    return tuple(task for task in open_tasks(state) if kinds.KINDS[task.kind].asks)


def prompt_rejection_reason(state: FollowUpState, answer: HumanInput) -> str | None:
    """Return the reason, if any, why this does not answer an open question. With several open, it must name one."""
    prompts = open_prompts(state)
    if not prompts:
        return f"no question is open on follow-up {state.workflow_id}"
    if answer.question_id is None and len(prompts) > 1:
        return f"several questions are open, so name one of them: {', '.join(task.task_id for task in prompts)}"
    if answer.question_id not in (None, *(task.task_id for task in prompts)):
        return f"question {answer.question_id} is not open; open: {', '.join(task.task_id for task in prompts)}"
    if answer.decision is not None or not (answer.text or "").strip():
        return "the question takes a text"
    task_id = answer.question_id or prompts[0].task_id
    question = SignedQuestion(follow_up_workflow_id(state.workflow_id), state.execution, task_id)
    return signature_error(state.answer_keys, question, answer)


def answer_prompt(state: FollowUpState, answer: HumanInput, now: int) -> FollowUpState:
    """Apply an answer that was not refused, to the question that it names or to the only one."""
    task_id = answer.question_id or open_prompts(state)[0].task_id
    result = {"status": "answered", "text": answer.text} | ({"by": answer.by} if answer.by else {})
    return _resolve_task(state, task_id, result, answer.by or "a person", now)


def cancel_follow_up(state: FollowUpState, now: int) -> FollowUpState:
    """End as cancelled. The work does not resume, even if it was about to and no lane has accepted the request yet."""
    if state.state.is_final and not isinstance(next_follow_up_move(state), Resume):
        return state
    for task in state.tasks:
        if task.state is FollowUpStatus.running and _is_send_task(task):  # a cancel has waited long enough for it
            outcome = error_outcome(ToolFault.in_doubt, "it may have been sent, or not")
            state = record_send(state, task.task_id, outcome, now)
    return _cancel_open(state, now).evolve(state=FollowUpStatus.cancelled, resolved_at=now)


def advance_follow_up(state: FollowUpState, now: int) -> FollowUpState:
    """Bring the state up to date: block tasks that only wait, apply the clock, and complete the follow-up if it is."""
    if state.state.is_final:
        return state
    for task in open_tasks(state):
        if _is_send_task(task):
            continue
        kind, parsed = kinds.parse_task(task)
        if task.expires_at is not None and task.expires_at <= now:
            due = kind.due(parsed, task.created_at) if kind.due else None
            by = CLOCK if due is not None and due <= now else TIMEOUT
            status = {"status": "elapsed" if by == CLOCK else TIMEOUT, "at": now}
            state = _resolve_task(state, task.task_id, status, by, now)
        elif task.state is FollowUpStatus.queued and kind.topic is None:
            state = _replace_task(state, task.evolve(state=FollowUpStatus.blocked), now)
    return _complete_if_done(state, now)


def _complete_if_done(state: FollowUpState, now: int) -> FollowUpState:
    """Complete the follow-up if it is done: `any` at once, `all` when no run remains that may add tasks (E2)."""
    remaining = open_tasks(state)
    # A timeout does not complete `any`, nor does a task that is not awaited.
    resolved = [task for task in state.tasks if task.state is FollowUpStatus.resolved and not task_timed_out(task)]
    is_any = state.definition.completion is Completion.any and any(map(_is_awaited, resolved))
    is_any = is_any and not is_send_in_flight(state)  # a sent message must not be reported as cancelled
    if not is_any and (remaining or state.runs or (not state.tasks and now < (state.idle_until or now))):
        at_work = {FollowUpStatus.queued, FollowUpStatus.running} & {task.state for task in remaining}
        waiting = FollowUpStatus.running if at_work else FollowUpStatus.blocked
        new = waiting if state.tasks else FollowUpStatus.queued
        return state if new is state.state else state.evolve(state=new, updated_at=now)
    state = _cancel_open(state, now)
    has_failed = all(task.state is FollowUpStatus.failed for task in state.tasks)
    return state.evolve(
        state=FollowUpStatus.failed if has_failed else FollowUpStatus.resolved,
        resolved_at=now,
        resume_seq=state.resume_seq + any(map(_is_awaited, state.tasks)),
    )


def task_timed_out(task: Task) -> bool:
    """Return whether the task timed out. A person may be named "timeout", so the status must match too."""
    status = task.result.get("status") if isinstance(task.result, dict) else None
    return task.resolved_by == status == TIMEOUT


def _is_awaited(task: Task) -> bool:
    kind, parsed = kinds.parse_task(task)
    return kind.is_awaited(parsed)


def _cancel_open(state: FollowUpState, now: int) -> FollowUpState:
    for task in open_tasks(state):
        state = _replace_task(state, task.evolve(state=FollowUpStatus.cancelled), now)
    return state.evolve(updated_at=now)


def _resolve_task(  # noqa: PLR0913 - facts
    state: FollowUpState, task_id: str, result: Any, by: str, now: int, end: FollowUpStatus = FollowUpStatus.resolved
) -> FollowUpState:
    task = task_of(state, task_id)
    if task is None:
        return state
    return _replace_task(
        state, task.evolve(state=end, result=_fit_result(result), resolved_at=now, resolved_by=by), now
    )


def _fit_result(result: Any) -> Any:
    """Truncate a large or deep result: the state of all tasks has to fit one payload."""
    size = len(to_json(result))
    if size <= MAX_TASK_RESULT and nesting_depth(result) <= MAX_NESTING:
        return result
    if not isinstance(result, dict):
        return {"text": str(result)[:TEXT_KEPT], "cut": size}
    small = [
        (name, value)
        for name, value in result.items()
        if len(to_json({name: value})) <= MAX_TASK_RESULT // 16 and nesting_depth(value) < MAX_NESTING
    ]
    text = {"text": str(result["text"])[:TEXT_KEPT]} if "text" in result else {}
    return {**dict(small[:8]), **text, "cut": size}


def _replace_task(state: FollowUpState, task: Task, now: int) -> FollowUpState:
    changed = task.evolve(updated_at=now)
    tasks = tuple(changed if one.task_id == task.task_id else one for one in state.tasks)
    return state.evolve(tasks=tasks, updated_at=now)
