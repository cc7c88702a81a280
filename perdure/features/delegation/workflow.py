"""`Delegation`: a DAG of child runs, joined (D4, D5).

It asks `perdure.features.delegation.rules` for the subtasks that are ready, starts them, and waits for the next end. A
subtask that fails the delegation cancels the rest, and so does a cancel from outside; either way it ends only after all
its runs have closed. It has few events for each subtask, and never continues as new. A subtask of an external peer is a
message to its folder, and ends with the reply.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from perdure.contracts.people import DELEGATION
from perdure.contracts.run.events import BeginEvent, StartPayload
from perdure.contracts.run.limits import Assignment, LimitOverrides, Share, SubtaskStatus
from perdure.decisions import ids
from perdure.decisions.text import formatting
from perdure.features.delegation import rules as delegation
from perdure.features.delegation.activities import Delegations
from perdure.features.delegation.contract import (
    Collected,
    CollectRequest,
    DelegationRequest,
    DelegationState,
    DelegationStatus,
    Subtask,
)
from perdure.features.mailbox.contract import MailDispatch, MailReply, MessageQuery, ReplyVerdict
from perdure.workflows.execution import FILES, MAILING, WITHDRAWING, Cancellation, watch_or_cancel
from perdure.workflows.handlers import ValidatedWorkflow, invalid_input, read_argument
from perdure.workflows.search_attributes import ShownAttributes

NO_BUDGET = Collected(status=SubtaskStatus.failed, outcome="the budget was used up before it could start")

SENDING_GRACE = 10  # seconds in which a subtask that has its reply is known to be written, if it is


@workflow.defn
class Delegation(ValidatedWorkflow[DelegationRequest]):
    """Subtasks that a run hands to its peers.

    Input: a `DelegationRequest`. Result: a `DelegationState`, done or failed. Cancelled, it ends Canceled.
    """

    UNKNOWN_SIGNAL = "a delegation takes no signals; cancel it, or one of its runs"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        super().__init__(_read_request, args)
        self._cancellation = Cancellation()
        self._attributes = ShownAttributes()
        self._replies: dict[str, MailReply] = {}  # of external peers
        self._expired: list[str] = []
        with suppress(ApplicationError):  # a rejected start has no state
            self._state = delegation.begin_delegation(self.context)

    @workflow.run
    async def run(self, *args: Any) -> DelegationState:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        await self._cancellation.shield(self._run_loop(self.context))
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        return self._state

    async def _run_loop(self, request: DelegationRequest) -> None:
        running: list[asyncio.Task[None]] = []
        while True:
            running += self._start_ready(request)
            workflow.set_current_details(delegation.delegation_details(request, self._state))
            if not running:
                return
            ended, running = await workflow.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()

    def _start_ready(self, request: DelegationRequest) -> list[asyncio.Task[None]]:
        """Start every subtask that is ready, with its share of the remaining budget."""
        tasks = []
        while self._cancellation.reason is None and (ready := delegation.ready_subtasks(request, self._state)):
            share = delegation.next_share(request, self._state)
            if share is None:
                self._end_subtask(request, ready[0], NO_BUDGET)
                continue
            self._state = delegation.start_subtask(self._state, ready[0].id, share)
            tasks.append(asyncio.create_task(self._run_subtask(request, ready[0], share)))
        return tasks

    async def _run_subtask(self, request: DelegationRequest, subtask: Subtask, share: Share) -> None:
        if subtask.agent in request.mailboxes:
            self._end_subtask(request, subtask, await self._run_outside(request, subtask))
            return
        with suppress(ChildWorkflowError, asyncio.CancelledError):  # its end is collected
            await self._cancellation.cancellable(self._run_child(request, subtask, share))
        self._end_subtask(request, subtask, await self._collect_outcome(request, subtask, share))

    def _end_subtask(self, request: DelegationRequest, subtask: Subtask, end: Collected) -> None:
        if subtask.id in self._expired and end.status is SubtaskStatus.cancelled:
            late = _timed_out(subtask)
            end = end.evolve(status=late.status, outcome=late.outcome)
        self._state = delegation.end_subtask(request, self._state, subtask.id, end)
        if self._state.status is not DelegationStatus.running:
            self._cancellation.request(self._state.why or "one is done, which is all that was asked for")

    async def _run_child(self, request: DelegationRequest, subtask: Subtask, share: Share) -> None:
        """Run the subtask to its end. Raises ChildWorkflowError if it does not complete."""
        assignment = Assignment(by=request.run_id, depth=request.depth + 1, share=share)
        goal = delegation.peer_message(request, self._state, subtask)
        limits = LimitOverrides(max_depth=request.max_depth)
        workflow_id = ids.run_workflow_id(ids.subtask_run_id(request.id_base, request.step, subtask.id))
        payload = StartPayload(
            goal=goal, agent=subtask.agent, limits=limits, output_schema=subtask.output_schema, quiet=request.quiet
        )
        work = delegation.work_of_subtask(request, subtask)
        try:
            child = await workflow.start_child_workflow(
                "AgentRun",
                BeginEvent(type="agentic.begin", payload=payload, assignment=assignment, work=work, sender=DELEGATION),
                id=workflow_id,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                search_attributes=self._attributes.of_child(payload),
                static_summary=formatting.truncate(f"{subtask.id} · {subtask.agent} · {subtask.instructions}", 200),
            )
        except WorkflowAlreadyStartedError:  # by this delegation, before it was reset
            await watch_or_cancel(workflow_id, f"wait for {subtask.id}, which was begun before")
            return
        expiry = asyncio.create_task(self._expire_child(subtask, child)) if subtask.timeout else None
        try:
            await child
        finally:
            if expiry is not None:
                expiry.cancel()

    async def _expire_child(self, subtask: Subtask, child: ChildWorkflowHandle[Any, Any]) -> None:
        await workflow.sleep(subtask.timeout or 0, summary=f"the time of {subtask.id}")
        self._expired.append(subtask.id)
        child.cancel()

    async def _collect_outcome(self, request: DelegationRequest, subtask: Subtask, share: Share) -> Collected:
        collect = CollectRequest(
            run_id=ids.subtask_run_id(request.id_base, request.step, subtask.id),
            subtask=subtask.id,
            into=delegation.dependent_runs(request, self._state, subtask.id),
            share=share,
            most=delegation.max_outcome(request),
        )
        return await workflow.execute_activity_method(
            Delegations.collect, collect, summary=f"what {subtask.id} brought", **FILES
        )

    async def _run_outside(self, request: DelegationRequest, subtask: Subtask) -> Collected:
        """Send the subtask to its peer's folder and wait for its reply. Withdraw a subtask without a reply."""
        if request.quiet:
            return Collected(status=SubtaskStatus.failed, outcome="not sent: a trial sends no mail")
        sending = asyncio.create_task(_send_subtask(request, subtask))
        end = await self._wait_for_end(subtask)
        reply = self._replies.get(subtask.id)
        if reply is not None and not sending.done():  # whoever replied has read the file: its writing is about to end
            await workflow.wait([sending], timeout=SENDING_GRACE)
        is_sent = sending.done()
        sending.cancel()
        await workflow.wait([sending])
        if is_sent and (reply is None or reply.mailbox != subtask.agent):  # a reply in its folder ends it there
            await _withdraw_subtask(request, subtask)
        reply = self._replies.get(subtask.id)  # its sender got the verdict that it counts
        return delegation.collect_reply(request, reply) if reply is not None else end

    async def _wait_for_end(self, subtask: Subtask) -> Collected:
        """Wait for the reply. Return the subtask's end without one."""
        limit = None if subtask.timeout is None else subtask.timeout.total_seconds()
        try:
            await self._cancellation.cancellable(self._wait_for_reply(subtask, limit))
        except TimeoutError:
            return _timed_out(subtask)
        except asyncio.CancelledError:
            pass
        return Collected(status=SubtaskStatus.cancelled, outcome="it was cancelled")

    async def _wait_for_reply(self, subtask: Subtask, limit: float | None) -> None:
        await workflow.wait_condition(
            lambda: subtask.id in self._replies,
            timeout=limit,
            timeout_summary=formatting.truncate(f"the reply of {subtask.agent} about {subtask.id}", 200),
        )

    @workflow.update(description="For mailboxes: a reply of an external peer")
    def reply(self, *args: Any) -> str:
        """Judge a reply, and store the first valid one."""
        reply = read_argument(MailReply, args)
        verdict = delegation.judge_reply(self.context, self._state, reply)
        if verdict is ReplyVerdict.resolved and self._replies.setdefault(reply.subtask_id, reply) is not reply:
            return ReplyVerdict.already_done
        return verdict

    @reply.validator
    def _is_reply(self, *args: Any) -> None:
        self.context  # noqa: B018 - a rejected start takes no reply
        read_argument(MailReply, args)

    @workflow.query(description='The message to an external peer: {"subtask_id"}')
    def message(self, *args: Any) -> str:
        asked = read_argument(MessageQuery, args).subtask_id
        subtask = next((subtask for subtask in self.context.subtasks if subtask.id == asked), None)
        if subtask is None:
            raise invalid_input(f"there is no subtask {asked!r}")
        return delegation.peer_message(self.context, self._state, subtask)

    @workflow.query(description="The subtasks: status, run, outcome, usage")
    def state(self, *_: Any) -> DelegationState:
        self.context  # noqa: B018 - a rejected start has no state
        return self._state


