"""One trial: a run is started, its worker killed at a moment, another worker started, and the end awaited."""

import asyncio
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from uuid import uuid4

from temporalio.client import Client

from bench.crash.model import ShopModel
from bench.crash.server import Bill, Moment, PaymentServer
from bench.crash.sides import Side, SideRun, Sight, open_run
from bench.crash.tools import Settings
from bench.crash.workers import Nursery

HUNG = 120.0  # seconds after a worker is back in which a run ends or asks
REACHED = 300.0  # seconds until a run must be at its moment
LOOK_PAUSE = 0.5
SETTLED = 1.0  # seconds from a moment to its kill, so that no side is killed in what it still writes in the background
ENDS = (Sight.ended, Sight.failed)


class Variant(StrEnum):
    plain = "plain"  # the server of payments honours no keys
    keyed = "keyed"  # it honours them, and the side sends one that is the same on every attempt
    single = "single"  # no keys, and the payment is limited to one attempt


@dataclass(frozen=True)
class Case:
    """A cell of the table."""

    side: str
    variant: Variant
    moment: Moment

    @property
    def tool(self) -> str:
        """The name of the payment tool: in a project of Perdure, each declaration is a tool."""
        if self.side != "perdure":
            return "pay"
        if self.moment is Moment.asked:
            return "pay_asked"
        return "pay_keyed" if self.variant is Variant.keyed else "pay"


@dataclass(frozen=True)
class Trial:
    """The result of one trial. Times in seconds since the second worker was there; counts of requests and payments.

    `end` is "ended", "failed", "hung", or MISSED where the run did not come to the moment. `asked_of`: after how
    long a person was asked what became of the payment, if one was, who answers with the truth; the run goes on.
    """

    side: str
    variant: str
    moment: str
    end: str
    payments: int
    calls: int  # of the model
    at_kill: tuple[int, int]  # requests to pay, and payments, when the worker was killed
    asked_of: float | None = None
    seconds: float = 0.0

    @property
    def is_hit(self) -> bool:
        """Return True if the kill came where it should, as the payment server saw it."""
        return self.end != MISSED and self.at_kill == AT_KILL[Moment(self.moment)]


MISSED = "missed"
AT_KILL = {
    Moment.before: (0, 0),
    Moment.within: (1, 0),
    Moment.after: (1, 1),
    Moment.asked: (0, 0),
    Moment.reply: (0, 0),
}


@dataclass(frozen=True)
class Bench:
    """The servers that the trials share."""

    client: Client
    server: PaymentServer
    model: ShopModel
    settings: Settings

    def settings_of(self, bill: str, variant: Variant = Variant.plain, *, asks: bool = False) -> Settings:
        return replace(self.settings, queue=bill, variant=variant.value, asks=asks)


async def run_trial(bench: Bench, side: Side, nursery: Nursery, case: Case) -> Trial:
    bill = bench.server.open(
        Bill(f"B-{uuid4().hex[:8]}", case.moment, honours_keys=case.variant is Variant.keyed, tool=case.tool)
    )
    settings = bench.settings_of(bill.name, case.variant, asks=case.moment is Moment.asked)
    run = open_run(side, bench.client, nursery, settings, bench.server.reports)
    found: dict[str, Any] = {"side": case.side, "variant": case.variant.value, "moment": case.moment.value}
    worker = await run.start_worker()
    try:
        await run.start()
        is_there = await _reach(run, bill)
        await asyncio.sleep(SETTLED)
        found["at_kill"] = bill.requests, bill.payments
        await worker.kill()
        bill.is_over.set()
        if not is_there:
            return Trial(**found, end=MISSED, payments=bill.payments, calls=bench.model.calls[bill.name])
        worker = await run.start_worker()
        found |= await _await_end(run, bill, is_approved=case.moment is not Moment.asked)
        return Trial(**found, payments=bill.payments, calls=bench.model.calls[bill.name])
    finally:
        await worker.kill()
        await run.close()


async def _reach(run: SideRun, bill: Bill) -> bool:
    """Wait until the run is at its moment; False if it does not come there."""
    end = time.monotonic() + REACHED
    while time.monotonic() < end:
        if bill.is_reached.is_set():
            return True
        sight = await run.look() if bill.moment is Moment.asked else Sight.running
        if sight is Sight.asked:
            return True
        if sight in ENDS:
            return False
        await asyncio.sleep(0.1)
    return False


async def _await_end(run: SideRun, bill: Bill, *, is_approved: bool) -> dict[str, Any]:
    """Answer each question once, as a person who knows the truth, until the run ends or hangs."""
    began = since = time.monotonic()
    asked_of: float | None = None
    while time.monotonic() - since < HUNG:
        sight = await run.look()
        if sight in ENDS:
            return {"end": sight.value, "asked_of": asked_of, "seconds": round(time.monotonic() - began, 1)}
        if sight is Sight.asked and not is_approved:
            is_approved, since = True, time.monotonic()
            await run.approve()
        if sight is Sight.in_doubt and asked_of is None:
            asked_of, since = round(time.monotonic() - began, 1), time.monotonic()
            await run.settle(f"receipt {bill.name}/1" if bill.payments else None)
        await asyncio.sleep(LOOK_PAUSE)
    return {"end": "hung", "asked_of": asked_of, "seconds": round(time.monotonic() - began, 1)}
