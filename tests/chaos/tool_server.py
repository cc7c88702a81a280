"""Tools outside the workers, which survive them and count what they are made to do.

`/once/…` has an effect for each request. `/keyed/…` has one for each idempotency key, and answers a repeat with the
first result. `/read/…` has none, and `/handed/…` takes what is answered by a signal.
"""

import asyncio
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.media_files import same_image

Place = tuple[str, int]  # run and step
Answers = Callable[[str, str, int], Response | None]  # effect, key, earlier requests with that key


@dataclass(frozen=True)
class EffectRecord:
    """One effect on the world."""

    run: str
    step: int
    key: str
    effect: str  # once | keyed
    receipt: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.monotonic)


class ToolServer:
    """`with ToolServer(seed) as tools:` serves at `tools.base_url`.

    An effect takes up to twice `takes` seconds, half of them before it happens and half after. `refuses` may answer in
    the place of a tool, before anything happens.
    """

    def __init__(self, seed: int, *, takes: float = 0.05, refuses: Answers = lambda *_: None) -> None:
        self._seed = seed
        self._takes = takes
        self._refuses = refuses
        self._lock = threading.Lock()
        self._at_work: Counter[Place] = Counter()
        self._under_way: defaultdict[str, set[Place]] = defaultdict(set)
        self.most_at_work: Counter[str] = Counter()  # calls at once, by tool
        self._first: dict[str, str] = {}
        self.effects: list[EffectRecord] = []
        self.requests: Counter[str] = Counter()  # by key
        self.images: set[Place] = set()  # answered by an image, which shows no receipt
        self.refused: Counter[Place] = Counter()

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        app = Starlette(routes=[Route("/{effect}/{tool}", self._called, methods=["POST"])])
        config = uvicorn.Config(
            app,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=600,  # a connection that it closes as a request comes is a failed call
        )
        self._server = uvicorn.Server(config)
        sockets = {"sockets": [self._listener]}
        self._thread = threading.Thread(target=self._server.run, kwargs=sockets, name="tool-server", daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    def of(self, run: str, step: int) -> list[EffectRecord]:
        """What has happened for a step of a run."""
        with self._lock:
            return [deed for deed in self.effects if (deed.run, deed.step) == (run, step)]

    async def find_receipt(self, run: str, step: int) -> str | None:
        """The receipt of what happened for this step, once nothing is on its way any more; None: nothing did."""
        while self.is_at_work(run, step):  # noqa: ASYNC110 - the server works in a thread of its own
            await asyncio.sleep(0.02)
        effects = self.of(run, step)
        return effects[-1].receipt if effects else None

    def is_at_work(self, run: str, step: int) -> bool:
        with self._lock:
            return self._at_work[run, step] > 0

    async def _called(self, request: Request) -> Response:
        effect, key = request.path_params["effect"], request.headers.get("idempotency-key", "")
        try:
            payload = (await request.json())["payload"]
        except (ClientDisconnect, ValueError):
            return Response(status_code=400)  # cut off by its sender's death before it was whole: nothing happened
        place: Place = (payload["run_id"], payload["step"])
        with self._lock:
            earlier = self.requests[key]
            self.requests[key] += 1
            self._at_work[place] += 1
            under_way = self._under_way[request.path_params["tool"]]
            under_way.add(place)
            self._count_most(request.path_params["tool"])
        try:
            if (refusal := self._refuses(effect, key, earlier)) is not None:
                with self._lock:
                    self.refused[place] += 1
                return refusal
            pause = Random(f"{self._seed}:{key}:{earlier}").uniform(0, self._takes)
            await asyncio.sleep(pause)
            receipt = self._record_effect(effect, key, place, payload["tool_payload"])
            await asyncio.sleep(pause)
        finally:
            with self._lock:
                self._at_work[place] -= 1
                if not self._at_work[place]:
                    under_way.discard(place)
        if (image := payload["tool_payload"].get("image")) is None:
            return _answer(receipt, payload["tool_payload"])
        with self._lock:
            self.images.add(place)
        return Response(same_image(image), media_type="image/png")

    def _count_most(self, tool: str) -> None:
        self.most_at_work[tool] = max(self.most_at_work[tool], len(self._under_way[tool]))

    def _record_effect(self, effect: str, key: str, place: Place, arguments: dict[str, Any]) -> str:
        run, step = place
        if effect not in ("once", "keyed"):
            return f"{run}/{step}"
        with self._lock:
            if effect == "keyed" and key in self._first:
                return self._first[key]
            receipt = f"{run}/{step}#{len(self.effects)}"
            self._first[key] = receipt
            self.effects.append(EffectRecord(run, step, key, effect, receipt, arguments))
            return receipt


def _answer(receipt: str, asked: dict[str, Any]) -> Response:
    """`bytes` asks for a large answer, `status` for an error of that size."""
    padding = "x" * int(asked.get("bytes", 0))
    if status := asked.get("status"):
        return Response(f"{receipt} {padding}", status_code=int(status))
    return JSONResponse({"receipt": receipt, "padding": padding} if padding else {"receipt": receipt})
