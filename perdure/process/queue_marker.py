"""The marker of a task queue: whose it is, that payloads are encrypted, and which keys the workers hold.

A process of another project, or with a missing or different key, fails at its start, before runs get stuck or reach
another's tools. The marker is a paused schedule that starts nothing: it is visible in the Web UI and lasts as long as
the namespace. Workers with a name or keys write it; other processes read it once.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import temporalio.client as temporal
from temporalio.api.common.v1 import Payload
from temporalio.api.namespace.v1 import UpdateNamespaceInfo
from temporalio.api.workflowservice.v1 import DescribeScheduleRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.errors import TemporalUnavailableError
from perdure.client.guard import guard_of
from perdure.codec import CODEC_KEYS_VARIABLE, UNREADABLE, AesGcmCodec, payload_key_id
from perdure.decisions.text.formatting import truncate
from perdure.process.supervisor import HOME

MARKER_TIMEOUT = timedelta(seconds=5)  # the answer usually takes milliseconds


@dataclass(frozen=True)
class _Marker:
    """`keys` is the proof of the key, encrypted; `project` the name of the queue's project."""

    keys: Payload | None = None
    project: str | None = None


def marker_id(task_queue: str) -> str:
    return f"perdure-queue:{task_queue}"


async def check_marker(
    client: temporal.Client,
    task_queue: str,
    codec: AesGcmCodec | None,
    has_worker: Callable[[], Awaitable[bool]],
    project: str | None = None,
) -> None:
    """Check that client and workers are of one project and can read each other's payloads. A client without a name is
    of any project. Raises TemporalUnavailableError.
    """
    marker = await _read_marker(client, task_queue, codec)
    if project is not None:
        _check_project(marker, task_queue, project)
    if marker.keys is not None:
        held = _read_key_ids(marker.keys, task_queue, codec)
        if codec is not None and codec.key_id not in held:
            raise TemporalUnavailableError(
                f"the workers of task queue {task_queue} hold {', '.join(held)} and cannot read key {codec.key_id}, "
                f"with which this process encrypts: add it to their {CODEC_KEYS_VARIABLE} first"
            )
    elif codec is not None and await has_worker():
        raise TemporalUnavailableError(
            f"the workers of task queue {task_queue} have no codec: "
            f"set {CODEC_KEYS_VARIABLE} for them first and restart them"
        )


async def set_marker(
    client: temporal.Client, task_queue: str, codec: AesGcmCodec | None, project: str | None = None
) -> None:
    """Check the queue's marker for a worker, and write it if the worker has other keys, or is the first with a name.
    Raises TemporalUnavailableError.
    """
    marker = await _read_marker(client, task_queue, codec)
    _check_project(marker, task_queue, project)
    held = _read_key_ids(marker.keys, task_queue, codec) if marker.keys is not None else ()
    if (codec is None or held == codec.key_ids) and project == marker.project:
        return
    schedule = _schedule(task_queue, codec, project)
    try:
        if marker != _Marker():
            await client.get_schedule_handle(marker_id(task_queue)).update(
                lambda _: temporal.ScheduleUpdate(schedule=schedule)
            )
        else:
            await client.create_schedule(marker_id(task_queue), schedule)
    except temporal.ScheduleAlreadyRunningError:
        if await _read_marker(client, task_queue, codec) == _Marker():
            raise TemporalUnavailableError(
                f"the schedule {marker_id(task_queue)} was not created by Perdure: delete it"
            ) from None
        await set_marker(client, task_queue, codec, project)  # another worker was faster; check its marker
    except RPCError as error:
        raise TemporalUnavailableError(
            f"cannot write the schedule {marker_id(task_queue)}, the marker of task queue {task_queue}: "
            f"{truncate(error.message)}"
        ) from None


def _schedule(task_queue: str, codec: AesGcmCodec | None, project: str | None) -> temporal.Schedule:
    """Return the marker. The name is in clear text; the key ids, encrypted by the client's codec, prove the key."""
    named = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps({"project": project}).encode())
    args: list[Any] = [*([named] if project else []), *([{"keys": codec.key_ids}] if codec else [])]
    facts = [f"Task queue {task_queue} is that of project {project}."] if project else []
    facts += [f"Payloads of task queue {task_queue} are encrypted, now with {codec.key_id}."] if codec else []
    return temporal.Schedule(
        action=temporal.ScheduleActionStartWorkflow(
            "QueueMarker", args=args, id=marker_id(task_queue), task_queue=task_queue
        ),
        spec=temporal.ScheduleSpec(),
        state=temporal.ScheduleState(paused=True, note=f"Never runs. {' '.join(facts)}"),
    )


