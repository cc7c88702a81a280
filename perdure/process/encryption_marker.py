"""The encryption marker of a task queue: it says that payloads are encrypted, and which keys the workers hold.

A process with a missing or different key fails at its start, before runs get stuck. The marker is a paused schedule
that starts nothing: it is visible in the Web UI and lasts as long as the namespace. Workers with keys write it; other
processes read it once.
"""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import DescribeScheduleRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
)
from temporalio.service import RPCError, RPCStatusCode

from decisions.text.formatting import cut
from perdure.client.errors import NotReachable
from perdure.codec import UNREADABLE, VARIABLE, AesGcmCodec, key_id_of

PATIENCE = timedelta(seconds=5)  # the answer usually takes milliseconds


def seal_id(task_queue: str) -> str:
    return f"perdure-codec:{task_queue}"


async def check(
    client: Client, task_queue: str, codec: AesGcmCodec | None, has_worker: Callable[[], Awaitable[bool]]
) -> None:
    """Check that this client and the queue's workers can read each other's payloads. Raises NotReachable."""
    marker = await _found(client, task_queue, codec)
    if marker is not None:
        held = _held(marker, task_queue, codec)
        if codec is not None and codec.key_id not in held:
            raise NotReachable(
                f"the workers of task queue {task_queue} hold {', '.join(held)} and cannot read key {codec.key_id}, "
                f"with which this process encrypts: add it to their {VARIABLE} first"
            )
    elif codec is not None and await has_worker():
        raise NotReachable(
            f"the workers of task queue {task_queue} have no codec: set {VARIABLE} for them first and restart them"
        )


async def affix(client: Client, task_queue: str, codec: AesGcmCodec | None) -> None:
    """Check the queue's marker for a worker, and write it if the worker has other keys. Raises NotReachable."""
    marker = await _found(client, task_queue, codec)
    held = _held(marker, task_queue, codec) if marker is not None else ()
    if codec is None or held == codec.key_ids:
        return
    schedule = _seal(task_queue, codec)
    try:
        if held:
            await client.get_schedule_handle(seal_id(task_queue)).update(lambda _: ScheduleUpdate(schedule=schedule))
        else:
            await client.create_schedule(seal_id(task_queue), schedule)
    except ScheduleAlreadyRunningError:
        if await _found(client, task_queue, codec) is None:
            raise NotReachable(f"the schedule {seal_id(task_queue)} was not created by Perdure: delete it") from None
        await affix(client, task_queue, codec)  # another worker was faster; check its marker
    except RPCError as error:
        raise NotReachable(
            f"cannot write the schedule {seal_id(task_queue)}, which marks task queue {task_queue} as encrypted: "
            f"{cut(error.message, 200)}"
        ) from None


async def _found(client: Client, task_queue: str, codec: AesGcmCodec | None) -> Payload | None:
    """Read the queue's marker. If it cannot be read, a process without keys continues without it."""
    request = DescribeScheduleRequest(namespace=client.namespace, schedule_id=seal_id(task_queue))
    try:
        # The server is busy if many processes start at once; the SDK retries.
        answer = await client.workflow_service.describe_schedule(request, retry=True, timeout=PATIENCE)
    except RPCError as error:
        if codec is None or error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise NotReachable(
            f"cannot read the schedule {seal_id(task_queue)}, which says whether task queue {task_queue} is encrypted: "
            f"{cut(error.message, 200)}"
        ) from None
    payloads = answer.schedule.action.start_workflow.input.payloads
    return payloads[0] if payloads and key_id_of(payloads[0]) is not None else None


def _held(marker: Payload, task_queue: str, codec: AesGcmCodec | None) -> tuple[str, ...]:
    """Return the key ids of the queue's workers. Raises NotReachable if this process cannot read the marker."""
    key_id = key_id_of(marker)
    if codec is None:
        raise NotReachable(f"task queue {task_queue} is encrypted with key {key_id}: set {VARIABLE} to keys with it")
    if key_id not in codec.key_ids:
        lost = f"if the key is lost, delete the schedule {seal_id(task_queue)}"
        raise NotReachable(
            f"task queue {task_queue} is encrypted with key {key_id}, and {VARIABLE} has {', '.join(codec.key_ids)}: "
            f"add {key_id} ({lost})"
        )
    opened = codec.opened(marker)
    if opened.metadata.get("encoding") == UNREADABLE:
        raise NotReachable(f"key {key_id} of {VARIABLE} is not the key {key_id} of task queue {task_queue}")
    return tuple(json.loads(opened.data)["keys"])


def _seal(task_queue: str, codec: AesGcmCodec) -> Schedule:
    """Return the schedule. Its argument, encrypted by the client's codec, proves the key; the note is for people."""
    return Schedule(
        action=ScheduleActionStartWorkflow(
            "CodecSeal", {"keys": codec.key_ids}, id=seal_id(task_queue), task_queue=task_queue
        ),
        spec=ScheduleSpec(),
        state=ScheduleState(
            paused=True, note=f"Never runs. Payloads of task queue {task_queue} are encrypted, now with {codec.key_id}."
        ),
    )
