"""Runs: start, list, read, stream, answer, cancel, and results of external tools."""

import asyncio
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Response
from pydantic import Field

from perdure.client.details import RunDetails, RunRecord
from perdure.client.errors import AnswerRejectedError, RejectedError
from perdure.client.run_list import RunFilter, list_page
from perdure.client.runs import (
    deliver_result,
    digest_of_start,
    read_start_digest,
)
from perdure.contracts.media import Attachments
from perdure.contracts.models import FrozenModel, StrictModel
from perdure.contracts.run.events import StartEvent, ToolResultEvent
from perdure.contracts.run.signals import MAX_SHOWN, ChangedArguments, Decision, HumanInput
from perdure.decisions import ids
from perdure.gateway.auth import (
    CurrentCaller,
    CurrentGateway,
    Gateway,
    RunId,
    ScopedRoute,
    needs_scope,
    require_readable,
    require_scope,
)
from perdure.gateway.lists import (
    Agent,
    Conversation,
    Cursor,
    Since,
    Status,
    decode_cursor,
    encode_cursor,
    naming_cursor,
)
from perdure.gateway.problems import RETRY_SOON, ApiError, ProblemKind, describe_problems
from perdure.gateway.routes.sse import EventStream, describe_events, open_event_stream, parse_position
from perdure.gateway.tokens import Scope
from perdure.python_client import Run

READ_QUERY_TIMEOUT = timedelta(seconds=1.5)  # without a worker a reader waits at most two
CLOSED_RUN_TIMEOUT = 10.0  # seconds to read the result of an ended run
MAX_RUNS = 200
MAX_RECORDS = 2  # that are read at a time; each is held whole in memory
COMMON_RESPONSES = describe_problems(400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 503)

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=ScopedRoute, responses=COMMON_RESPONSES)


class StartBody(StartEvent):
    """The event `agentic.start`; `type` is optional."""

    type: Literal["agentic.start"] = "agentic.start"


class RunReference(FrozenModel):
    """The id of the run."""

    run_id: str


class RunPage(FrozenModel):
    """A page of runs, which may hold fewer than `limit`; on the last one `cursor` is null.

    A run that ends between two pages may be on both.
    """

    runs: tuple[RunRecord, ...]
    cursor: str | None  # for the next page


class RunResult(FrozenModel):
    """The result of a run: its event `agent.completed` or `agent.escalated`, or a failure; or its open status."""

    run_id: str
    status: str
    event: dict[str, Any] | None = None
    kind: str = ""  # of a [failure](failures.md#failed-runs)
    message: str = ""  # the message of the failure
    handoff: str = ""  # the state of the work at a failure


class AnswerBody(StrictModel):
    """The body of `human_input`; the token names the person."""

    question_id: str | None = None
    """If given, it must be an open one. Otherwise the answer is for the one that is open when it is received."""
    call: str | None = Field(default=None, max_length=200)
    """The digest of the call to approve. If given, it must be the pending call's; required once a person changed it."""
    shown: str | None = Field(default=None, max_length=MAX_SHOWN)
    """The text of the question as the person saw it, for the record."""
    text: str | None = Field(default=None, max_length=200_000)
    """The answer; for a denial, the reason; with `use_result`, the result."""
    option: str | None = Field(default=None, max_length=100)
    """The option of a project question."""
    decision: Decision | None = None
    """A decision that the [question](events.md#decisions) allows."""
    attachments: Attachments = ()
    """Images and PDF that belong to the answer of a `question`."""
    arguments: ChangedArguments | None = None
    """With `approve`: the arguments to make the call with, in place of the proposed ones."""


class AnswersBody(StrictModel):
    """Answers to several open questions of a run, each naming its own."""

    answers: tuple[AnswerBody, ...] = Field(min_length=1, max_length=200)


class AnswerResult(FrozenModel):
    question_id: str | None
    accepted: bool
    reason: str = ""  # if it is not accepted and the token has `runs:read`


class AnswerResults(FrozenModel):
    run_id: str
    results: tuple[AnswerResult, ...]


