"""The payment server: it counts payments, and holds a request where the worker that sent it is to be killed.

A payment's `bill` names the trial, and is no key: each request is a payment. If a trial says that the server
honours keys, a second request with the same `Idempotency-Key` is answered with the first one's receipt.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.ports import free_port


class Moment(StrEnum):
    """The moment of a step at which the worker is killed."""

    before = "before"  # the call is known, and the request not sent
    within = "in"  # the server has the request; it pays, though nobody waits for the answer
    after = "after"  # paid and answered; the result is not recorded
    asked = "asked"  # a person is asked to approve
    reply = "reply"  # the model's reply with the call is on its way


@dataclass
class Bill:
    """A trial, as the server sees it. `moment` is None if nothing is killed."""

    name: str
    moment: Moment | None
    honours_keys: bool = False
    tool: str = "pay"  # the name of the payment tool
    requests: int = 0  # to pay
    payments: int = 0
    mails: int = 0
    keys: dict[str, str] = field(default_factory=dict)  # receipts
    is_sprung: bool = False
    is_reached: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)  # the worker is dead

    def spring(self, moment: Moment) -> bool:
        """Return True if the trial is to be killed here, and was not before."""
        if self.moment is not moment or self.is_sprung:
            return False
        self.is_sprung = True
        self.is_reached.set()
        return True


class QuietServer(uvicorn.Server):
    """A server in the driver's event loop, which leaves signals to the driver."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class PaymentServer:
    """`reports` are the last of each worker, by its name."""

    def __init__(self) -> None:
        self.bills: dict[str, Bill] = {}
        self.reports: dict[str, dict[str, Any]] = {}
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"

    def open(self, bill: Bill) -> Bill:
        self.bills[bill.name] = bill
        return bill

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["PaymentServer"]:
        """In the caller's event loop."""
        routes = {
            "/look_up": self._look_up,
            "/at/{moment}": self._pass,
            "/pay": self._pay,
            "/mail": self._mail,
            "/report": self._report,
        }
        app = Starlette(routes=[Route(path, handler, methods=["POST"]) for path, handler in routes.items()])
        config = uvicorn.Config(
            app, port=self._port, lifespan="off", ws="none", log_config=None, timeout_graceful_shutdown=1
        )
        server = QuietServer(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)
        try:
            yield self
        finally:
            for bill in self.bills.values():
                bill.is_over.set()
            server.should_exit = True
            await serving

    async def _look_up(self, request: Request) -> Response:
        body = await request.json()
        return JSONResponse({"text": f"Bill {body['bill']}: 1200 cents, to Miller & Sons."})

    async def _pass(self, request: Request) -> Response:
        bill = self.bills[(await request.json())["bill"]]
        if bill.spring(Moment(request.path_params["moment"])):
            await bill.is_over.wait()
        return JSONResponse({})

    async def _pay(self, request: Request) -> Response:
        try:
            bill = self.bills[(await request.json())["bill"]]
        except ClientDisconnect:
            return Response(status_code=400)  # cut off before it was whole: nothing happened
        bill.requests += 1
        if bill.spring(Moment.within):
            await bill.is_over.wait()
        key = request.headers.get("idempotency-key") if bill.honours_keys else None
        if key is not None and key in bill.keys:
            return JSONResponse({"receipt": bill.keys[key]})
        bill.payments += 1
        receipt = f"receipt {bill.name}/{bill.payments}"
        if key is not None:
            bill.keys[key] = receipt
        return JSONResponse({"receipt": receipt})

    async def _mail(self, request: Request) -> Response:
        self.bills[(await request.json())["bill"]].mails += 1
        return JSONResponse({"text": "sent"})

    async def _report(self, request: Request) -> Response:
        report = await request.json()
        self.reports[report["worker"]] = {**self.reports.get(report["worker"], {}), **report}
        return JSONResponse({})
