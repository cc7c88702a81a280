"""Mailboxes: messages, and scripted bridges that deliver them and carry out tasks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from temporalio import activity
from temporalio.client import WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from contracts.conversation import TurnEnd
from contracts.mail.commands import BridgeBatch, BridgeResult, BridgeResults, BridgeTask
from contracts.mail.delivery import InboxMessage
from contracts.mail.mailbox import DeadLetter, Delivered, DeliverRequest, Delivery, MailboxView, TurnEnded
from contracts.mail.message import TaskHead
from decisions import ids
from decisions.mailbox.delivery import run_of
from tests.workflows.conftest import Run, World


def new_agent() -> str:
    return f"agent-{uuid4().hex[:8]}"


def message(
    name: str, *, plan: str = "p", task: str = "", file: str = "", content: str = "a", **fields: Any
) -> Delivery:
    head = {"type": "task", "message_id": name, "plan_id": plan, "task_id": task or f"t-{name}", "from": "bob"}
    return Delivery(
        file=file or f"{name}.md",
        plan=plan,
        sha256=ids.message_key(name, content) + "0" * 44,
        head=TaskHead.model_validate(head),
        **fields,
    )


def turn_ended(agent: str, letter: InboxMessage, end: TurnEnd = TurnEnd.completed) -> dict[str, Any]:
    """The signal of a lane that the run of a message has ended."""
    request_id = ids.mail_request_id(letter.key, letter.attempt)
    run_id = run_of(agent, letter.task, letter.key, letter.attempt)
    return TurnEnded(request_id=request_id, run_id=run_id, end=end).model_dump(mode="json")


class FakeBridge:
    """A scripted bridge. Each task it takes ends at once, in the way `ends` says, or stays open if that is None."""

    def __init__(self, it: World, agent: str, folder: str | None = None) -> None:
        self.it = it
        self.agent = agent
        self.folder = folder or f"folder-{uuid4().hex[:8]}"
        self.orders: list[BridgeTask] = []
        self.at_a_time: list[int] = []
        self.at_once = self.most_at_once = 0
        self.ends: TurnEnd | None = TurnEnd.completed
        self.answers: dict[str, Callable[[BridgeTask], BridgeResult]] = {}
        self.failures: list[Exception] = []
        self.raw: list[Any] = []  # answered instead
        self.gate = asyncio.Event()
        self.gate.set()
        it.started.append(ids.mailbox_workflow_id(agent))

    @property
    def box(self) -> Run:
        return self.it.client.get_workflow_handle(ids.mailbox_workflow_id(self.agent))

    def done(self, *kinds: str) -> list[tuple[str, str]]:
        """The orders that came, of these kinds where some are named: the kind, and the file."""
        return [(str(each.kind), each.letter.file) for each in self.orders if not kinds or each.kind in kinds]

    @activity.defn(name="carry")
    async def carry(self, request: BridgeBatch) -> Any:
        self.at_a_time.append(len(request.orders))
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            return await self._carried(request)
        finally:
            self.at_once -= 1

    async def _carried(self, request: BridgeBatch) -> Any:
        while not self.gate.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.05)
        if self.failures:
            raise self.failures.pop(0)
        if self.raw:
            return self.raw.pop(0)
        self.orders += request.orders
        return BridgeResults(done=tuple(await asyncio.gather(*map(self._one, request.orders))))

    async def _one(self, order: BridgeTask) -> BridgeResult:
        if (answer := self.answers.get(order.kind)) is not None:
            return answer(order)
        letter = order.letter
        if order.kind != "take":
            return BridgeResult()
        if self.ends is not None:
            await self.box.signal("turn_ended", turn_ended(self.agent, letter, self.ends))
        run_id = run_of(self.agent, letter.task, letter.key, letter.attempt)
        return BridgeResult(run_id=run_id, at=datetime.now(UTC))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        client = await self.it.another_client()
        worker = Worker(
            client,
            task_queue=ids.mail_queue(self.folder),
            activities=[self.carry],
            max_heartbeat_throttle_interval=timedelta(seconds=0.2),  # a heartbeat delivers a cancel
        )
        async with worker:
            yield

    async def deliver(self, *deliveries: Delivery) -> list[str]:
        """Until the mailbox answers: one that continues as new just then fails the call."""
        request = DeliverRequest(folder=self.folder, deliveries=deliveries)
        for _ in range(200):
            try:
                answer: Delivered = await self._update(request)
            except RPCError as error:
                if error.status is not RPCStatusCode.FAILED_PRECONDITION:
                    raise
                await asyncio.sleep(0.05)
            else:
                return [str(each) for each in answer.verdicts]
        raise AssertionError("the mailbox takes nothing")

    async def deliver_all(self, *deliveries: Delivery) -> None:
        """Until each is admitted: what finds no room is brought again when there is some."""
        while deliveries:
            verdicts = await self.deliver(*deliveries)
            assert set(verdicts) <= {"admitted", "full"}
            deliveries = tuple(each for each, verdict in zip(deliveries, verdicts, strict=True) if verdict == "full")
            if deliveries:
                await self.until(lambda view: len(view.open) < 100)

    async def _update(self, request: DeliverRequest) -> Delivered:
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            "Mailbox",
            {"agent": self.agent},
            id=ids.mailbox_workflow_id(self.agent),
            task_queue=self.it.queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        answer: Delivered = await self.it.client.execute_update_with_start_workflow(
            "deliver",
            request.model_dump(mode="json", exclude_none=True, by_alias=True),
            start_workflow_operation=start,
            result_type=Delivered,
        )
        return answer

    async def look(self) -> MailboxView:
        view: MailboxView = await self.box.query("acks", result_type=MailboxView)
        return view

    async def dead(self) -> list[DeadLetter]:
        dead: list[DeadLetter] = await self.box.query("deadletters", result_type=list[DeadLetter])
        return dead

    async def until(self, claim: Callable[[MailboxView], bool]) -> MailboxView:
        async def holds() -> bool:
            return claim(await self.look())

        await self.it.until(holds)
        return await self.look()

    async def until_over(self, *names: str) -> MailboxView:
        """Until these messages are over, and nothing is in hand."""

        def are_over(view: MailboxView) -> bool:
            return not view.open and not view.orders and set(names) <= {each.message_id for each in view.recent}

        return await self.until(are_over)


def acks(view: MailboxView) -> list[tuple[str, str]]:
    return [(each.message_id, str(each.ack)) for each in view.recent]


def disk_errors(times: int) -> Sequence[Exception]:
    return [ApplicationError("the disk is full") for _ in range(times)]