class PlanBody(StrictModel):
    """The calls of the dry run that are not part of the plan, by their steps: they need approval."""

    without: tuple[int, ...] = Field(default=(), max_length=1000)


class SteerBody(StrictModel):
    """A message to the agent."""

    text: str = Field(min_length=1, max_length=200_000)


class ForkBody(StrictModel):
    """The step after which to go on, 0 being the start, and a message to the agent."""

    step: int = Field(ge=0)
    say: str | None = Field(default=None, min_length=1, max_length=200_000)


class CancelBody(StrictModel):
    """The reason to cancel a run; the token names the person."""

    reason: str | None = Field(default=None, max_length=2000)


@router.post(
    "",
    status_code=202,
    dependencies=[needs_scope(Scope.start)],
    responses={200: {"model": RunReference, "description": "Known"}},
)
async def start_run(
    gateway: CurrentGateway,
    holder: CurrentCaller,
    event: StartBody,
    response: Response,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=500)] = None,
) -> RunReference:
    """Start a run; 200 if the same key started it before, 409 if that start had another body.

    A `plan` approves calls: it also needs `human:answer`. An `Idempotency-Key` belongs to this token. A `dedupe_key` is
    shared by all tokens and `perdure run --dedupe-key`.
    """
    if idempotency_key and event.dedupe_key:
        raise ApiError(422, "give either Idempotency-Key or dedupe_key: they mean different runs", field="dedupe_key")
    require_readable(holder, event.payload.attachments)
    key = _decode_key(idempotency_key) if idempotency_key else None
    dedupe_key = ids.start_key(key) if key else event.dedupe_key
    if event.payload.plan is not None:  # it approves calls
        require_scope(holder, Scope.answer)
    start_event = StartEvent(type=event.type, payload=event.payload, dedupe_key=dedupe_key)
    own_id = ids.run_id_for_caller(holder.name, key) if key else None
    run = await gateway.perdure.begin(start_event, own_id)
    gateway.lists.clear()
    if not run.is_new:
        await _require_same_start(gateway, run.id, start_event)
        response.status_code = 200
    response.headers["Location"] = f"/v1/runs/{quote(run.id, safe='')}"
    return RunReference(run_id=run.id)


@router.post("/{run_id}/plan", status_code=202, dependencies=[needs_scope(Scope.start)])
async def start_plan(
    gateway: CurrentGateway, holder: CurrentCaller, run_id: RunId, response: Response, body: PlanBody | None = None
) -> RunReference:
    """Start a real run from a dry one, whose calls the caller approves. It also needs `human:answer`."""
    require_scope(holder, Scope.answer)
    payload = await gateway.perdure.get_run(run_id).planned(body.without if body else ())
    return _name_started(
        gateway, response, await gateway.perdure.begin(StartEvent(type="agentic.start", payload=payload))
    )


async def _require_same_start(gateway: Gateway, run_id: str, event: StartEvent) -> None:
    """Raises ApiError 409 if the run with this key was started with another body."""
    first, second = await read_start_digest(gateway.session.client, run_id), digest_of_start(event)
    if first is not None and first != second:
        reason = f"the key started a run with another body: that was {first}, this is {second}; use another key"
        raise ApiError(409, reason, kind=ProblemKind.key_reused)


