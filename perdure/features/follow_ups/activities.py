"""The activities of a follow-up: its start, its subscriptions, its messages, and the request that resumes the work."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.effects.ledger import Effects, InDoubt, LedgerEntry, LedgerUnavailableError
from perdure.activities.parts import WorkerParts
from perdure.activities.project import Project
from perdure.activities.run.status import read_snapshot
from perdure.activities.security import redact_model
from perdure.activities.storage.store import find_key_id
from perdure.activities.temporal import IgnoreMissing, cancel_own_workflow, own_workflow_id, submit_to_lane
from perdure.activities.tools.interface import TransientToolError
from perdure.contracts.conversation import LaneFault
from perdure.contracts.failures import Stop, ToolFault
from perdure.contracts.run.limits import Share
from perdure.contracts.tool import Effect, ToolOutcome, error_outcome
from perdure.decisions import ids
from perdure.decisions.errors import describe_exception
from perdure.decisions.text.formatting import escape_markdown, truncate
from perdure.features.follow_ups.contract import (
    CloseFollowUp,
    CreateCommand,
    Event,
    FollowUpCommands,
    FollowUpFailure,
    NotifyRequest,
    Outbound,
    ResumeWork,
    SubscribeRequest,
    Subscription,
    TaskCommand,
    TopicInput,
)
from perdure.features.follow_ups.outbox import ListedOutbox, Outbox, outbox_of
from perdure.features.follow_ups.rules.kinds import KINDS
from perdure.features.follow_ups.rules.tools import follow_up_share, format_command_ids, smaller_share
from perdure.features.follow_ups.rules.topic import event_id, event_size_error, topic_of


class NotAwaitedError(Exception):
    """No task can wait for this event, or it is too large. The message is the reason."""


async def signal_event(client: Client, task_queue: str, event: Event) -> str:
    """Signal an event to its topic. Return the topic's workflow id. Raises NotAwaitedError, RPCError."""
    key = topic_of(event)
    if key is None:
        raise NotAwaitedError("it replies to no message, so nothing awaits it")
    if problem := event_size_error(event):
        raise NotAwaitedError(f"{problem}: leave out what of `raw` is not needed")
    body = event.evolve(id=event_id(event))
    return await _signal_topic(client, task_queue, key, "event", body.model_dump(mode="json", exclude_none=True))


async def signal_subscription(client: Client, task_queue: str, key: str, subscription: Subscription) -> None:
    await _signal_topic(client, task_queue, key, "subscribe", subscription.model_dump(mode="json"))


async def _signal_topic(client: Client, task_queue: str, key: str, name: str, body: Mapping[str, Any]) -> str:
    workflow_id = ids.topic_workflow_id(key)
    await client.start_workflow(
        "EventTopic",
        TopicInput(key=key).model_dump(mode="json"),
        id=workflow_id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=escape_markdown(truncate(f"events of {key}", 200)),
        start_signal=name,
        start_signal_args=[body],
    )
    return workflow_id


NOTIFY = "notify"
MAX_SENDS = 8  # attempts at an outbox that honors keys, over about two minutes
FOR_EVER = (LaneFault.invalid_input, LaneFault.request_reused)  # permanent refusals
ACCEPTED_WITHIN = timedelta(seconds=20)
ASKED_WITHIN = timedelta(seconds=10)  # for the query of a run's remaining budget
MAY_BE_SENT = error_outcome(ToolFault.in_doubt, "its worker was lost while it was sent: it may have been sent, or not")