def _timed_out(subtask: Subtask) -> Collected:
    return Collected(status=SubtaskStatus.timed_out, outcome=f"its time of {subtask.timeout} was used up")


async def _send_subtask(request: DelegationRequest, subtask: Subtask) -> None:
    """Have a bridge of the peer's folder write the subtask, however long none is running."""
    with suppress(ActivityError, asyncio.CancelledError):  # its end is that of the wait for the reply
        await workflow.execute_activity(
            "dispatch_mail",
            _mail_of(request, subtask),
            task_queue=ids.mail_queue(subtask.agent),
            summary=formatting.truncate(f"send {subtask.id} · {subtask.agent}", 200),
            **MAILING,
        )


async def _withdraw_subtask(request: DelegationRequest, subtask: Subtask) -> None:
    """Withdraw the subtask, if a bridge of the peer's folder is running. Later ones look for themselves."""
    with suppress(ActivityError):
        await workflow.execute_activity(
            "withdraw_mail",
            _mail_of(request, subtask),
            task_queue=ids.mail_queue(subtask.agent),
            summary=formatting.truncate(f"take back {subtask.id} · {subtask.agent}", 200),
            **WITHDRAWING,
        )


def _mail_of(request: DelegationRequest, subtask: Subtask) -> MailDispatch:
    return MailDispatch(
        delegation=workflow.info().workflow_id,
        plan_id=request.id_base,
        task_id=ids.delegated_task_id(request.id_base, request.step),
        subtask_id=subtask.id,
        sender=request.agent,
    )


def _read_request(args: Sequence[Any]) -> DelegationRequest:
    """Return the request. Raises ApplicationError `InvalidInput`, also if the subtasks are no DAG: they never end."""
    request = read_argument(DelegationRequest, args)
    if reason := delegation.dag_error(request.subtasks):
        raise invalid_input(reason)
    return request