def _decode_key(header: str) -> str:
    """Decode a header as UTF-8, so that a key equals the same key in the terminal. Raises ApiError."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise ApiError(422, "Idempotency-Key is not UTF-8", field="Idempotency-Key") from None


@router.get("", dependencies=[needs_scope(Scope.read)])
async def list_runs(  # noqa: PLR0913 - the filters
    gateway: CurrentGateway,
    *,
    waiting: Annotated[bool, Query(description="Only runs, subtasks and follow-ups that wait for a person.")] = False,
    agent: Agent = None,
    status: Status = None,
    since: Since = None,
    conversation: Conversation = None,
    limit: Annotated[int, Query(ge=1, le=MAX_RUNS)] = 50,
    cursor: Cursor = None,
) -> RunPage:
    """List runs, latest first; subtasks only with `waiting`. A cursor goes with the parameters of its page."""
    client, after = gateway.session.client, decode_cursor(cursor)
    only = RunFilter(since=since, agent=agent, status=status, conversation=conversation)
    with naming_cursor():
        listed = await gateway.lists.read(
            ("runs", waiting, only, limit, after),
            lambda: list_page(client, only, waiting=waiting, limit=limit, after=after),
        )
    return RunPage(runs=tuple(map(RunRecord.of, listed.runs)), cursor=encode_cursor(listed.next))


@router.get("/{run_id}", dependencies=[needs_scope(Scope.read)])
async def read_run(
    gateway: CurrentGateway,
    run_id: RunId,
    *,
    subtasks: Annotated[bool, Query(description="List its subtasks, too.")] = False,
) -> RunDetails:
    """Return a run: its state, or if no worker answers the server's record; and its end."""
    run = gateway.perdure.get_run(run_id)
    if not subtasks:
        return await run.details(READ_QUERY_TIMEOUT, subtasks=False)
    return await gateway.lists.read(("run", run_id), lambda: run.details(READ_QUERY_TIMEOUT))


@router.get(
    "/{run_id}/events",
    status_code=200,
    dependencies=[needs_scope(Scope.read)],
    response_class=EventStream,
    responses=describe_problems(429) | describe_events("Server-sent events"),
)
async def stream_run(
    gateway: CurrentGateway,
    holder: CurrentCaller,
    run_id: RunId,
    *,
    last_event_id: Annotated[str | None, Header(max_length=200)] = None,
    rendered: Annotated[bool, Query(description="make invisible characters in texts visible")] = False,
) -> EventStream:
    """Stream the events of a run to its end; with `Last-Event-ID`, those after that event."""
    after = parse_position(last_event_id)
    await gateway.perdure.get_run(run_id).info()
    return open_event_stream(gateway, holder, run_id, after, rendered=rendered)


@router.get(
    "/{run_id}/result",
    dependencies=[needs_scope(Scope.read)],
    responses={202: {"model": RunResult, "description": "It has not ended yet"}},
)
async def read_result(
    gateway: CurrentGateway,
    run_id: RunId,
    response: Response,
    wait: Annotated[float, Query(ge=0, le=30, description="Seconds to wait for the end.")] = 0,
) -> RunResult:
    """Return the result of a run; 202 if it has not ended."""
    run = gateway.perdure.get_run(run_id)
    info = await run.info()
    try:
        async with asyncio.timeout(wait if info.is_open else CLOSED_RUN_TIMEOUT):
            return RunResult(run_id=run_id, **asdict(await run.end()))
    except TimeoutError:
        response.status_code, response.headers["Retry-After"] = 202, "1"
        return RunResult(run_id=run_id, status=info.status)


@router.post("/{run_id}/cancel", status_code=202, dependencies=[needs_scope(Scope.answer)])
async def cancel_run(
    gateway: CurrentGateway, holder: CurrentCaller, run_id: RunId, body: CancelBody | None = None
) -> RunReference:
    """Cancel a run; a side effect in progress completes first."""
    run = gateway.perdure.get_run(run_id)
    await run.info()
    await run.cancel(body.reason if body else None, by=holder.name)
    return RunReference(run_id=run_id)


@router.post("/{run_id}/steer", status_code=202, dependencies=[needs_scope(Scope.start)])
async def send_message(gateway: CurrentGateway, run_id: RunId, body: SteerBody) -> RunReference:
    """Send the agent a message, for its next model call."""
    run = gateway.perdure.get_run(run_id)
    await run.info()
    await run.steer(body.text)
    return RunReference(run_id=run_id)


@router.post("/{run_id}/resume", status_code=202, dependencies=[needs_scope(Scope.start)])
async def resume_failed_run(gateway: CurrentGateway, run_id: RunId, response: Response) -> RunReference:
    """Resume a failed or timed-out run as a new run, always the same."""
    return _name_started(gateway, response, await gateway.perdure.get_run(run_id).resume())


