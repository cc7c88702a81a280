"""The encryption marker of a task queue: it says that payloads are encrypted, and which keys the workers hold.

A process with a missing or different key fails at its start, before runs get stuck. The marker is a paused schedule
that starts nothing: it is visible in the Web UI and lasts as long as the namespace. Workers with keys write it; other
processes read it once.
"""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta

import temporalio.client as temporal
from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import DescribeScheduleRequest
from temporalio.service import RPCError, RPCStatusCode

from decisions.text.formatting import truncate
from perdure.client.errors import TemporalUnavailableError
from perdure.codec import CODEC_KEYS_VARIABLE, UNREADABLE, AesGcmCodec, payload_key_id

MARKER_TIMEOUT = timedelta(seconds=5)  # the answer usually takes milliseconds


def marker_id(task_queue: str) -> str:
    return f"perdure-codec:{task_queue}"


async def check_encryption(
    client: temporal.Client, task_queue: str, codec: AesGcmCodec | None, has_worker: Callable[[], Awaitable[bool]]
) -> None:
    """Check that client and workers can read each other's payloads. Raises TemporalUnavailableError."""
    marker = await _read_marker(client, task_queue, codec)
    if marker is not None:
        held = _read_key_ids(marker, task_queue, codec)
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


async def set_marker(client: temporal.Client, task_queue: str, codec: AesGcmCodec | None) -> None:
    """Check the queue's marker for a worker, and write it if the worker has other keys. Raises
    TemporalUnavailableError.
    """
    marker = await _read_marker(client, task_queue, codec)
    held = _read_key_ids(marker, task_queue, codec) if marker is not None else ()
    if codec is None or held == codec.key_ids:
        return
    schedule = temporal.Schedule(
        # The argument, encrypted by the client's codec, proves the key; the note is for people.
        action=temporal.ScheduleActionStartWorkflow(
            "CodecSeal", {"keys": codec.key_ids}, id=marker_id(task_queue), task_queue=task_queue
        ),
        spec=temporal.ScheduleSpec(),
        state=temporal.ScheduleState(
            paused=True, note=f"Never runs. Payloads of task queue {task_queue} are encrypted, now with {codec.key_id}."
        ),
    )
    try:
        if held:
            await client.get_schedule_handle(marker_id(task_queue)).update(
                lambda _: temporal.ScheduleUpdate(schedule=schedule)
            )
        else:
            await client.create_schedule(marker_id(task_queue), schedule)
    except temporal.ScheduleAlreadyRunningError:
        if await _read_marker(client, task_queue, codec) is None:
            raise TemporalUnavailableError(
                f"the schedule {marker_id(task_queue)} was not created by Perdure: delete it"
            ) from None
        await set_marker(client, task_queue, codec)  # another worker was faster; check its marker
    except RPCError as error:
        raise TemporalUnavailableError(
            f"cannot write the schedule {marker_id(task_queue)}, which marks task queue {task_queue} as encrypted: "
            f"{truncate(error.message, 200)}"
        ) from None


async def _read_marker(client: temporal.Client, task_queue: str, codec: AesGcmCodec | None) -> Payload | None:
    """Read the queue's marker. If it cannot be read, a process without keys continues without it."""
    request = DescribeScheduleRequest(namespace=client.namespace, schedule_id=marker_id(task_queue))
    try:
        # The server is busy if many processes start at once; the SDK retries.
        answer = await client.workflow_service.describe_schedule(request, retry=True, timeout=MARKER_TIMEOUT)
    except RPCError as error:
        if codec is None or error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise TemporalUnavailableError(
            f"cannot read the schedule {marker_id(task_queue)}, which says whether task queue {task_queue} is "
            f"encrypted: {truncate(error.message, 200)}"
        ) from None
    payloads = answer.schedule.action.start_workflow.input.payloads
    return payloads[0] if payloads and payload_key_id(payloads[0]) is not None else None


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
