"""`Perdure`: runs from the outside, through Temporal. The commands, the gateway and the MCP server translate to it."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json
from temporalio.client import Client, WorkflowHandle
from temporalio.envconfig import ClientConnectConfig
from temporalio.service import RPCError

from perdure.activities.run.outcome import RunEnd
from perdure.activities.temporal import QueryCache
from perdure.client.connection import adopt_converter, connect
from perdure.client.details import RunDetails, read_details
from perdure.client.door import check_request, set_sender
from perdure.client.errors import (
    RejectedError,
    RunCancelledError,
    RunEscalatedError,
    RunFailedError,
    convert_rpc_errors,
)
from perdure.client.guard import watching_server, with_guard
from perdure.client.lanes import (
    forget_lane_turn,
    has_joined_run,
    query_lane,
    steer_run,
    submit_with_retry,
    wait_for_turn_start,
)
from perdure.client.questions import ANY, INBOX_QUERY_TIMEOUT, QuestionFilter, QuestionList, list_questions
from perdure.client.run_list import RunInfo, find_run
from perdure.client.runs import (
    STATE_QUERY_TIMEOUT,
    fork_run,
    plan_from_dry_run,
    query_run_state,
    request_cancel,
    resume_run,
    start_or_get_run,
    submit_answer,
    wait_for_run_end,
)
from perdure.codec import AesGcmCodec
from perdure.contracts.conversation import Forgotten, LaneView, SteerRequest, SubmitRequest, Submitted
from perdure.contracts.people import PYTHON, Sender
from perdure.contracts.run.events import CompletedPayload, StartEvent, StartPayload
from perdure.contracts.run.signals import CancelRequest, Decision, HumanInput
from perdure.contracts.run.state import RunStatus, RunView
from perdure.decisions import ids
from perdure.decisions.errors import ReportedError, format_validation_error
from perdure.decisions.run.transcript import without_thinking
from perdure.process.queue_marker import check_marker, check_owner
from perdure.session import Needs, Session, open_session
from perdure.settings import Settings, load_settings

if TYPE_CHECKING:
    from perdure.client.overview import Overview
    from perdure.client.run_events import RunEvent
    from perdure.client.watch import EventPosition, Watch
    from perdure.process.agents import AgentList

T = TypeVar("T")
QUESTION_CHECK_SECONDS = 5.0  # between checks whether a run waits for a person
WORKER_TIMEOUT = 2.0  # seconds
_log = logging.getLogger("perdure")
_ERRORS = {RunStatus.escalated: RunEscalatedError, RunStatus.cancelled: RunCancelledError}


class Perdure:
    """A client of agent runs.

        async with Perdure() as perdure:
            invoice = await perdure.run("Read the invoice", agent="clerk", result_type=Invoice)

    `Perdure()` uses the project in the current folder, and connects as `perdure run` does: to the Temporal of
    TEMPORAL_*, or without these to the project's embedded server, with a worker in this process while the block is
    open. `Perdure(client=…)` uses a Temporal client that you have, and `Perdure.connect(address)` another server.

    Runs do not end with the block or the program: any worker of the project continues them.

    Expected errors are a `ReportedError` with a message of one line.
    """

    def __init__(
        self, settings: Settings | None = None, *, client: Client | None = None, task_queue: str | None = None
    ) -> None:
        """Read the project's settings, by default from the current folder and the environment. Raises ProjectError.

        A `client` keeps its address and namespace, and gets Perdure's data converter. `task_queue` is the workers'.
        """
        loaded = settings or load_settings(strict=False)
        self._settings = replace(loaded, task_queue=task_queue) if task_queue else loaded
        self._connect: Callable[[], Awaitable[Client]] | None = None
        if client is not None:
            config = client.config()
            config["data_converter"] = adopt_converter(config["data_converter"], loaded.codec, loaded.payloads)

            async def adopt() -> Client:
                return Client(**with_guard(config))

            self._connect = adopt
        self._session: Session | None = None
        self._sender: Sender | None = PYTHON
        self._closing = AsyncExitStack()

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        settings: Settings | None = None,
        task_queue: str | None = None,
        **options: Unpack[ClientConnectConfig],
    ) -> Self:
        """Return a client of the Temporal at `address`, "host:port". TEMPORAL_* does not apply.

        `options` are those of Temporal's client: `namespace`, `api_key`, `tls`.
        """
        opened = cls(settings, task_queue=task_queue)
        own = opened._settings
        opened._connect = lambda: connect(address, own.codec, own.payloads, options)
        return opened

    @classmethod
    def over(cls, session: Session) -> Self:
        """Return a client over the open session of a door, which sets the sender itself (`set_sender`)."""
        opened = cls(session.settings)
        opened._session, opened._sender = session, None
        return opened

    async def __aenter__(self) -> Self:
        self._session = await self._closing.enter_async_context(self._open_session())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        await self._closing.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _open_session(self) -> AsyncIterator[Session]:
        """Raises TemporalUnavailableError, ProjectError, ServerStartError."""
        if self._connect is None:
            async with open_session(self._settings, Needs.work, logs=False) as session:
                await _warn(session)
                yield session
            return
        settings = self._settings
        session = Session(await self._connect(), settings, None)
        await check_owner(session.client, settings.home, settings.name)
        codec = session.client.data_converter.payload_codec
        if codec is None or isinstance(codec, AesGcmCodec):
            with convert_rpc_errors(f"task queue {settings.task_queue}"):
                await check_marker(session.client, settings.task_queue, codec, session.has_worker, settings.name)
        await _warn(session)
        async with watching_server(session.client):
            yield session

    @property
    def session(self) -> Session:
        """The open connection. The sender of all that a program's task sends from now on is `python`."""
        if self._session is None:
            raise RuntimeError("Perdure is not open: use it in `async with Perdure() as perdure:`")
        if self._sender is not None:
            set_sender(self._sender)
        return self._session

    @overload
    async def run(self, goal: str, *, result_type: type[T], **options: Any) -> T: ...
    @overload
    async def run(self, goal: str, *, result_type: None = None, **options: Any) -> CompletedPayload: ...
    async def run(self, goal: str, *, result_type: type[T] | None = None, **options: Any) -> T | CompletedPayload:
        """Start a run, wait for its end, and return its result. The options are those of `start`.

        With a `result_type`, the result is one; without, it has `outcome` and `artifacts`, and `result` if the agent
        has an output schema. If this call is cancelled, the run goes on: a `run_id` or `dedupe_key` finds it again.

        Raises RunEscalatedError, RunFailedError, RunCancelledError, and what `start` raises.
        """
        return await (await self.start(goal, result_type=result_type, **options)).result(result_type)

    async def start(
        self,
        goal: str,
        *,
        agent: str | None = None,
        result_type: Any = None,
        run_id: str | None = None,
        dedupe_key: str | None = None,
        **payload: Any,
    ) -> "Run":
        """Start a run, and return it.

        `payload` has the other fields of a start: `context`, `limits`, `output_schema` and so on. The JSON Schema of
        `result_type`, a pydantic model or another type that pydantic knows, is the output schema. Starting again with
        the same `dedupe_key` returns the same run.

        Raises RejectedError, TemporalUnavailableError.
        """
        if result_type is not None:
            payload["output_schema"] = _schema_of(result_type)
        with _convert_validation_errors():
            event = StartEvent.model_validate(
                {
                    "type": "agentic.start",
                    "payload": {"goal": goal, "agent": agent, **payload},
                    "dedupe_key": None if dedupe_key is None else ids.start_key(dedupe_key),
                }
            )
        run = await self.begin(event, run_id)
        if run_id is not None and dedupe_key is None and not run.is_new:
            raise RejectedError(f"run {run.id} already exists; use get_run, or a dedupe_key in place of the id")
        return run

    async def begin(self, event: StartEvent, run_id: str | None = None) -> "Run":
        """Start a run by its event, or return the one that this id or dedupe key started before.

        Agent, pace, sizes and schemas are checked here, for all doors. Raises RejectedError, TemporalUnavailableError.
        """
        session = self.session
        handle = await start_or_get_run(
            session.client, session.settings.task_queue, event, run_id, project=self.project
        )
        return _to_run(self, handle)

    async def submit(
        self,
        message: str,
        *,
        conversation: str,
        agent: str | None = None,
        request_id: str | None = None,
        **fields: Any,
    ) -> "Run":
        """Submit a message to a conversation, and return the run that answers it, which may have to wait its turn.

        `fields` has the other fields of a request, such as `when_busy` and `context`. Submitting again with the same
        `request_id` has no effect. Raises RejectedError, TemporalUnavailableError.
        """
        key = request_id or secrets.token_hex(6)
        with _convert_validation_errors():
            request = SubmitRequest(request_id=key, goal=message, agent=agent, request_client="python", **fields)
        submitted = await self.conversation(conversation).submit(request)
        own = ids.turn_run_id(conversation, key)
        joined = await has_joined_run(self.session.client, conversation, submitted.run_id, own)
        return Run(submitted.run_id if joined else own, self, conversation)

    def conversation(self, conversation_id: str) -> "Lane":
        """Return a conversation by its id. The first request opens it."""
        return Lane(conversation_id, self)

    async def questions(
        self,
        only: QuestionFilter = ANY,
        limit: int = 100,
        patience: timedelta = INBOX_QUERY_TIMEOUT,
        cache: QueryCache | None = None,
    ) -> QuestionList:
        """Return the open questions of all runs and follow-ups, those of the latest runs first.

        A run whose worker does not answer within `patience` has a short form. Raises TemporalUnavailableError.
        """
        return await list_questions(self.session.client, limit, only, patience, cache)

    async def agents(self) -> "AgentList":
        """Return the project's agents, with their tools and JSON Schemas, as far as they load in this process.

        Those of the project in this process: the workers of another server may have another one.
        """
        from perdure.process.agents import describe_agents

        return await asyncio.to_thread(describe_agents, self._settings)  # it imports the project's tools

    async def overview(self, since: datetime | None = None) -> "Overview":
        """Return the project in short: what its runs did since a time, what is open, what needs a person.

        By default that is the last day. It costs some nine lists, of which a namespace allows 30 a second.
        Raises NotSearchableError, TemporalUnavailableError.
        """
        from perdure.client.overview import Overview, read_figures, read_runs_overview  # most clients show none

        session = self.session
        runs, figures, has_worker = await asyncio.gather(
            read_runs_overview(session.client, since or datetime.now(UTC) - timedelta(days=1)),
            read_figures(session.client, session.settings),
            _find_worker(session),
        )
        return Overview(
            **dict(runs),
            figures=figures,
            has_worker=has_worker,
            task_queue=session.settings.task_queue,
            namespace=session.client.namespace,
            web_ui=session.ui,
        )

    def get_run(self, run_id: str) -> "Run":
        """Return a run by its id. Its methods raise RunNotFoundError if it does not exist."""
        return Run(run_id, self)

    @property
    def project(self) -> Settings | None:
        """The project of the workers, if it is known: those of another server or client may have another one."""
        return self._settings if self._connect is None else None


