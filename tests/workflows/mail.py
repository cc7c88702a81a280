"""Mailboxes: folders of the agents of a world, with bridges beside its server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from perdure.features.mailbox.activities.folder import MailFolder
from perdure.features.mailbox.activities.records import TaskRecords
from perdure.features.mailbox.bridge import Bridge
from perdure.features.mailbox.contract import InboxMessage, Stage
from perdure.features.mailbox.rules.poll_mode import PollPolicy
from tests.workflows.conftest import World

AWAKE = PollPolicy(dormant_after=None)


class Mailbox:
    """The folder of an agent. Its plan is its own: other tests use the same server."""

    def __init__(self, it: World, root: Path, agent: str = "default", *, outside: bool = False) -> None:
        self.it = it
        self.folder = MailFolder(root, agent, outside)
        self.folder.open_folder()
        self.plan = f"plan-{uuid4().hex[:8]}"

    def bridge(self, policy: PollPolicy = AWAKE) -> Bridge:
        own = MailFolder(self.folder.root, self.folder.agent, self.folder.outside, id=self.folder.id)
        return Bridge(self.it.client, self.it.queue, own, self.folder.root.parent / "workspaces", policy)

    @asynccontextmanager
    async def served(self, count: int = 1, policy: PollPolicy = AWAKE) -> AsyncIterator[list[Bridge]]:
        """Bridges of the folder, at work."""
        bridges = [self.bridge(policy) for _ in range(count)]
        async with AsyncExitStack() as stack:
            for bridge in bridges:
                await stack.enter_async_context(running(bridge))
            yield bridges

    def put(self, name: str, *, task: str = "", file: str = "", body: str = "work", **fields: Any) -> None:
        head = {"type": "task", "message_id": name, "plan_id": self.plan, "task_id": task or f"t-{name}", "from": "bob"}
        data = json.dumps({**head, **fields, "body": body}).encode()
        self.folder.below.write(data, self.folder.incoming, self.plan, file or f"{name}.json")

    def read(self, name: str) -> dict[str, Any]:
        path = self.folder.root / self.folder.outgoing / self.plan / name
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return content

    def ack(self, name: str) -> dict[str, Any]:
        return self.read(f"ack_{name}.json")

    def states(self, task: str) -> list[str]:
        return [entry["state"] for entry in self.read(f"task_state_{task}.json").get("history", ())]

    def reply(self, task: str) -> str:
        path = self.folder.root / self.folder.outgoing / self.plan / f"{task}-reply.md"
        return path.read_text() if path.exists() else ""

    def names(self, where: str) -> list[str]:
        """The files there, by their own names."""
        folder = self.folder.root / self.folder.incoming / self.plan / where
        return sorted(path.name.partition("~")[2] for path in folder.iterdir()) if folder.exists() else []

    def open(self) -> list[InboxMessage]:
        return list(TaskRecords(self.folder.below).open_messages())

    async def running(self) -> InboxMessage:
        """The message in hand, once its run has begun."""
        await self.it.until(lambda: [message.stage for message in self.open()] == [Stage.running])
        return self.open()[0]

    async def until_over(self, *names: str) -> None:
        """Until these messages have ended, and nothing is in hand."""

        def are_over() -> bool:
            ended = all(self.ack(name).get("status") in {"SUCCEEDED", "FAILED"} for name in names)
            incoming = self.folder.root / self.folder.incoming / self.plan
            return ended and not self.open() and not self.names(".pending") and not list(incoming.glob("*.json"))

        await self.it.until(are_over)


@asynccontextmanager
async def running(bridge: Bridge) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(bridge.run(stop))
    yield
    stop.set()
    await task


async def kill(task: "asyncio.Task[None]") -> None:
    """End a bridge wherever it is."""
    task.cancel()
    await asyncio.wait({task})
