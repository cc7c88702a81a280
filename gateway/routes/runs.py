"""Runs: start, list, read, follow, answer, cancel, and the results of tools outside."""

import asyncio
import base64
import binascii
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Response
from pydantic import Field
from temporalio.client import WorkflowHandle

from contracts.models import Edge, Value
from contracts.run.events import StartEvent, ToolResultEvent
from contracts.run.signals import CancelRequest, Decision, HumanInput
from contracts.run.state import RunView
from contracts.sender import SentBy
from decisions import ids
from gateway.auth import By, Here, Holder, Route, RunId, needs
from gateway.problems import Failure, Kind, described
from gateway.routes.sse import Stream, followed, position_of
from gateway.tokens import Scope
from perdure.client.errors import AnswerRefused, Refused
from perdure.client.run_list import Found, find, grown_at, page
from perdure.client.runs import answer, cancel, deliver_result, digest_of, ended, recorded_digest, start, state
from perdure.client.starter import starter_of
from settings import ProjectError

QUERY_PATIENCE = timedelta(seconds=1.5)  # of two that a reader waits where no worker is
CLOSED_PATIENCE = 10.0  # seconds for what the server has
MOST_LISTED = 200
COMMON = described(400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 503)

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=Route, responses=COMMON)


class Start(StartEvent):
    """The event `agentic.start`, whose `type` may be left out here."""

    type: Literal["agentic.start"] = "agentic.start"


class Begun(Value):
    """The run that it is about."""

    run_id: str


class Known(Value):
    """What the server knows of a run, without asking a worker."""

    run_id: str
    status: str  # as `AgentStatus`
    agent: str
    waiting_for: str  # the open question, in short
    wedged: bool  # its workflow tasks fail: it cannot go on
    steps: int
    cost_usd: float | None
    parent: str | None  # the run whose subtask it is
    started_at: datetime
    closed_at: datetime | None


class Listed(Value):
    """A page may hold fewer than `limit`; the list ends where `cursor` is null."""

    runs: tuple[Known, ...]
    cursor: str | None  # for the next page


class Told(Value):
    """A run. Where no worker answers, `state` is null, and what the server knows is `age_seconds` old."""

    known: Known
    answered: bool  # a worker did
    age_seconds: float
    state: RunView | None
    started_by: SentBy | None = None  # null where the server has forgotten the start


class Result(Value):
    """How a run ended, as its event `agent.completed` or `agent.escalated`, or as a failure; or that it has not."""

    run_id: str
    status: str
    event: dict[str, Any] | None = None
    kind: str = ""  # of a [failure](failures.md#failed-runs)
    message: str = ""  # and what it says
    handoff: str = ""  # how the work stands, where it failed


class Answer(Edge):
    """As `human_input`; who answers is told by the token."""

    question_id: str | None = None
    """If given, it must be an open one. Otherwise the answer is for the one that is open when it is received."""
    call: str | None = Field(default=None, max_length=200)
    """The digest of the call to approve; if given, it must be the one that is asked about."""
    text: str | None = Field(default=None, max_length=200_000)
    """The answer; of a denial, the reason; with `use_result`, the result."""
    decision: Decision | None = None
    """What the [question](events.md#decisions) takes."""


class Reason(Edge):
    """Why a run is cancelled; by whom is told by the token."""

    reason: str | None = Field(default=None, max_length=2000)


def known(found: Found) -> Known:
    return Known(
        run_id=found.run_id,
        status=found.status,
        agent=found.agent,
        waiting_for=found.waiting_for,
        wedged=found.is_wedged,
        steps=found.steps,
        cost_usd=found.cost_usd,
        parent=found.parent,
        started_at=found.execution.start_time,
        closed_at=found.execution.close_time,
    )


@router.post(
    "", status_code=202, dependencies=[needs(Scope.start)], responses={200: {"model": Begun, "description": "Known"}}
)
async def start_run(
    here: Here,
    holder: Holder,
    event: Start,
    response: Response,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=500)] = None,
) -> Begun:
    """Starts a run; 200 where the same key has started it before, 409 where that start said something else.

    An `Idempotency-Key` is this token's own. A `dedupe_key` is shared by all, with `perdure run --dedupe-key` too.
    """
    if idempotency_key and event.dedupe_key:
        raise Failure(422, "give either Idempotency-Key or dedupe_key: they mean different runs", field="dedupe_key")
    key = _in_utf8(idempotency_key) if idempotency_key else None
    dedupe_key = ids.start_key(key) if key else event.dedupe_key
    whole = StartEvent(type=event.type, payload=event.payload, dedupe_key=dedupe_key)
    try:
        here.session.settings.check_agent(event.payload.agent)
    except ProjectError as error:
        raise Failure(422, str(error), field="payload.agent") from None
    own_id = ids.run_id_for_caller(holder.name, key) if key else None
    handle = await start(here.session.client, here.session.settings.task_queue, whole, own_id)
    run_id = ids.run_id_of(handle.id)
    if handle.first_execution_run_id is None:
        await _require_same_start(handle, whole)
        response.status_code = 200
    response.headers["Location"] = f"/v1/runs/{quote(run_id, safe='')}"
    return Begun(run_id=run_id)


async def _require_same_start(handle: WorkflowHandle[Any, Any], event: StartEvent) -> None:
    """Raises Failure 409 if the run that has this key was started with something else."""
    first, second = await recorded_digest(handle), digest_of(event)
    if first is not None and first != second:
        reason = f"the key has started a run with another body: that was {first}, this is {second}; take another key"
        raise Failure(409, reason, kind=Kind.key_reused)


