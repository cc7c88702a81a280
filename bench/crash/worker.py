"""Perdure's worker of the shop, as `perdure worker` runs it in the project's folder."""

import asyncio
from dataclasses import replace
from pathlib import Path

from bench.crash.tools import SETTINGS, report
from perdure.client.connection import connect
from perdure.process.worker import run_worker
from perdure.settings import Settings, load_settings

SHOP = Path(__file__).parent / "shop"


def shop_settings(home: str, model: str, queue: str) -> Settings:
    """`home` has the server's state in `server`, and takes the runs' files."""
    variables = {
        "PERDURE_HOME": f"{home}/server",
        "PERDURE_WORKSPACE": f"{home}/runs",
        "ANTHROPIC_BASE_URL": model,
    }
    return replace(load_settings(variables, SHOP), task_queue=queue)


async def work() -> None:
    client = await connect(SETTINGS.address)
    async with run_worker(client, shop_settings(SETTINGS.home, SETTINGS.model, SETTINGS.queue)):
        await asyncio.to_thread(report, ready=True)
        await asyncio.Event().wait()