async def _read_marker(client: temporal.Client, task_queue: str, codec: AesGcmCodec | None) -> _Marker:
    """Read the queue's marker. If it cannot be read, a process without keys continues without it."""
    request = DescribeScheduleRequest(namespace=client.namespace, schedule_id=marker_id(task_queue))
    try:
        # The server is busy if many processes start at once; the SDK retries.
        answer = await client.workflow_service.describe_schedule(request, retry=True, timeout=MARKER_TIMEOUT)
    except RPCError as error:
        if codec is None or error.status is RPCStatusCode.NOT_FOUND:
            return _Marker()
        raise TemporalUnavailableError(
            f"cannot read the schedule {marker_id(task_queue)}, which says whether task queue {task_queue} is "
            f"encrypted: {truncate(error.message)}"
        ) from None
    payloads = answer.schedule.action.start_workflow.input.payloads
    keys = next((payload for payload in payloads if payload_key_id(payload) is not None), None)
    return _Marker(keys, _read_project(payloads))


def _read_project(payloads: Sequence[Payload]) -> str | None:
    for payload in payloads:
        if payload.metadata.get("encoding") == b"json/plain":
            value = json.loads(payload.data)
            if isinstance(value, dict) and isinstance(value.get("project"), str):
                return str(value["project"])
    return None


def _check_project(marker: _Marker, task_queue: str, project: str | None) -> None:
    """Raise TemporalUnavailableError if the queue is that of another project."""
    if marker.project in (None, project):
        return
    this = f"this is project {project}" if project else "this one has no [project] name"
    raise TemporalUnavailableError(
        f"task queue {task_queue} is that of project {marker.project}, and {this}: set PERDURE_TASK_QUEUE to a queue "
        f"of its own, or [project] name to {marker.project} if it is the same"
    )


def _read_key_ids(marker: Payload, task_queue: str, codec: AesGcmCodec | None) -> tuple[str, ...]:
    """Return the key ids of the queue's workers. Raises TemporalUnavailableError if this process cannot read the
    marker.
    """
    key_id = payload_key_id(marker)
    if codec is None:
        raise TemporalUnavailableError(
            f"task queue {task_queue} is encrypted with key {key_id}: set {CODEC_KEYS_VARIABLE} to keys with it"
        )
    if key_id not in codec.key_ids:
        lost = f"if the key is lost, delete the schedule {marker_id(task_queue)}"
        raise TemporalUnavailableError(
            f"task queue {task_queue} is encrypted with key {key_id}, and {CODEC_KEYS_VARIABLE} has "
            f"{', '.join(codec.key_ids)}: add {key_id} ({lost})"
        )
    opened = codec.decrypt(marker)
    if opened.metadata.get("encoding") == UNREADABLE:
        raise TemporalUnavailableError(
            f"key {key_id} of {CODEC_KEYS_VARIABLE} is not the key {key_id} of task queue {task_queue}"
        )
    return tuple(json.loads(opened.data)["keys"])


PROJECT = "perdure.project"  # the key of the namespace's data for the name, beside `HOME`


async def name_server(client: Client, project: str | None) -> None:
    """Write the project's name into the namespace of its embedded server, if it has another."""
    if _owner(client).get(PROJECT, "") == (project or ""):
        return
    info = UpdateNamespaceInfo(data={PROJECT: project or ""})
    request = UpdateNamespaceRequest(namespace=client.namespace, update_info=info)
    await client.workflow_service.update_namespace(request, retry=True)


async def check_owner(client: Client, home: Path, project: str | None) -> None:
    """Raise TemporalUnavailableError if the server is the embedded one of another project, as it says now."""
    if guard := guard_of(client):
        await guard.ask_server()
    owner = _owner(client)
    theirs, name = owner.get(HOME), owner.get(PROJECT)
    if not theirs or theirs == str(home) or (name and name == project):
        return
    named = f" {name}" if name else ""
    raise TemporalUnavailableError(
        f"the Temporal server at {client.service_client.config.target_host} is the embedded one of another project"
        f"{named}, with its state in {theirs}: set TEMPORAL_ADDRESS to this project's server, or unset it"
    )


def _owner(client: Client) -> dict[str, str]:
    guard = guard_of(client)
    return dict(guard.namespace.namespace_info.data) if guard and guard.namespace else {}