def _in_utf8(header: str) -> str:
    """As the terminal takes the same key; a header is read byte by byte."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise Failure(422, "Idempotency-Key is not UTF-8", field="Idempotency-Key") from None


@router.get("", dependencies=[needs(Scope.read)])
async def list_runs(
    here: Here,
    waiting: Annotated[bool, Query(description="Only what waits for a person, follow-ups and subtasks too.")] = False,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 50,
    cursor: Annotated[str | None, Query(max_length=4000)] = None,
) -> Listed:
    """Runs, the latest first. What a run delegated is listed only where it waits for a person."""
    try:
        found = await page(here.session.client, waiting=waiting, limit=limit, after=_token_of(cursor))
    except Refused as error:
        raise Failure(422, str(error), field="cursor") from None
    following = base64.urlsafe_b64encode(found.next).decode() if found.next else None
    return Listed(runs=tuple(known(each) for each in found.found), cursor=following)


def _token_of(cursor: str | None) -> bytes | None:
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True) if cursor else None
    except (binascii.Error, ValueError):
        raise Failure(422, "the cursor is none that was given out", field="cursor") from None


@router.get("/{run_id}", dependencies=[needs(Scope.read)])
async def read_run(here: Here, run_id: RunId) -> Told:
    """A run as it says of itself; where no worker answers, what the server knows."""
    client = here.session.client
    found = await find(client, run_id)
    view = await state(client, run_id, QUERY_PATIENCE)
    age = 0.0 if view else (datetime.now(UTC) - await grown_at(client, found)).total_seconds()
    return Told(
        known=known(found),
        answered=view is not None,
        age_seconds=max(age, 0.0),
        state=view,
        started_by=await starter_of(client, found),
    )


@router.get(
    "/{run_id}/events",
    status_code=200,
    dependencies=[needs(Scope.read)],
    response_class=Stream,
    responses=described(429)
    | {200: {"description": "Server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def follow_run(
    here: Here,
    run_id: RunId,
    *,
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
    rendered: Annotated[bool, Query(description="write out what is hidden in texts, as people are shown them")] = False,
) -> Stream:
    """What happens in a run, as it happens, to its end. `Last-Event-ID` goes on after that event."""
    after = position_of(last_event_id)
    await find(here.session.client, run_id)
    return followed(here, run_id, after, rendered=rendered)


@router.get(
    "/{run_id}/result",
    dependencies=[needs(Scope.read)],
    responses={202: {"model": Result, "description": "It has not ended yet"}},
)
async def read_result(
    here: Here,
    run_id: RunId,
    response: Response,
    wait: Annotated[float, Query(ge=0, le=30, description="Seconds to wait for the end.")] = 0,
) -> Result:
    """How a run ended; 202 where it has not."""
    client = here.session.client
    found = await find(client, run_id)
    try:
        async with asyncio.timeout(wait if found.is_open else CLOSED_PATIENCE):
            return Result(run_id=run_id, **asdict(await ended(client, run_id)))
    except TimeoutError:
        response.status_code, response.headers["Retry-After"] = 202, "1"
        return Result(run_id=run_id, status=found.status)


@router.post("/{run_id}/cancel", status_code=202, dependencies=[needs(Scope.answer)])
async def cancel_run(here: Here, by: By, run_id: RunId, body: Reason | None = None) -> Begun:
    """Asks a run to stop; a side effect that is running is finished first."""
    await find(here.session.client, run_id)
    await cancel(here.session.client, run_id, CancelRequest(reason=body.reason if body else None, by=by))
    return Begun(run_id=run_id)


@router.post("/{run_id}/answer", dependencies=[needs(Scope.answer)])
async def answer_run(here: Here, by: By, holder: Holder, run_id: RunId, body: Answer) -> Begun:
    """Answers the open question of a run, or of a follow-up (`wf:…`); 409 with its own reason where it does not fit."""
    try:
        said = HumanInput(**body.model_dump(), by=by)
        await answer(here.session.client, run_id, said, here.session.settings.answer_keys)
    except AnswerRefused:
        if Scope.read in holder.scopes:
            raise
        reason = "the answer does not fit what the run asks; a token with runs:read too is told why"
        raise Failure(409, reason, kind=Kind.refused) from None
    return Begun(run_id=run_id)


@router.post(
    "/{run_id}/tool-results",
    status_code=202,
    dependencies=[needs(Scope.result)],
    responses={200: {"model": Begun, "description": "The run had taken it before"}},
)
async def bring_result(here: Here, run_id: RunId, event: ToolResultEvent, response: Response) -> Begun:
    """Brings the event `agentic.tool_result` to its run, with the `nonce` of its request.

    409 where the run does not await it: nothing that is sent here ends a run.
    """
    if event.payload.run_id != run_id:
        raise Failure(422, "payload.run_id is not the run of the address", field="payload.run_id")
    if not event.nonce:
        raise Failure(422, "nonce: bring back the nonce of the request that this answers", field="nonce")
    if not (await find(here.session.client, run_id)).is_open:
        raise Failure(409, f"run {run_id} has ended", kind=Kind.refused)
    if not await deliver_result(here.session.client, run_id, event):
        response.status_code = 200
    return Begun(run_id=run_id)