def _schema_of(result_type: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type. Raises RejectedError if it has none."""
    try:
        return TypeAdapter(result_type).json_schema()
    except (PydanticUserError, NameError, KeyError) as error:  # KeyError: a reference of the type's own to nothing
        reason = str(error).partition("\n")[0]
        raise RejectedError(f"result_type {result_type!r} has no JSON Schema: {reason}") from None


@dataclass(frozen=True)
class Run:
    """A run, by its `id`. `conversation` is set if it is the turn of one. `is_new`: this start began it."""

    id: str
    _perdure: Perdure
    conversation: str | None = None
    is_new: bool = False

    @overload
    async def result(self, result_type: type[T]) -> T: ...
    @overload
    async def result(self, result_type: None = None) -> CompletedPayload: ...
    async def result(self, result_type: type[T] | None = None) -> T | CompletedPayload:
        """Wait for the run's end, and return its result, validated as `result_type` if given.

        Raises RunEscalatedError, RunFailedError, RunCancelledError, RunNotFoundError, TemporalUnavailableError, and
        pydantic's ValidationError if the result matches the schema and not a validator of the type.
        """
        await self._wait_for_start()
        reporting = asyncio.create_task(self._report_question())
        try:
            end = await self.end()
        finally:
            reporting.cancel()
        completed = _completed_payload(self.id, end)
        if result_type is None:
            return completed
        return TypeAdapter(result_type).validate_json(to_json(completed.result))  # a strict type reads more from JSON

    async def stream(self) -> AsyncIterator["RunEvent"]:
        """Yield the events of the run, those so far first, to its end; they are those of `perdure watch --json`.

        The types are in `perdure.client.run_events`. Raises RunNotFoundError, TemporalUnavailableError.
        """
        await self._wait_for_start()
        with convert_rpc_errors(f"run {self.id}"):
            async with aclosing(self.watch().positioned_events()) as entries:
                async for _, event in entries:
                    yield event

    def watch(self, after: "EventPosition | None" = None) -> "Watch":
        """Return a watch of the events, each with its position in history; with a position, of those after it."""
        from perdure.client.watch import Watch  # who follows no run needs no events

        session = self._perdure.session
        return Watch(session.client, self.id, after=after, workspaces=session.settings.workspaces)

    async def state(self, patience: timedelta = STATE_QUERY_TIMEOUT) -> RunView | None:
        """Return status, open question, plan, steps and cost; None if no worker answers. Raises RunNotFoundError."""
        return await query_run_state(self._perdure.session.client, self.id, patience)

    async def info(self) -> RunInfo:
        """Return the server's record of the run, which needs no worker. Raises RunNotFoundError, RejectedError."""
        return await find_run(self._perdure.session.client, self.id)

    async def details(self, patience: timedelta = STATE_QUERY_TIMEOUT, *, subtasks: bool = True) -> RunDetails:
        """Return all of the run: the server's record, its state if a worker answers, its end, and its subtasks.

        The subtasks cost a list, of which a namespace allows some 30 a second.
        Raises RunNotFoundError, RejectedError for a follow-up, TemporalUnavailableError.
        """
        return await read_details(self._perdure.session.client, self.id, patience, subtasks=subtasks)

    async def end(self) -> RunEnd:
        """Wait for the run's end, and return it whatever it is. Raises RunNotFoundError, TemporalUnavailableError."""
        return await wait_for_run_end(self._perdure.session.client, self.id)

    async def answer(self, text: str | None = None, *, decision: Decision | str | None = None, **fields: Any) -> None:
        """Answer the open question, with a text or a decision such as "approve" or "deny".

        `fields` has the other fields of an answer: `question_id`, `call`, `by`. Raises AnswerRejectedError with the
        run's reason, RejectedError, RunNotFoundError, TemporalUnavailableError without a worker.
        """
        with _convert_validation_errors():
            body = HumanInput.model_validate({"text": text, "decision": decision, **fields})
        await self.send_answer(body)

    async def send_answer(self, body: HumanInput) -> None:
        """Answer the open question, signed with one of the project's keys if the run requires that.

        The run may be a follow-up, `wf:<workflowId>`. Raises as `answer`.
        """
        session = self._perdure.session
        await submit_answer(session.client, self.id, body, session.settings.answer_keys)

    async def steer(self, text: str) -> None:
        """Send the agent a message, for its next model call. Raises RejectedError if the run has ended."""
        client = self._perdure.session.client
        with _convert_validation_errors():
            message = SteerRequest(request_id=secrets.token_hex(6), text=text)
        await steer_run(client, self.id, message)

    async def cancel(self, reason: str | None = None, *, by: str = "python") -> None:
        """Ask the run to stop; a side effect in progress finishes first. Raises RejectedError if the run has ended."""
        client = self._perdure.session.client
        with _convert_validation_errors():
            body = CancelRequest(reason=reason, by=by)
        await request_cancel(client, self.id, body)

    async def resume(self) -> "Run":
        """Resume a failed or timed-out run as a new run, always the same. Raises RunNotFoundError, RejectedError."""
        session = self._perdure.session
        return _to_run(self._perdure, await resume_run(session.client, session.settings.task_queue, self.id))

    async def fork(self, step: int, say: str | None = None) -> "Run":
        """Start a new run that continues from this one's state after `step`. Raises RunNotFoundError, RejectedError."""
        session = self._perdure.session
        return _to_run(self._perdure, await fork_run(session.client, session.settings.task_queue, self.id, step, say))

    async def record(self, *, subtasks: bool = False, asks: bool = True) -> dict[str, Any]:
        """Return the whole record of the run as JSON, without secrets; with `subtasks`, theirs are in it.

        What could not be read is named in `missing`. Without `asks` no worker is asked for the end of the conversation.
        Raises RunNotFoundError, RejectedError for a follow-up, TemporalUnavailableError.
        """
        from perdure.activities.storage.store import LocalStores
        from perdure.client.records.export import Exporter

        session = self._perdure.session
        settings = session.settings
        exporter = Exporter(session.client, settings.stores, LocalStores(settings.workspaces), asks)
        record = await exporter.export(self.id)
        fields: dict[str, Any] = record.model_dump(mode="json")
        if subtasks:
            exporter.asks = record.state is not None  # do not wait again for a worker that did not answer
            for subtask in fields["subtasks"]:
                subtask["export"] = (await exporter.export(subtask["run_id"])).model_dump(mode="json")
        recorded = fields if settings.file.model.record_thinking else without_thinking(fields)
        shown: dict[str, Any] = settings.secrets.redact_value(recorded)
        return shown

    async def planned(self, without: Collection[int] = ()) -> StartPayload:
        """Return the payload of this dry run as that of a real one, whose calls the starter approves.

        The steps `without` are not part of the plan. Raises RejectedError, RunNotFoundError.
        """
        return await plan_from_dry_run(self._perdure.session.client, self.id, without)

    async def _report_question(self) -> None:
        """Log that the run waits for a person: the program would wait without a sign of the cause."""
        status = None
        while status != RunStatus.waiting_on_human:
            await asyncio.sleep(QUESTION_CHECK_SECONDS)
            with suppress(ReportedError, RPCError):
                status = (run := await self.info()).status
        question = run.waiting_for.removeprefix("human: ")
        _log.warning("run %s waits for a person: %s (perdure show %s)", self.id, question, self.id)

    async def _wait_for_start(self) -> None:
        """Wait until a turn has started. Raises RunCancelledError if it was dropped before."""
        client = self._perdure.session.client
        if self.conversation and not await wait_for_turn_start(client, self.conversation, self.id):
            raise RunCancelledError(self.id, "", "its message was dropped")


@dataclass(frozen=True)
class Lane:
    """A conversation from the outside, by its `id`."""

    id: str
    _perdure: Perdure

    async def submit(self, request: SubmitRequest, *, closes: bool = False) -> Submitted:
        """Submit a request, which is checked here for all doors. Submitting it again has no effect.

        With `closes`, a lane that this opens closes when it is idle; the next request opens it again.

        Raises RequestRejectedError with the lane's reason, RejectedError, TemporalUnavailableError.
        """
        session = self._perdure.session
        check_request(request, self._perdure.project)
        settings = session.settings
        keys = settings.answer_keys
        return await submit_with_retry(session.client, settings.task_queue, self.id, request, keys, closes=closes)

    async def state(self, cache: QueryCache | None = None) -> LaneView | None:
        """Return the active turn, the queue and the latest turns, if a worker answers. Raises RunNotFoundError."""
        return await query_lane(self._perdure.session.client, self.id, cache)

    async def forget(self, run_id: str | None = None) -> Forgotten:
        """Omit an ended turn, by default the latest, as of the next turn. Its effects are not undone.

        Raises RequestRejectedError with the lane's reason, RunNotFoundError, TemporalUnavailableError.
        """
        return await forget_lane_turn(self._perdure.session.client, self.id, run_id)


def _to_run(perdure: Perdure, handle: WorkflowHandle[Any, Any]) -> Run:
    """Only the handle of a start that began its run has a `first_execution_run_id`."""
    return Run(ids.run_id_of_workflow(handle.id), perdure, is_new=handle.first_execution_run_id is not None)


def _completed_payload(run_id: str, end: RunEnd) -> CompletedPayload:
    """Return the result of a completed run. Raises RunNotCompletedError for another end."""
    if end.status is RunStatus.completed and end.event is not None:
        return CompletedPayload.model_validate(end.event["payload"])
    reason, text = end.kind, end.message
    if end.event is not None:
        reason, text = end.event["payload"]["reason"], end.event["payload"]["detail"]
    raise _ERRORS.get(end.status, RunFailedError)(run_id, reason, text, end.handoff)


async def _find_worker(session: Session) -> bool | None:
    """Return whether a worker polls; None if it is starting, or if this client may not know."""
    with suppress(RPCError, TimeoutError):
        async with asyncio.timeout(WORKER_TIMEOUT):
            return await session.has_worker()
    return None


async def _warn(session: Session) -> None:
    """Log that no model or no worker is there: the program would wait without a sign of the cause."""
    if session.ui and session.rehearsal_message:
        _log.warning(session.rehearsal_message)
    with suppress(RPCError):  # not permitted
        if missing := await session.missing_worker_message():
            _log.warning(missing)


@contextmanager
def _convert_validation_errors() -> Iterator[None]:
    """Raises RejectedError."""
    try:
        yield
    except ValidationError as error:
        raise RejectedError(format_validation_error(error, without="payload")) from None
