"""What must hold after every scenario, whatever was killed: read from histories, transcripts, tools and logs."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.workflow import NondeterminismError

from perdure.activities.model.transcript_cache import TranscriptCache, TranscriptCursor
from perdure.activities.storage.store import LocalStores
from perdure.client.run_list import find_run
from perdure.contracts.failures import Stop
from perdure.contracts.run.state import RunStatus, Snapshot
from perdure.contracts.run.transcript import Part, PartKind
from perdure.decisions.ids import run_workflow_id
from perdure.decisions.run.transcript import join_text_blocks
from tests.chaos.environment import Environment, retry_until_accepted
from tests.chaos.task import Task
from tests.replaying import replay_history

SILENT = ("miss", "ask_human", "read_file", "camera__photo")  # tools whose results show no receipt
WORDS = ("Traceback", "TMPRL1100", "TMPRL1101", "Unfinished")
AT_A_TIME = 8

# A signal that came while the task was being completed: the server asks for another one, and nothing has failed.
HARMLESS = (WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,)
# A query on a worker that does not have the run in memory: the SDK's core replays all that the query brings, and so
# hears a cancel before the workflow task that it came for. Where an activity's end is written between the two, that
# task does not fit what was run ahead. The next attempt begins from the history, and fits.
OVERTAKEN = re.compile(
    r"ActivityMachine in state ScheduledActivityCancelCommandCreated .*event_type: ActivityTaskStarted"
)
# An update that the server delivers again, which the SDK answers twice (temporalio/sdk-typescript#1966). The server
# drops that task, the next attempt fits, and the update has one outcome.
REDELIVERED = re.compile(r"Invalid transition while handling update response \(id \w+\) in state")
# A task whose server was gone before its worker could confirm that it is the project's own: it is given back.
UNCONFIRMED = re.compile(r"^no Temporal server answers at|TemporalUnavailableError: no Temporal server answers at")
# A worker that fails a task which the server has dropped meanwhile, as after such an update: the execution's next line
# says that the task is gone, and the history, which must replay, knows nothing of it.
UNFIT, DROPPED = "Failing workflow task", "Task not found when completing"
EXECUTION = re.compile(r"'run_id': '[\w-]+'")


@dataclass
class RunHistory:
    """What the history of a run tells, across its executions."""

    ends: list[str] = field(default_factory=list)
    failed_tasks: list[str] = field(default_factory=list)
    unplayable: list[str] = field(default_factory=list)  # why an execution does not replay
    doubts: Counter[int] = field(default_factory=Counter)  # by step
    standstill: float = 0.0  # the longest time between two events, in seconds
    lateness: float = 0.0  # of the timer that fired latest after its time
    executions: int = 0


@dataclass
class Audit:
    """The figures of a scenario, and each invariant that does not hold."""

    runs: int = 0
    effects: int = 0
    duplicates: int = 0
    lost: int = 0
    in_doubt: int = 0
    recovery: float = 0.0  # the longest time that any run stood still, in seconds
    slowest: str = ""  # that run
    lateness: float = 0.0
    rotations: int = 0
    violations: list[str] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        self.violations.append(what)


async def audit(
    it: Environment,
    *,
    late: list[str] | None = None,
    status: RunStatus | None = RunStatus.completed,
    quiet: bool = True,
) -> Audit:
    """`late` are the runs that did not end in time; `status` is how each must have ended; None: in any way.

    `quiet`: the workers' logs must be free of tracebacks too.
    """
    found = Audit(runs=len(it.handles), in_doubt=len(it.asked))
    for run in late or ():
        found.wrong(f"{run} hangs: nothing happened in it for a minute")
    found.violations += it.stuck
    found.violations += it.forgotten
    turn = asyncio.Semaphore(AT_A_TIME)

    async def of(run: str) -> None:
        async with turn:
            history = await retry_until_accepted(lambda: read_history(it.client, run))
            _judge(found, it, run, history, status)
            if run not in (late or ()):
                snapshot, parts = await retry_until_accepted(lambda: _conversation(it, run))
                _judge_parts(found, it, run, parts, cancelled=history.ends == ["canceled"])
                _judge_tokens(found, run, snapshot, parts)

    await asyncio.gather(*(of(run) for run in it.handles))
    _judge_effects(found, it)
    judge_logs(found, it, quiet=quiet)
    return found


async def read_history(client: Client, run: str) -> RunHistory:
    history = RunHistory()
    execution: str | None = (await find_run(client, run)).first_execution
    while execution:
        handle = client.get_workflow_handle(run_workflow_id(run), run_id=execution)
        events = [event async for event in handle.fetch_history_events()]
        history.executions += 1
        recorded = WorkflowHistory(handle.id, events)
        try:
            await replay_history(recorded, client.data_converter)
        except (NondeterminismError, RuntimeError) as error:
            history.unplayable.append(str(error))
        execution = _read(history, events, await _read_steps(client, events))
    return history


async def _read_steps(client: Client, events: list[HistoryEvent]) -> dict[int, int]:
    """The step of each call of a tool, by the event that scheduled it."""
    steps: dict[int, int] = {}
    for event in events:
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == "call_tool":
            (request,) = await client.data_converter.decode(scheduled.input.payloads[:1], [dict[str, Any]])
            steps[event.event_id] = request["step"]
    return steps


def _read(history: RunHistory, events: list[HistoryEvent], steps: dict[int, int]) -> str | None:
    """Adds one execution's history; gives the next one's id."""
    times = [event.event_time.ToDatetime() for event in events]
    history.standstill = max([history.standstill, *((b - a).total_seconds() for a, b in pairwise(times))])
    _read_timers(history, events)
    for event in events:
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                failed = event.activity_task_failed_event_attributes
                if failed.failure.application_failure_info.type == Stop.in_doubt:
                    history.doubts[steps[failed.scheduled_event_id]] += 1
            case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                history.failed_tasks += failed_task(event)
            case _:
                pass
    last = events[-1]
    if last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
        return last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    history.ends.append(EventType.Name(last.event_type).removeprefix("EVENT_TYPE_WORKFLOW_EXECUTION_").lower())
    return None


def failed_task(event: HistoryEvent) -> list[str]:
    """Why a workflow task failed, unless that is harmless."""
    task = event.workflow_task_failed_event_attributes
    if task.cause in HARMLESS or is_mended(task.failure.message):
        return []
    return [task.failure.message or WorkflowTaskFailedCause.Name(task.cause)]


def is_mended(message: str) -> bool:
    """Return True for a failure that the next attempt mends: of the SDK, or before the task was begun."""
    return any(pattern.search(message) for pattern in (OVERTAKEN, REDELIVERED, UNCONFIRMED))


def is_dropped(line: str, later: Iterable[str]) -> bool:
    """Return True for the failure of a task that the server had dropped, as the lines after it tell."""
    if UNFIT not in line or not (execution := EXECUTION.search(line)):
        return False
    return DROPPED in next((each for each in later if execution[0] in each), "")


def _read_timers(history: RunHistory, events: list[HistoryEvent]) -> None:
    started = {e.event_id: e for e in events if e.event_type == EventType.EVENT_TYPE_TIMER_STARTED}
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_TIMER_FIRED:
            timer = started[event.timer_fired_event_attributes.started_event_id]
            due = timer.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
            late = event.event_time.ToDatetime() - timer.event_time.ToDatetime() - due
            history.lateness = max(history.lateness, late.total_seconds())


def _judge(found: Audit, it: Environment, run: str, history: RunHistory, status: RunStatus | None) -> None:
    if history.standstill > found.recovery:
        found.recovery, found.slowest = history.standstill, run
    found.lateness = max(found.lateness, history.lateness)
    found.rotations += history.executions - 1
    wanted = {RunStatus.completed: "completed", RunStatus.cancelled: "canceled", RunStatus.failed: "failed"}
    ended = history.ends[0]
    if ended not in ("completed", "canceled", "failed") or (status is not None and ended != wanted[status]):
        found.wrong(f"{run} is {ended}")
    for failure in history.failed_tasks:
        found.wrong(f"{run} has a failed workflow task: {failure[:200]}")
    for failure in history.unplayable:
        found.wrong(f"{run} has a history that does not replay: {failure[:200]}")
    asked = Counter(asked.step for asked in it.asked if asked.run == run)
    if set(asked) != set(history.doubts):
        found.wrong(f"{run}: in doubt at steps {sorted(history.doubts)}, and a person was asked about {sorted(asked)}")


async def _conversation(it: Environment, run: str) -> tuple[Snapshot, list[Part]]:
    """The whole conversation, proven by its hash: segments from the store, the rest from the run."""
    handle = it.client.get_workflow_handle(run_workflow_id(run))
    snapshot: Snapshot = await handle.query("snapshot", result_type=Snapshot)
    execution = (await handle.describe()).run_id
    stores = LocalStores(it.workspaces)
    wanted = TranscriptCursor(handle.id, execution, snapshot.length, snapshot.head)
    return snapshot, (await TranscriptCache(it.client, stores).read_conversation(wanted)).transcript.parts


async def read_replies(it: Environment, run: str) -> list[tuple[str, int]]:
    """The text and the number of pieces of each reply of the run."""
    _, parts = await retry_until_accepted(lambda: _conversation(it, run))
    replies = [part for part in parts if part.kind is PartKind.reply]
    return [(join_text_blocks(reply.content), reply.about.get("pieces", 1)) for reply in replies]


def _judge_tokens(found: Audit, run: str, snapshot: Snapshot, parts: list[Part]) -> None:
    """Each reply is counted once, however often it was asked for."""
    replies = sum(p.about["usage"]["output"] for p in parts if p.kind is PartKind.reply)
    if not snapshot.state.inherited and snapshot.state.usage.output != replies:
        found.wrong(f"{run}: {snapshot.state.usage.output} tokens of output were counted, and {replies} received")


def _judge_parts(found: Audit, it: Environment, run: str, parts: list[Part], *, cancelled: bool) -> None:
    """A run that is cancelled while a call is in doubt may say so; one that goes on must know."""
    asked = [b["id"] for p in parts if p.kind is PartKind.reply for b in p.content if b["type"] == "tool_use"]
    answered = [b["tool_use_id"] for p in parts if p.kind is PartKind.result for b in p.content]
    if Counter(asked) != Counter(answered) or len(set(asked)) != len(asked):
        found.wrong(f"{run}: {len(asked)} tool uses and {len(answered)} results do not fit together")
    shown = {p.about["step"]: str(p.content[0]["content"]) for p in parts if p.about.get("step") is not None}
    for step in range(1, max(shown, default=0) + 1):
        if cancelled and shown.get(step, "").startswith("in_doubt:"):
            del shown[step]
            continue
        for effect in it.tools.of(run, step) if (run, step) not in it.tools.images else ():
            if effect.receipt not in shown.get(step, ""):
                found.lost += 1
                found.wrong(f"{run}: the result of step {step} ({effect.receipt}) is lost: {shown.get(step)!r:.200}")
    if task := it.tasks.get(run):
        _judge_steps(found, it, task, parts, shown)


def _judge_steps(found: Audit, it: Environment, task: Task, parts: list[Part], shown: dict[int, str]) -> None:
    """Each step is the one that was planned, and shows what its tool answered."""
    tools = {p.about["step"]: p.about["tool"] for p in parts if p.about.get("step") is not None}
    if any(task.tools.get(step) != tool for step, tool in tools.items()):
        found.wrong(f"{task.run}: steps {tools} were planned as {task.tools}")
    for step, text in shown.items():
        place = (task.run, step)
        expected = task.tools.get(step) not in SILENT and place not in it.tools.images and not it.tools.refused[place]
        if text.startswith("interrupted:") and not it.tools.of(task.run, step):
            expected = False  # the run was cancelled before the call was made
        if text.startswith("denied:") and not it.tools.of(task.run, step):
            expected = False  # a person decided so, which the scenario judges
        if expected and f"{task.run}/{step}" not in text:
            found.lost += 1
            found.wrong(f"{task.run}: step {step} shows {text[:200]!r}")


def _judge_effects(found: Audit, it: Environment) -> None:
    found.effects = len(it.tools.effects)
    places = Counter((effect.run, effect.step) for effect in it.tools.effects)
    keys = Counter(effect.key for effect in it.tools.effects)
    for (run, step), times in places.items():
        if times > 1:
            found.duplicates += times - 1
            found.wrong(f"{run}: step {step} had its effect {times} times")
    for key, times in keys.items():
        if times > 1:
            found.wrong(f"{key}: {times} effects under one key")
    stores = LocalStores(it.workspaces)
    for effect in it.tools.effects:
        if effect.effect == "once" and not _is_claimed(stores, effect.run, effect.step):
            found.wrong(f"{effect.run}: step {effect.step} had an effect without a record of its claim")


def _is_claimed(stores: LocalStores, run: str, step: int) -> bool:
    return any(f"step-{step:05}" in name for name in stores.of(run).names("ledger"))


def judge_logs(found: Audit, it: Environment, *, quiet: bool) -> None:
    logged: set[tuple[str, int]] = set()
    for log in it.logs:
        lines = log.read_text(errors="replace").splitlines()
        for nr, line in enumerate(lines, start=1):
            word = next((word for word in WORDS if word in line), None) if quiet else None
            if word and not (_is_refusal(line) or is_mended(line) or is_dropped(line, lines[nr:])):
                found.wrong(f"{word} in a worker's log: {shorten_log_line(line)}")
            if '"agent_run.resume_unsafe"' in line:
                event: dict[str, Any] = json.loads(line)
                logged.add((event["run_id"], event.get("step", 0)))
    asked = {(asked.run, asked.step) for asked in it.asked}
    if logged != asked:
        found.wrong(
            f"events agent_run.resume_unsafe tell of {sorted(logged - asked)} more and {sorted(asked - logged)} fewer"
        )


def _is_refusal(line: str) -> bool:
    """A server that is too busy says so to an activity, and Temporal tries that again: nothing of ours has failed."""
    try:
        error = str(json.loads(line).get("error", ""))
    except (ValueError, AttributeError):
        return False
    return error.rpartition("\n")[2].startswith("temporalio.service.RPCError: ")


def shorten_log_line(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return line[:300]
    message = str(entry.get("message", ""))
    of_core = re.search(r"\[TMPRL\d+\][^\"]{0,200}", message)  # within much else
    return f"{entry.get('logger')}: {of_core[0] if of_core else message[:150]} … {entry.get('error', '')[-200:]}"


def memory_peak(pid: int) -> int:
    """Bytes that a living process has held at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
