"""`Delegation`: a DAG of child runs, joined (D4, D5).

It asks `decisions.delegation` for the subtasks that are ready, starts them, and waits for the next end. A subtask that
fails the delegation cancels the rest, and so does a cancel from outside; either way it ends only after all its runs
have closed. It has few events for each subtask, and never continues as new.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowHandle, ParentClosePolicy

from activities.delegation import Delegations
from contracts.delegation import (
    Assignment,
    Collected,
    CollectRequest,
    DelegationRequest,
    DelegationState,
    DelegationStatus,
    Share,
    Subtask,
    SubtaskStatus,
)
from contracts.mail.peers import MailReply, MessageQuery
from contracts.run.events import BeginEvent, StartPayload
from contracts.run.limits import LimitOverrides
from contracts.sender import DELEGATION
from decisions import delegation, ids
from decisions.text import formatting
from workflows.cancellation import Halt
from workflows.delegation_peers import Post
from workflows.execution import watch_or_cancel
from workflows.handlers import ValidatedWorkflow, invalid, read
from workflows.policies import FILES

NO_BUDGET = Collected(status=SubtaskStatus.failed, outcome="the budget was used up before it could start")


@workflow.defn
class Delegation(ValidatedWorkflow[DelegationRequest]):
    """Subtasks that a run hands to its peers.

    Input: a `DelegationRequest`. Result: a `DelegationState`, done or failed. Cancelled, it ends Canceled.
    """

    UNKNOWN_SIGNAL = "a delegation takes no signals; cancel it, or one of its runs"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        super().__init__(_read, args)
        self._cancellation = Halt()
        self._post = Post(self._cancellation)
        self._expired: list[str] = []
        with suppress(ApplicationError):  # a rejected start has no state
            self._state = delegation.begun(self.context)

    @workflow.run
    async def run(self, *args: Any) -> DelegationState:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        await self._cancellation.outlast(self._work(self.context))
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        return self._state

    async def _work(self, request: DelegationRequest) -> None:
        running: list[asyncio.Task[None]] = []
        while True:
            running += self._started(request)
            workflow.set_current_details(formatting.delegation_details(request, self._state))
            if not running:
                return
            ended, running = await workflow.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()

    def _started(self, request: DelegationRequest) -> list[asyncio.Task[None]]:
        """Start every subtask that is ready, with its share of the remaining budget."""
        tasks = []
        while self._cancellation.reason is None and (ready := delegation.ready(request, self._state)):
            share = delegation.next_share(request, self._state)
            if share is None:
                self._ended(request, ready[0], NO_BUDGET)
                continue
            self._state = delegation.started(self._state, ready[0].id, share)
            tasks.append(asyncio.create_task(self._make(request, ready[0], share)))
        return tasks

    async def _make(self, request: DelegationRequest, subtask: Subtask, share: Share) -> None:
        if subtask.agent in request.mailboxes:
            self._ended(request, subtask, await self._post.made(request, subtask))
            return
        with suppress(ChildWorkflowError, asyncio.CancelledError):  # its end is collected
            await self._cancellation.stoppable(self._run_of(request, subtask, share))
        self._ended(request, subtask, await self._collected(request, subtask, share))

    def _ended(self, request: DelegationRequest, subtask: Subtask, end: Collected) -> None:
        if subtask.id in self._expired and end.status is SubtaskStatus.cancelled:
            end = end.model_copy(
                update={"status": SubtaskStatus.timed_out, "outcome": f"its time of {subtask.timeout} was used up"}
            )
        self._state = delegation.ended(request, self._state, subtask.id, end)
        if self._state.status is not DelegationStatus.running:
            self._cancellation.request(self._state.why or "one is done, which is all that was asked for")

    async def _run_of(self, request: DelegationRequest, subtask: Subtask, share: Share) -> None:
        """Run the subtask to its end. Raises ChildWorkflowError if it does not complete."""
        assignment = Assignment(by=request.run_id, depth=request.depth + 1, share=share)
        goal = delegation.message(request, self._state, subtask)
        limits = LimitOverrides(max_depth=request.max_depth)
        workflow_id = ids.run_workflow_id(ids.subtask_run_id(request.named, request.step, subtask.id))
        try:
            child = await workflow.start_child_workflow(
                "AgentRun",
                BeginEvent(
                    type="agentic.begin",
                    payload=StartPayload(goal=goal, agent=subtask.agent, limits=limits),
                    assignment=assignment,
                    sender=DELEGATION,
                ),
                id=workflow_id,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
                static_summary=formatting.cut(f"{subtask.id} · {subtask.agent} · {subtask.instructions}", 200),
            )
        except WorkflowAlreadyStartedError:  # by this delegation, before it was reset
            await watch_or_cancel(workflow_id, f"wait for {subtask.id}, which was begun before")
            return
        expiry = asyncio.create_task(self._expire(subtask, child)) if subtask.timeout else None
        try:
            await child
        finally:
            if expiry is not None:
                expiry.cancel()

    async def _expire(self, subtask: Subtask, child: ChildWorkflowHandle[Any, Any]) -> None:
        await workflow.sleep(subtask.timeout or 0, summary=f"the time of {subtask.id}")
        self._expired.append(subtask.id)
        child.cancel()

    async def _collected(self, request: DelegationRequest, subtask: Subtask, share: Share) -> Collected:
        collect = CollectRequest(
            run_id=ids.subtask_run_id(request.named, request.step, subtask.id),
            subtask=subtask.id,
            into=delegation.dependents(request, self._state, subtask.id),
            share=share,
            most=delegation.most_outcome(request),
        )
        return await workflow.execute_activity_method(
            Delegations.collect, collect, summary=f"what {subtask.id} brought", **FILES
        )

    @workflow.update(description="For mailboxes: a reply of an external peer")
    def reply(self, *args: Any) -> str:
        return self._post.take(self.context, self._state, read(MailReply, args))

    @reply.validator
    def _is_reply(self, *args: Any) -> None:
        self.context  # noqa: B018 - a rejected start takes no reply
        read(MailReply, args)

    @workflow.query(description='The message to an external peer: {"subtask_id"}')
    def message(self, *args: Any) -> str:
        asked = read(MessageQuery, args).subtask_id
        subtask = next((subtask for subtask in self.context.subtasks if subtask.id == asked), None)
        if subtask is None:
            raise invalid(f"there is no subtask {asked!r}")
        return delegation.message(self.context, self._state, subtask)

    @workflow.query(description="The subtasks: status, run, outcome, usage")
    def state(self, *_: Any) -> DelegationState:
        self.context  # noqa: B018 - a rejected start has no state
        return self._state


def _read(args: Sequence[Any]) -> DelegationRequest:
    """Return the request. Raises ApplicationError `InvalidInput`, also if the subtasks are no DAG: they never end."""
    request = read(DelegationRequest, args)
    if reason := delegation.no_dag(request.subtasks):
        raise invalid(reason)
    return request
