"""A worker of its own: it knows Temporal, and nothing of Perdure.

Start it beside `perdure dev`, in this folder: `python warehouse.py`.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

STOCK = {"milk": 12, "salt": 3}
SECONDS = float(os.environ.get("WORK_SECONDS", "2"))  # that each call takes


@activity.defn
async def look_up_stock(request: dict[str, Any]) -> dict[str, Any]:
    """The request is the `agentic.tool_request.look_up_stock` event, the result any JSON value."""
    item = request["payload"]["tool_payload"].get("item")
    if item not in STOCK:  # the arguments are a model's: what is wrong with them is reported to it
        raise ApplicationError(f"there is no {item!r} here; there is: {', '.join(STOCK)}", non_retryable=True)
    await work()
    return {"item": item, "left": STOCK[item]}


@activity.defn
async def place_order(request: dict[str, Any]) -> dict[str, Any]:
    """The dedupe key is the same on every attempt of the call: whoever keeps it can tell a repeat."""
    order = {"key": request["dedupe_key"], **request["payload"]["tool_payload"]}
    with Path("orders.jsonl").open("a", encoding="utf-8") as orders:  # noqa: ASYNC230 - a line
        orders.write(json.dumps(order) + "\n")
    await work()
    return {"ordered": order}


async def work() -> None:
    """Each beat says that this worker is alive, and lets a cancel in."""
    for _ in range(round(SECONDS * 2)):
        activity.heartbeat()
        await asyncio.sleep(0.5)


async def main() -> None:
    client = await Client.connect(os.environ.get("TEMPORAL_ADDRESS", "localhost:7233"))
    async with Worker(client, task_queue="warehouse", activities=[look_up_stock, place_order]):
        print("the warehouse is open", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
