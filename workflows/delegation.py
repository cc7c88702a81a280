"""`Delegation`: a DAG of child runs, joined (D4, D5).

It asks `decisions.delegation` what is ready, starts it, and waits for the next end. A subtask that fails the whole
cancels the rest, and so does a cancel from outside; either way it ends only after all its runs have closed. It has few
events for each subtask, and never continues as new.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
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
from workflows.handlers import invalid, read
from workflows.policies import FILES
from workflows.watching import watch

NO_BUDGET = Collected(status=SubtaskStatus.failed, outcome="the budget was used up before it could start")


@workflow.defn
class Delegation:
    """Subtasks that a run hands to its peers.

    Input: a `DelegationRequest`. Result: a `DelegationState`, done or failed. Cancelled, it ends Canceled.
    """

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._halt = Halt()
        self._post = Post(self._halt)
        self._expired: list[str] = []
        try:
            self._asked: DelegationRequest | ApplicationError = _read(args)
        except ApplicationError as refused:
            self._asked = refused
        else:
            self._state = delegation.begun(self._asked)

    @workflow.run
    async def run(self, *args: Any) -> DelegationState:  # noqa: ARG002 - read by __init__; Temporal wants both alike
        await self._halt.outlast(self._work(self._request))
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        return self._state

    @property
    def _request(self) -> DelegationRequest:
        if isinstance(self._asked, ApplicationError):
            raise self._asked
        return self._asked

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
        """Everything that is ready goes on its way, with its share of what is left."""
        tasks = []
        while self._halt.reason is None and (ready := delegation.ready(request, self._state)):
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
        with suppress(ChildWorkflowError, asyncio.CancelledError):  # how it ended is collected
            await self._halt.stoppable(self._run_of(request, subtask, share))
        self._ended(request, subtask, await self._collected(request, subtask, share))

    def _ended(self, request: DelegationRequest, subtask: Subtask, end: Collected) -> None:
        if subtask.id in self._expired and end.status is SubtaskStatus.cancelled:
            end = end.model_copy(
                update={"status": SubtaskStatus.timed_out, "outcome": f"its time of {subtask.timeout} was used up"}
            )
        self._state = delegation.ended(request, self._state, subtask.id, end)
        if self._state.status is not DelegationStatus.running:
            self._halt.request(self._state.why or "one is done, which is all that was asked for")

    async def _run_of(self, request: DelegationRequest, subtask: Subtask, share: Share) -> None:
        """To the end of the subtask's run. Raises ChildWorkflowError where that is none of the good ones."""
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
        except WorkflowAlreadyStartedError:  # of this delegation, before somebody reset it
            await watch(workflow_id, f"wait for {subtask.id}, which was begun before")
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
        wanted = CollectRequest(
            run_id=ids.subtask_run_id(request.named, request.step, subtask.id),
            subtask=subtask.id,
            into=delegation.dependents(request, self._state, subtask.id),
            share=share,
            most=delegation.most_outcome(request),
        )
        collected: Collected = await workflow.execute_activity_method(
            Delegations.collect, wanted, summary=f"what {subtask.id} brought", **FILES
        )
        return collected

    @workflow.update(description="For mailboxes: a reply of a peer that lives outside")
    def reply(self, *args: Any) -> str:
        return self._post.take(self._request, self._state, read(MailReply, args))

    @reply.validator
    def _is_reply(self, *args: Any) -> None:
        self._request  # noqa: B018 - one that was refused awaits none
        read(MailReply, args)

    @workflow.query(description='What a peer outside is told: {"subtask_id"}')
    def message(self, *args: Any) -> str:
        asked = read(MessageQuery, args).subtask_id
        subtask = next((each for each in self._request.subtasks if each.id == asked), None)
        if subtask is None:
            raise invalid(f"there is no subtask {asked!r}")
        return delegation.message(self._request, self._state, subtask)

    @workflow.signal(dynamic=True)
    def unknown_signal(self, name: str, args: Sequence[RawValue]) -> None:  # noqa: ARG002 - Temporal's signature
        workflow.logger.warning("%s ignored: a delegation takes no signals; cancel it, or one of its runs", name[:80])

    @workflow.query(description="The subtasks: status, run, outcome, what each has used")
    def state(self, *_: Any) -> DelegationState:
        self._request  # noqa: B018 - one that was refused has no state
        return self._state


def _read(args: Sequence[Any]) -> DelegationRequest:
    """Raises ApplicationError `InvalidInput`: with subtasks that are no DAG there would be no end."""
    request = read(DelegationRequest, args)
    if wrong := delegation.no_dag(request.subtasks):
        raise invalid(wrong)
    return request
