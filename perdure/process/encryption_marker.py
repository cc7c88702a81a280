"""The seal of a task queue says that what passes through it is encrypted, and which keys its workers hold.

Whoever has no key, or another one, learns it at the start and not from runs that get stuck. The seal is kept in
Temporal itself, as a paused schedule that never starts anything: people see it in the Web UI, and it lasts as long as
the namespace. Workers with keys set it; everybody else only looks, once.
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

PATIENCE = timedelta(seconds=5)  # for an answer that takes milliseconds


def seal_id(task_queue: str) -> str:
    return f"perdure-codec:{task_queue}"


async def check(
    client: Client, task_queue: str, codec: AesGcmCodec | None, has_worker: Callable[[], Awaitable[bool]]
) -> None:
    """That this client and the workers of the queue can read each other. Raises NotReachable."""
    found = await _found(client, task_queue, codec)
    if found is not None:
        _must_hold(codec, _held(found, task_queue, codec), task_queue)
    elif codec is not None and await has_worker():
        raise NotReachable(
            f"the workers of task queue {task_queue} have no codec: set {VARIABLE} for them first, and start them again"
        )


async def affix(client: Client, task_queue: str, codec: AesGcmCodec | None) -> None:
    """Checks the queue's seal for a worker, and sets or renews it where the worker has keys. Raises NotReachable."""
    found = await _found(client, task_queue, codec)
    held = _held(found, task_queue, codec) if found is not None else ()
    if codec is None or held == codec.key_ids:
        return
    seal = _seal(task_queue, codec)
    try:
        if held:
            await client.get_schedule_handle(seal_id(task_queue)).update(lambda _: ScheduleUpdate(schedule=seal))
        else:
            await client.create_schedule(seal_id(task_queue), seal)
    except ScheduleAlreadyRunningError:
        if await _found(client, task_queue, codec) is None:
            raise NotReachable(f"the schedule {seal_id(task_queue)} is none of Perdure's: delete it") from None
        await affix(client, task_queue, codec)  # another worker was faster; its seal holds for this one too
    except RPCError as error:
        raise NotReachable(
            f"the schedule {seal_id(task_queue)}, which tells others that task queue {task_queue} is encrypted, "
            f"cannot be written: {cut(error.message, 200)}"
        ) from None


async def _found(client: Client, task_queue: str, codec: AesGcmCodec | None) -> Payload | None:
    """The queue's seal. Where it cannot be read, those who encrypt nothing go on as if there were none."""
    asked = DescribeScheduleRequest(namespace=client.namespace, schedule_id=seal_id(task_queue))
    try:
        # Many that start at once make the server say that it is busy; the SDK asks again.
        answer = await client.workflow_service.describe_schedule(asked, retry=True, timeout=PATIENCE)
    except RPCError as error:
        if codec is None or error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise NotReachable(
            f"whether task queue {task_queue} is encrypted cannot be told, as the schedule {seal_id(task_queue)} "
            f"cannot be read: {cut(error.message, 200)}"
        ) from None
    payloads = answer.schedule.action.start_workflow.input.payloads
    return payloads[0] if payloads and key_id_of(payloads[0]) is not None else None


def _held(seal: Payload, task_queue: str, codec: AesGcmCodec | None) -> tuple[str, ...]:
    """The ids of the keys that the queue's workers hold. Raises NotReachable where it takes a key that is not here."""
    key_id = key_id_of(seal)
    if codec is None:
        raise NotReachable(f"task queue {task_queue} is encrypted with key {key_id}: set {VARIABLE} to keys with it")
    if key_id not in codec.key_ids:
        gone = f"if it is gone for good, delete the schedule {seal_id(task_queue)}"
        raise NotReachable(
            f"task queue {task_queue} is encrypted with key {key_id}, and {VARIABLE} has {', '.join(codec.key_ids)}: "
            f"add {key_id} ({gone})"
        )
    opened = codec.opened(seal)
    if opened.metadata.get("encoding") == UNREADABLE:
        raise NotReachable(f"key {key_id} of {VARIABLE} is not the key {key_id} of task queue {task_queue}")
    return tuple(json.loads(opened.data)["keys"])


def _must_hold(codec: AesGcmCodec | None, held: tuple[str, ...], task_queue: str) -> None:
    if codec is not None and codec.key_id not in held:
        raise NotReachable(
            f"the workers of task queue {task_queue} hold {', '.join(held)} and cannot read key {codec.key_id}, "
            f"which encrypts here: add it to their {VARIABLE} first"
        )


def _seal(task_queue: str, codec: AesGcmCodec) -> Schedule:
    """The argument, encrypted by the client's own codec, is what proves a key; the note is for people."""
    return Schedule(
        action=ScheduleActionStartWorkflow(
            "CodecSeal", {"keys": codec.key_ids}, id=seal_id(task_queue), task_queue=task_queue
        ),
        spec=ScheduleSpec(),
        state=ScheduleState(
            paused=True, note=f"Never runs. Payloads of task queue {task_queue} are encrypted, now with {codec.key_id}."
        ),
    )
