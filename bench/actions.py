"""Billable actions, from the server's own counter. It counts all that is done, so one thing is measured at a time."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

import httpx

SETTLED = 2.5  # seconds until the counter's page has what was done


@dataclass(frozen=True)
class Actions:
    """The counter of a server that has its metrics on this port."""

    port: int

    async def of(self, work: Awaitable[object]) -> float:
        before = await self._total()
        await work
        return await self._total() - before

    async def _total(self) -> float:
        await asyncio.sleep(SETTLED)
        async with httpx.AsyncClient(trust_env=False) as client:
            page = (await client.get(f"http://127.0.0.1:{self.port}/metrics")).raise_for_status().text
        lines = [line for line in page.splitlines() if line.startswith("action{") and 'namespace="default"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines)