@router.post("/{run_id}/fork", status_code=202, dependencies=[needs_scope(Scope.start)])
async def fork_after_step(gateway: CurrentGateway, run_id: RunId, response: Response, body: ForkBody) -> RunReference:
    """Start a new run that goes on from this one's state after a step."""
    return _name_started(gateway, response, await gateway.perdure.get_run(run_id).fork(body.step, body.say))


def _name_started(gateway: Gateway, response: Response, started: Run) -> RunReference:
    gateway.lists.clear()
    response.headers["Location"] = f"/v1/runs/{quote(started.id, safe='')}"
    return RunReference(run_id=started.id)


@router.get("/{run_id}/record", dependencies=[needs_scope(Scope.read)], responses=describe_problems(429))
async def read_run_record(gateway: CurrentGateway, run_id: RunId, response: Response) -> dict[str, Any]:
    """Return the whole record of a run, as `perdure trace --export` does; `missing` names what could not be read."""
    if gateway.records >= MAX_RECORDS:
        raise ApiError(429, f"this gateway reads {MAX_RECORDS} records, its limit; try again", headers=RETRY_SOON)
    gateway.records += 1
    try:
        record = await gateway.perdure.get_run(run_id).record(asks=await gateway.session.has_worker())
    finally:
        gateway.records -= 1
    name = quote(f"{run_id}.json", safe="")
    response.headers["Content-Disposition"] = f"attachment; filename*=utf-8''{name}"
    response.headers["Cache-Control"] = "no-store"
    return record


@router.post("/{run_id}/answer", dependencies=[needs_scope(Scope.answer)])
async def answer_run(gateway: CurrentGateway, holder: CurrentCaller, run_id: RunId, body: AnswerBody) -> RunReference:
    """Answer the open question of a run, a follow-up (`wf:…`) or the project (`question:…`); 409 if it is rejected."""
    require_readable(holder, body.attachments)
    try:
        await gateway.perdure.get_run(run_id).send_answer(HumanInput(**body.model_dump(), by=holder.name))
    except AnswerRejectedError:
        if Scope.read in holder.scopes:
            raise
        reason = "the run rejected the answer; a token that also has runs:read gets the reason"
        raise ApiError(409, reason, kind=ProblemKind.refused) from None
    gateway.lists.clear()
    return RunReference(run_id=run_id)


@router.post("/{run_id}/answers", dependencies=[needs_scope(Scope.answer)])
async def answer_run_questions(
    gateway: CurrentGateway, holder: CurrentCaller, run_id: RunId, body: AnswersBody
) -> AnswerResults:
    """Answer several open questions, in this order. A rejected answer does not stop the others."""
    results = []
    for answer in body.answers:
        reason = ""
        try:
            await gateway.perdure.get_run(run_id).send_answer(HumanInput(**answer.model_dump(), by=holder.name))
        except RejectedError as error:
            reason = str(error) if Scope.read in holder.scopes else "the run rejected the answer"
        results.append(AnswerResult(question_id=answer.question_id, accepted=not reason, reason=reason))
    gateway.lists.clear()
    return AnswerResults(run_id=run_id, results=tuple(results))


@router.post(
    "/{run_id}/tool-results",
    status_code=202,
    dependencies=[needs_scope(Scope.result)],
    responses={200: {"model": RunReference, "description": "The run had it already"}},
)
async def deliver_tool_result(
    gateway: CurrentGateway, run_id: RunId, event: ToolResultEvent, response: Response
) -> RunReference:
    """Deliver the event `agentic.tool_result` to its run, with the `nonce` of its request.

    409 if the run does not await it: a result sent here never ends a run.
    """
    if event.payload.run_id != run_id:
        raise ApiError(422, "payload.run_id differs from the run in the address", field="payload.run_id")
    if not event.nonce:
        raise ApiError(422, "nonce: send the nonce of the tool request", field="nonce")
    if not (await gateway.perdure.get_run(run_id).info()).is_open:
        raise ApiError(409, f"run {run_id} has ended", kind=ProblemKind.refused)
    if not await deliver_result(gateway.session.client, run_id, event):
        response.status_code = 200
    return RunReference(run_id=run_id)
