"""Every history that a release has left behind still replays on this code: no run that began then is wedged now."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.workflow import NondeterminismError

from perdure.activities.conversation import Conversations
from perdure.activities.effects.holding import Holds
from perdure.activities.model.fused_turn import FusedTurns
from perdure.activities.model.turn import Turns
from perdure.activities.run.files import Inheritances, RunFiles
from perdure.activities.run.status import RunWatcher
from perdure.activities.tools.call import ToolCalls
from perdure.activities.tools.outside import QueueResults
from perdure.contracts.failures import Escalation, RunFailure
from perdure.contracts.run.state import RunStatus
from perdure.converter import data_converter
from perdure.decisions.run.question import QUESTIONS
from perdure.features.batches.activities import BatchTurns
from perdure.features.batches.workflow import ModelBatches
from perdure.features.delegation.activities import Delegations
from perdure.features.delegation.workflow import Delegation
from perdure.features.follow_ups.activities import FollowUps
from perdure.features.follow_ups.contract import FollowUpFailure
from perdure.features.follow_ups.workflow import EventTopic, FollowUp
from perdure.features.notices.activities import Notices
from perdure.features.pauses.activities import Releases
from perdure.features.pauses.workflow import Pauses
from perdure.features.pushes.activities import Pushes
from perdure.features.reconciler.activities import Reconciler
from perdure.features.starts.activities import InboundStarts
from perdure.process.workflows import all_workflows
from perdure.workflows.agent_run.agent_run import AgentRun
from perdure.workflows.conversation import Conversation
from tests.replay.altered import Deprecated, Patched, Unguarded
from tests.replay.record import HISTORIES, SUFFIX, this_version
from tests.replay.scenarios import SCENARIOS
from tests.replaying import replay_history

WAITS = ("asks: Which one?", "approve charge", "settle charge", "settle the changed definition")
FILES = sorted(HISTORIES.glob(f"*/*{SUFFIX}"))
THIS_VERSION = [path for path in FILES if path.parent.name == this_version()]
OTHER = "of no known name"
WORKFLOW_DEFINITIONS = [
    workflow._Definition.must_from_class(each)
    for each in (AgentRun, Conversation, Delegation, FollowUp, EventTopic, ModelBatches, Pauses)
]
OWNERS = (
    Turns,
    BatchTurns,
    FusedTurns,
    ToolCalls,
    RunFiles,
    Inheritances,
    Reconciler,
    Notices,
    InboundStarts,
    FollowUps,
    RunWatcher,
    Holds,
    Delegations,
    Conversations,
    QueueResults,
    Releases,
    Pushes,
)
RERECORD = "make histories records what is missing (and add a scenario first, where none goes there)"


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name.removesuffix(SUFFIX)}"


@cache
def history(path: Path) -> WorkflowHistory:
    text = gzip.decompress(path.read_bytes()).decode()
    started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], text)  # a run is addressed by its id, so it must be its own


async def replay(path: Path, *workflows: type) -> None:
    """As a production worker would. Raises where the code does not fit the history."""
    await replay_history(history(path), data_converter, workflows or all_workflows())


@pytest.mark.parametrize("path", FILES, ids=name_of)
async def test_a_stored_history_replays(path: Path) -> None:
    await replay(path)


async def test_an_execution_that_has_no_task_yet_is_left_out() -> None:
    path = THIS_VERSION[0]
    await replay_history(WorkflowHistory(history(path).workflow_id, history(path).events[:1]), data_converter)


@pytest.mark.parametrize("name", ["finished", "answered-by-update", "rotated.1", "rotated.2", "cancelled-while-voting"])
async def test_a_workflow_that_was_changed_without_a_patch_is_caught(name: str) -> None:
    with pytest.raises(NondeterminismError, match="TMPRL1100"):
        await replay(HISTORIES / this_version() / f"{name}{SUFFIX}", Unguarded)


@pytest.mark.parametrize("path", [path for path in FILES if path.name.startswith(("finished", "rotated"))], ids=name_of)
async def test_a_change_behind_a_patch_replays_older_histories(path: Path) -> None:
    await replay(path, Patched)
    with pytest.raises(NondeterminismError):
        await replay(path, Deprecated)  # too early: this history has no mark of the patch


def test_every_scenario_of_this_version_is_recorded_and_nothing_else() -> None:
    recorded = {name_of(path).rpartition("/")[2].partition(".")[0] for path in THIS_VERSION}
    assert recorded == {scenario.name for scenario in SCENARIOS}, RERECORD


def test_the_histories_of_this_version_cover_every_step_of_a_run() -> None:
    covered = {way for path in THIS_VERSION for way in steps_in(history(path))}
    assert all_steps() - covered == set(), RERECORD


# No offline scenario ends so: the activity `open_run` would have to time out, and it is tried until it does not.
# `is_held` is local unless a worker dies in it.
NOT_RECORDED = {"failed BadProject", "status queued", "status timed_out", "activity is_held"}


def all_steps() -> set[str]:
    """Read from the tables that the code itself goes by, so that whatever is added there is asked for here."""
    activities = [
        definition.name
        for owner in OWNERS
        for method in vars(owner).values()
        if (definition := activity._Definition.from_callable(method))
    ]
    return {
        "completed",
        "cancelled",
        "continued",
        "activity failed",
        "activity timed out",
        "activity canceled",
        "activity tried again",
        "native cancel",
        "timer fired",
        "timer canceled",
        *(f"activity {name}" for name in activities),
        *(
            f"local {name}"
            for name in (
                "open_run",
                "open_run failed",
                "join_conversation",
                "close_segment",
                "write_batch_request",
                "is_held",
            )
        ),
        *(f"workflow {name}" for each in all_workflows() if (name := workflow._Definition.must_from_class(each).name)),
        *(f"signal {name or OTHER}" for each in WORKFLOW_DEFINITIONS for name in each.signals),
        *(f"update {name}" for each in WORKFLOW_DEFINITIONS for name in each.updates),
        *(f"escalated {reason}" for reason in Escalation),
        *(f"failed {kind}" for kind in (*RunFailure, *FollowUpFailure)),
        *(f"status {status}" for status in RunStatus),
        *(f"waits human: {about}" for about in WAITS),
        *(f"decision {decision}" for row in QUESTIONS.values() for decision in row.decisions),
    } - NOT_RECORDED


def steps_in(recorded: WorkflowHistory) -> Iterator[str]:
    """What this run went through, in the words of `all_steps`."""
    for event in recorded.events:
        if event.event_type in PLAIN:
            yield PLAIN[event.event_type]
        kind = event.WhichOneof("attributes") or ""
        if kind in READERS:
            yield from READERS[kind](getattr(event, kind))


PLAIN = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "continued",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: "native cancel",
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "activity failed",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "activity timed out",
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "activity canceled",
    EventType.EVENT_TYPE_TIMER_FIRED: "timer fired",
    EventType.EVENT_TYPE_TIMER_CANCELED: "timer canceled",
}


def _signal(signal: Any) -> Iterator[str]:
    known = {name for each in WORKFLOW_DEFINITIONS for name in each.signals}
    yield f"signal {signal.signal_name if signal.signal_name in known else OTHER}"
    yield from _decision(signal.input)


def _update(update: Any) -> Iterator[str]:
    request = update.accepted_request.input
    yield f"update {request.name}"
    yield from _decision(request.args)


def _decision(args: Any) -> Iterator[str]:
    for payload in args.payloads:
        body = json.loads(payload.data)
        if isinstance(body, dict) and "decision" in body:
            yield f"decision {body['decision']}"


def _upsert(upsert: Any) -> Iterator[str]:
    fields = upsert.search_attributes.indexed_fields
    for name, word in (("AgentStatus", "status"), ("WaitingFor", "waits")):
        if name in fields and fields[name].data:
            yield f"{word} {json.loads(fields[name].data)}"


def _completed(completed: Any) -> Iterator[str]:
    event = json.loads(completed.result.payloads[0].data or b"{}")
    if "type" not in event:
        return  # a report, or nothing
    yield " ".join([event["type"].removeprefix("agent."), event.get("payload", {}).get("reason", "")]).strip()


def _marker(marker: Any) -> Iterator[str]:
    if marker.marker_name == "core_local_activity":
        about = json.loads(marker.details["data"].payloads[0].data)
        yield f"local {about['activity_type']}{' failed' if marker.HasField('failure') else ''}"


READERS: dict[str, Callable[[Any], Iterable[str]]] = {
    "workflow_execution_started_event_attributes": lambda it: [f"workflow {it.workflow_type.name}"],
    "activity_task_scheduled_event_attributes": lambda it: [f"activity {it.activity_type.name}"],
    "activity_task_started_event_attributes": lambda it: ["activity tried again"] * (it.attempt > 1),
    "marker_recorded_event_attributes": _marker,
    "workflow_execution_failed_event_attributes": lambda it: [f"failed {it.failure.application_failure_info.type}"],
    "workflow_execution_completed_event_attributes": _completed,
    "workflow_execution_signaled_event_attributes": _signal,
    "workflow_execution_update_accepted_event_attributes": _update,
    "upsert_workflow_search_attributes_event_attributes": _upsert,
}
