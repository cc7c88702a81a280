"""The script of the model, the same for all sides: look the bill up, pay it, mail about it, say so."""

import asyncio
import json
import re
import time
from collections import Counter, defaultdict

from bench.crash.server import Moment, PaymentServer
from perdure.testkit.model_server import Reply, calls, says, slow
from perdure.testkit.rehearsal.sse import Json

BILL = re.compile(r"B-[0-9a-f]{8}")
CENTS = 1200
PAYING = 1  # the turn whose reply has the payment
TURNS = 4
HELD = 3600.0  # seconds over which a reply is streamed whose reader is to be killed


def goal(bill: str) -> str:
    return f"Look up bill {bill}, pay it, and mail the customer."


class ShopModel:
    """Its `reply` is a script of `ScriptedModel`, which calls it in a thread of its own.

    `calls` counts requests by bill: each is a call of the model that is paid for; `times` is when they came
    (monotonic).
    """

    def __init__(self, server: PaymentServer, loop: asyncio.AbstractEventLoop) -> None:
        self.calls: Counter[str] = Counter()
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        self._server = server
        self._loop = loop
        self._held: set[str] = set()

    def reply(self, body: Json) -> Reply:
        found = BILL.search(json.dumps(body["messages"]))
        if found is None:
            return says("There is no bill.")
        bill = self._server.bills[found[0]]
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        self.calls[bill.name] += 1
        self.times[bill.name].append(time.monotonic())
        turns = (
            calls(("look_up", {"bill": bill.name})),
            calls((bill.tool, {"bill": bill.name, "cents": CENTS})),
            calls(("mail", {"bill": bill.name, "text": "Your bill is paid."})),
        )
        reply = turns[turn] if turn < len(turns) else says("The bill is paid.")
        if turn != PAYING or bill.moment is not Moment.reply or bill.name in self._held:
            return reply
        self._held.add(bill.name)
        self._loop.call_soon_threadsafe(bill.spring, Moment.reply)
        return slow(reply, HELD)