class FollowUps:
    def __init__(self, client: Client, project: Project) -> None:
        self._client = client
        self._project = project
        self._effects = Effects()

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.client, parts.project)

    @activity.defn
    async def command_follow_up(self, commands: FollowUpCommands) -> ToolOutcome:
        """Create a follow-up, add a task, or both. Repeating it changes nothing. The result holds the ids."""
        if commands.task is not None and (reason := self._outbox_rejection(commands.task)):
            return error_outcome(ToolFault.blocked, reason)
        if commands.create is not None:
            await self._start_follow_up(commands.create, commands.task)
        elif commands.task is not None and (reason := await self._submit_task(commands.task)):
            return error_outcome(ToolFault.invalid_arguments, reason)
        return ToolOutcome(result=format_command_ids(commands))

    def _outbox_rejection(self, task: TaskCommand) -> str | None:
        """Return the reason, if any, why the outbox will refuse the task's message, so that the model learns it now."""
        kind, outbox = KINDS[task.data.kind], outbox_of(self._project)
        if kind.sends is None or not isinstance(outbox, ListedOutbox):
            return None
        return outbox.rejection_reason(kind.sends(kind.input.model_validate(task.data.input)))

    async def _start_follow_up(self, create: CreateCommand, task: TaskCommand | None) -> None:
        create = create.evolve(answer_keys=dict(self._project.answer_keys))
        with suppress(WorkflowAlreadyStartedError):  # by an earlier attempt; it has ended by now
            await self._client.start_workflow(
                "FollowUp",
                _to_json(create),
                id=ids.follow_up_workflow_id(create.data.workflow_id),
                task_queue=activity.info().task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=escape_markdown(truncate(create.data.definition.summary, 200)),
                start_signal="task_create" if task else None,
                start_signal_args=[_to_json(task)] if task else [],
            )

    async def _submit_task(self, task: TaskCommand) -> str | None:
        """Submit the task. Return the reason if the follow-up rejects it."""
        workflow_id = task.data.workflow_id
        handle = self._client.get_workflow_handle(ids.follow_up_workflow_id(workflow_id))
        try:
            await handle.execute_update(
                "create_task", _to_json(task), id=task.data.task_id, rpc_timeout=ACCEPTED_WITHIN
            )
        except WorkflowUpdateFailedError as refused:
            return _refusal_text(refused)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            problem = "has ended: create another one" if "already completed" in error.message else "does not exist"
            return f"follow-up {workflow_id[:100]} {problem}"
        return None

    @activity.defn
    async def subscribe_task(self, request: SubscribeRequest) -> None:
        """Subscribe a task of the calling follow-up to a topic. Repeating it changes nothing."""
        subscription = Subscription(
            subscriber=own_workflow_id(), **request.model_dump(include={"task_id", "expires_at"})
        )
        await signal_subscription(self._client, activity.info().task_queue, request.topic, subscription)

    @activity.defn
    async def notify(self, request: NotifyRequest) -> ToolOutcome:
        """Send one message: once, or up to `MAX_SENDS` times if the outbox honors keys."""
        outbox = outbox_of(self._project)
        if outbox is None:
            return error_outcome(ToolFault.tool_error, "this worker's project has no outbox")
        key = ids.notify_key(await self._key_id(request.execution), request.task_id)
        async with heartbeating(lambda: key):
            if outbox.effect is Effect.once:
                return await self._send_once(outbox, request, key)
            return redact_model(await _send_keyed(outbox, request.message, key), self._project.secrets)

    async def _key_id(self, execution: str) -> str:
        """Return the follow-up's id for its keys, marked if an earlier follow-up had the same id."""
        workspace, store = self._project.workspace(own_workflow_id()), self._project.stores.of(own_workflow_id())
        key_id = await asyncio.to_thread(find_key_id, store, workspace, own_workflow_id(), execution)
        return (key_id or own_workflow_id()).removeprefix(ids.FOLLOW_UP_PREFIX)

    async def _send_once(self, outbox: Outbox, request: NotifyRequest, key: str) -> ToolOutcome:
        store, call = self._project.stores.of(own_workflow_id()), request.message.model_dump(mode="json")
        entry = LedgerEntry(store, key, request.number, execution=request.execution, call=ids.call_digest(NOTIFY, call))

        async def redact(outcome: ToolOutcome) -> ToolOutcome:
            return redact_model(outcome, self._project.secrets)

        try:
            outcome = await self._effects.run_once(
                entry, NOTIFY, outbox.timeout, lambda: outbox.send(request.message, key), redact
            )
        except (LedgerUnavailableError, OSError) as unavailable:
            raise ApplicationError(str(unavailable), type=Stop.not_begun) from None
        return MAY_BE_SENT if isinstance(outcome, InDoubt) else outcome

    @activity.defn
    async def resume_work(self, work: ResumeWork) -> None:
        """Submit the request that resumes the work. The lane recognizes a duplicate.

        A full lane is retried until it accepts; a permanent refusal is not retried.
        """
        seq = work.request.request_id.rpartition(":")[2]
        request_id = ids.resume_request_id(await self._key_id(work.execution), int(seq))
        share = smaller_share(work.request.share, await self._share_of(work.created_by))
        request = work.request.evolve(request_id=request_id, share=share)
        try:
            await submit_to_lane(self._client, activity.info().task_queue, work.session_id, request)
        except WorkflowUpdateFailedError as refused:
            raise ApplicationError(
                f"conversation {work.session_id} rejects the request: {_refusal_text(refused)}",
                type=FollowUpFailure.refused,
                non_retryable=isinstance(refused.cause, ApplicationError) and refused.cause.type in FOR_EVER,
            ) from None

    async def _share_of(self, run_id: str | None) -> Share | None:
        """Return the remaining share of the run that created the follow-up, if the run can be queried."""
        if run_id is None:
            return None
        handle = self._client.get_workflow_handle(ids.run_workflow_id(run_id))
        try:
            return follow_up_share((await read_snapshot(handle, ASKED_WITHIN)).state)
        except (RPCError, WorkflowQueryFailedError) as error:
            activity.logger.warning("run %s does not report its remaining share: %s", run_id, error)
            return None

    @activity.defn
    async def close_follow_up(self, request: CloseFollowUp) -> None:
        """End the follow-up's subscriptions; if requested, cancel its workflow with the server."""
        for task in request.subscriptions:
            ended = Subscription(subscriber=own_workflow_id(), task_id=task.task_id, expires_at=0)
            topic = self._client.get_workflow_handle(ids.topic_workflow_id(task.topic))
            with IgnoreMissing():
                await topic.signal("subscribe", ended.model_dump(mode="json"))
        if request.cancel is not None:
            await cancel_own_workflow(self._client, request.cancel)


async def _send_keyed(outbox: Outbox, message: Outbound, key: str) -> ToolOutcome:
    """Send a message with a key. Raises the failure to have it retried; after the last attempt it is the outcome."""
    try:
        return await outbox.send(message, key)
    except TransientToolError as passing:
        if activity.info().attempt >= MAX_SENDS:
            return error_outcome(passing.kind, passing.message)
        wait = None if passing.retry_after is None else timedelta(seconds=passing.retry_after)
        raise ApplicationError(passing.message, type=passing.kind, next_retry_delay=wait) from None
    except Exception as error:
        if activity.info().attempt >= MAX_SENDS:
            return error_outcome(ToolFault.tool_error, describe_exception(error))
        raise


def _refusal_text(refused: WorkflowUpdateFailedError) -> str:
    return refused.cause.message if isinstance(refused.cause, ApplicationError) else str(refused.cause)


def _to_json(command: CreateCommand | TaskCommand) -> dict[str, object]:
    return command.model_dump(mode="json", exclude_none=True)
