"""The Message Batches API of the scripted model. With a folder, its batches outlive the process."""

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from perdure.testkit.rehearsal.sse import TYPE_OF_STATUS, Json, digest_of, error_body

Handler = Callable[[Request], Awaitable[Response]]
Answer = Callable[[Json, int], Json]  # the result of a request's params, and the number of earlier ones like it

ENDPOINT = "/v1/messages/batches"
EXPIRY = timedelta(hours=24)
VALID_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
KINDS = ("succeeded", "errored", "canceled", "expired")


class BatchRejectedError(Exception):
    """The API would reject this create request, with this status and error type."""

    def __init__(self, status: int, error_type: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.type = status, error_type


@dataclass(frozen=True)
class ScriptedBatch:
    """One batch. Its results are fixed when it is created, and readable from `ends_at`."""

    id: str
    created_at: float  # seconds since 1970, as the other times
    ends_at: float | None  # None: when a test ends it
    canceled_at: float | None
    requests: list[Json]
    results: list[Json]
    betas: str = ""  # the header `anthropic-beta` of the create request

    def is_ended(self) -> bool:
        return self.ends_at is not None and self.ends_at <= _now()


class ScriptedBatches:
    """The batches of a scripted model: their endpoints for the client, and what a test asserts.

    A batch ends `seconds` after its creation; with None, when the test calls `end_batches`. The results come in
    reversed order. The create requests numbered in `cut_creates` (from 0) are accepted, but their connection is cut
    before the reply; those in `refused_creates` get its HTTP status. A new batch is not found by the first `missing`
    requests of each endpoint (`list`, `retrieve`, `results`): the list leaves it out, the others answer 404.
    `write_results` returns the body of the results from its lines and the number of the read of that batch, from 0.
    All replies come `reply_seconds` after their effect, so that a test can kill the client before it reads one. With a
    `folder`, each batch is a file there, and another process can serve it.
    """

    def __init__(
        self,
        *,
        seconds: float | None = 0,
        cut_creates: Sequence[int] = (),
        refused_creates: Mapping[int, int] = MappingProxyType({}),
        missing: Mapping[str, int] = MappingProxyType({}),
        write_results: Callable[[list[str], int], str] = lambda lines, _: "".join(lines),
        reply_seconds: float = 0,
        folder: Path | None = None,
        max_requests: int = 100_000,
        max_bytes: int = 256_000_000,
    ) -> None:
        self._seconds = seconds
        self._cut_creates = frozenset(cut_creates)
        self._refused_creates = refused_creates
        self._missing = missing
        self._write_results = write_results
        self._reply_seconds = reply_seconds
        self._folder = folder
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()  # requests to the endpoints: create, list, retrieve, cancel, results
        self._seeks: Counter[tuple[str, str]] = Counter()  # requests for a batch, by endpoint and id
        self._batches: list[ScriptedBatch] = []
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            stored = [ScriptedBatch(**json.loads(file.read_text())) for file in folder.glob("*.json")]
            self._batches = sorted(stored, key=lambda batch: batch.created_at)

    @property
    def batches(self) -> list[ScriptedBatch]:
        """All batches, the oldest first."""
        with self._lock:
            return list(self._batches)

    @property
    def paid(self) -> list[Json]:
        """The requests (`custom_id` and `params`) that succeeded, which are those the API bills, once for each time."""
        return [
            request
            for batch in self.batches
            if batch.is_ended()
            for request, result in zip(batch.requests, batch.results, strict=True)
            if result["result"]["type"] == "succeeded"
        ]

    def end_batches(self) -> None:
        """End every open batch now."""
        with self._lock:
            for batch in self._batches:
                if not batch.is_ended():
                    self._store(replace(batch, ends_at=_now()))

    def create_batch(self, requests: list[Json], answer: Answer, betas: str = "") -> ScriptedBatch:
        """Accept a batch, or raise `BatchRejectedError`."""
        self._check(requests)
        with self._lock:
            earlier = Counter(_digest(request) for batch in self._batches for request in batch.requests)
            results = []
            for request in requests:
                result = answer(request["params"], earlier[_digest(request)])
                results.append({"custom_id": request["custom_id"], "result": result})
                earlier[_digest(request)] += 1
            created = _now()
            ends_at = None if self._seconds is None else created + self._seconds
            batch = ScriptedBatch(f"msgbatch_{uuid4().hex[:24]}", created, ends_at, None, requests, results, betas)
            self._store(batch)
        return batch

    def cancel_batch(self, batch: ScriptedBatch) -> ScriptedBatch:
        """Cancel what is not done. An ended batch stays as it is."""
        if batch.is_ended():
            return batch
        results = [{**result, "result": {"type": "canceled"}} for result in batch.results]
        canceled = replace(batch, ends_at=_now(), canceled_at=_now(), results=results)
        with self._lock:
            self._store(canceled)
        return canceled

    def build_routes(self, answer: Answer) -> list[Route]:
        """Return the endpoints, which take the results of requests from `answer`."""

        async def handle_create(request: Request) -> Response:
            number = self._count("create")
            if status := self._refused_creates.get(number):
                error = error_body(TYPE_OF_STATUS.get(status, "api_error"), "a fault of the script")
                return JSONResponse(error, status_code=status)
            betas = request.headers.get("anthropic-beta", "")
            try:
                batch = self.create_batch((await request.json())["requests"], answer, betas)
            except BatchRejectedError as error:
                return JSONResponse(error_body(error.type, str(error)), status_code=error.status)
            except (ValueError, KeyError, TypeError, ClientDisconnect):
                return _reject("requests: Field required")
            return _CutResponse() if number in self._cut_creates else _to_response(batch, request)

        return [
            Route(ENDPOINT, self._delay(handle_create), methods=["POST"]),
            Route(ENDPOINT, self._delay(self._handle_list), methods=["GET"]),
            Route(f"{ENDPOINT}/{{id}}", self._delay(self._handle_retrieve), methods=["GET"]),
            Route(f"{ENDPOINT}/{{id}}/cancel", self._delay(self._handle_cancel), methods=["POST"]),
            Route(f"{ENDPOINT}/{{id}}/results", self._delay(self._handle_results), methods=["GET"]),
        ]

    def _delay(self, handle: Handler) -> Handler:
        async def handle_late(request: Request) -> Response:
            response = await handle(request)
            await asyncio.sleep(self._reply_seconds)
            return response

        return handle_late

    async def _handle_list(self, request: Request) -> Response:
        self._count("list")
        newest = [batch for batch in self.batches[::-1] if self._is_found("list", batch)]
        ids = [batch.id for batch in newest]
        if (after := request.query_params.get("after_id")) in ids:
            newest = newest[ids.index(str(after)) + 1 :]
        limit = int(request.query_params.get("limit", 20))
        page = [_describe(batch, request) for batch in newest[:limit]]
        first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        return JSONResponse({"data": page, "has_more": len(newest) > limit, "first_id": first, "last_id": last})

    async def _handle_retrieve(self, request: Request) -> Response:
        self._count("retrieve")
        batch = self._find(request)
        found = batch is not None and self._is_found("retrieve", batch)
        return _to_response(batch, request) if batch and found else _report_missing()

    async def _handle_cancel(self, request: Request) -> Response:
        self._count("cancel")
        if not (batch := self._find(request)):
            return _report_missing()
        described = _describe(self.cancel_batch(batch), request)
        return JSONResponse(described if batch.is_ended() else {**described, "processing_status": "canceling"})

    async def _handle_results(self, request: Request) -> Response:
        self._count("results")
        batch = self._find(request)
        if not batch or not batch.is_ended() or not self._is_found("results", batch):
            return _report_missing()
        number = self._seeks["results", batch.id] - self._missing.get("results", 0) - 1
        lines = [json.dumps(result) + "\n" for result in reversed(batch.results)]
        return Response(self._write_results(lines, number), media_type="application/x-jsonl")

    def _is_found(self, endpoint: str, batch: ScriptedBatch) -> bool:
        with self._lock:
            self._seeks[endpoint, batch.id] += 1
            return self._seeks[endpoint, batch.id] > self._missing.get(endpoint, 0)

    def _count(self, endpoint: str) -> int:
        with self._lock:
            self.calls[endpoint] += 1
            return self.calls[endpoint] - 1

    def _find(self, request: Request) -> ScriptedBatch | None:
        return next((batch for batch in self.batches if batch.id == request.path_params["id"]), None)

    def _store(self, batch: ScriptedBatch) -> None:
        """Add or replace the batch. Call with the lock held."""
        if self._folder:
            fresh = self._folder / f"{batch.id}.new"
            fresh.write_text(json.dumps(asdict(batch)))
            fresh.replace(fresh.with_suffix(".json"))
        ids = [known.id for known in self._batches]
        if batch.id in ids:
            self._batches[ids.index(batch.id)] = batch
        else:
            self._batches.append(batch)

    def _check(self, requests: list[Json]) -> None:
        if not requests:
            raise BatchRejectedError(400, "invalid_request_error", "requests: at least one is required")
        if len(requests) > self._max_requests or len(json.dumps(requests)) > self._max_bytes:
            raise BatchRejectedError(413, "request_too_large", "a batch has a limit of requests and of bytes")
        ids = [request["custom_id"] for request in requests]
        for at, (custom_id, request) in enumerate(zip(ids, requests, strict=True)):
            if not VALID_CUSTOM_ID.fullmatch(custom_id):
                reason = f"requests.{at}.custom_id: 1 to 64 letters, digits, - and _ are required"
                raise BatchRejectedError(400, "invalid_request_error", reason)
            if request["params"].get("stream"):
                reason = f"requests.{at}.params.stream: streaming is not supported in batches"
                raise BatchRejectedError(400, "invalid_request_error", reason)
        if len({*ids}) < len(ids):
            raise BatchRejectedError(400, "invalid_request_error", "requests: each custom_id must be unique")


class _CutResponse(Response):
    """A connection that is cut before the reply."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})


def _describe(batch: ScriptedBatch, request: Request) -> Json:
    """Return the batch as the API shows it. All requests are `processing` until the batch has ended."""
    ended = batch.is_ended()
    counts = Counter(result["result"]["type"] if ended else "processing" for result in batch.results)
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if ended else "in_progress",
        "request_counts": {kind: counts[kind] for kind in ("processing", *KINDS)},
        "created_at": _to_iso(batch.created_at),
        "expires_at": _to_iso(batch.created_at + EXPIRY.total_seconds()),
        "ended_at": _to_iso(batch.ends_at) if ended and batch.ends_at is not None else None,
        "cancel_initiated_at": None if batch.canceled_at is None else _to_iso(batch.canceled_at),
        "archived_at": None,
        "results_url": f"{request.base_url}{ENDPOINT[1:]}/{batch.id}/results" if ended else None,
    }


def _to_response(batch: ScriptedBatch, request: Request) -> Response:
    return JSONResponse(_describe(batch, request))


def _reject(reason: str) -> Response:
    return JSONResponse(error_body("invalid_request_error", reason), status_code=400)


def _report_missing() -> Response:
    return JSONResponse(error_body("not_found_error", "no such batch, or no results yet"), status_code=404)


def _digest(request: Json) -> str:
    return digest_of(request["params"].get("messages"))


def _now() -> float:
    return datetime.now(UTC).timestamp()


def _to_iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
