"""A page without a browser: the client of a package in a process of node, which reads and writes lines of JSON."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from tests.gateway.conftest import Gateway
from tests.waiting import until

Json = dict[str, Any]
P = TypeVar("P", bound="NodePage")


@dataclass
class NodePage:
    """One chat at a gateway."""

    process: asyncio.subprocess.Process
    gateway: Gateway
    chat: str

    async def do(self, what: str, **more: Any) -> Json:
        """Let the script do something, and return what it shows then."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": what, "chat": self.chat, **more}).encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        shown: Json = json.loads(line)
        return shown

    async def show(self) -> Json:
        return await self.do("show")

    async def until(self, look: Callable[[Json], Any]) -> Json:
        shown: list[Json] = []

        async def is_there() -> bool:
            shown.append(await self.show())
            return bool(look(shown[-1]))

        try:
            await until(is_there)
        except AssertionError:
            raise AssertionError(json.dumps(shown[-1], indent=1)) from None
        return shown[-1]


@asynccontextmanager
async def open_page(kind: type[P], gateway: Gateway, *command: object) -> AsyncIterator[P]:
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26
    )
    try:
        yield kind(process, gateway, f"chat-{uuid4().hex[:8]}")
    finally:
        process.kill()
        await process.wait()
