"""`Perdure`: agent runs from a Python program, through Temporal; no gateway is needed."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from pydantic import TypeAdapter, ValidationError
from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.service import RPCError

from activities.run.outcome import RunEnd
from contracts.conversation import SteerRequest, SubmitRequest
from contracts.run.events import CompletedPayload, StartEvent
from contracts.run.signals import CancelRequest, Decision, HumanInput
from contracts.run.state import RunStatus, RunView
from contracts.sender import PYTHON
from decisions import ids
from decisions.errors import ReportedError, format_validation_error
from perdure.client.connection import adopt_converter, connect
from perdure.client.door import set_sender
from perdure.client.errors import (
    RejectedError,
    RunCancelledError,
    RunEscalatedError,
    RunFailedError,
    convert_rpc_errors,
)
from perdure.client.lanes import has_joined_run, steer_run, submit_with_retry, wait_for_turn_start
from perdure.client.run_events import RunEvent
from perdure.client.run_list import find_run
from perdure.client.runs import (
    query_run_state,
    request_cancel,
    start_or_get_run,
    submit_answer,
    wait_for_run_end,
)
from perdure.client.watch import Watch
from perdure.codec import AesGcmCodec
from perdure.process.encryption_marker import check_encryption
from perdure.session import Needs, Session, open_session
from settings import Settings, load_settings

T = TypeVar("T")
QUESTION_CHECK_SECONDS = 5.0  # between checks whether a run waits for a person
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
        loaded = settings or load_settings()
        self._settings = replace(loaded, task_queue=task_queue) if task_queue else loaded
        self._connect: Callable[[], Awaitable[Client]] | None = None
        if client is not None:
            config = client.config()
            config["data_converter"] = adopt_converter(config["data_converter"], loaded.codec, loaded.payloads)

            async def adopt() -> Client:
                return Client(**config)

            self._connect = adopt
        self._session: Session | None = None
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
        session = Session(await self._connect(), self._settings, None)
        codec = session.client.data_converter.payload_codec
        if codec is None or isinstance(codec, AesGcmCodec):
            with convert_rpc_errors(f"task queue {self._settings.task_queue}"):
                await check_encryption(session.client, self._settings.task_queue, codec, session.has_worker)
        await _warn(session)
        yield session

    @property
    def session(self) -> Session:
        """The open connection. What this task sends from now on has the sender `python`."""
        if self._session is None:
            raise RuntimeError("Perdure is not open: use it in `async with Perdure() as perdure:`")
        set_sender(PYTHON)
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

        Raises RejectedError, TemporalUnavailableError, ProjectError if the project has no such agent.
        """
        if result_type is not None:
            payload["output_schema"] = TypeAdapter(result_type).json_schema()
        session = self.session
        with _convert_validation_errors():
            event = StartEvent.model_validate(
                {
                    "type": "agentic.start",
                    "payload": {"goal": goal, "agent": agent, **payload},
                    "dedupe_key": None if dedupe_key is None else ids.start_key(dedupe_key),
                }
            )
        self._check_agent(agent)
        handle = await start_or_get_run(session.client, session.settings.task_queue, event, run_id)
        started = ids.run_id_of_workflow(handle.id)
        if run_id is not None and dedupe_key is None and handle.first_execution_run_id is None:
            raise RejectedError(f"run {started} already exists; use get_run, or a dedupe_key in place of the id")
        return Run(started, self)

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
        session, key = self.session, request_id or secrets.token_hex(6)
        with _convert_validation_errors():
            request = SubmitRequest(request_id=key, goal=message, agent=agent, request_client="python", **fields)
        self._check_agent(agent)
        client, settings, own = session.client, session.settings, ids.turn_run_id(conversation, key)
        submitted = await submit_with_retry(client, settings.task_queue, conversation, request, settings.answer_keys)
        joined = await has_joined_run(client, conversation, submitted.run_id, own)
        return Run(submitted.run_id if joined else own, self, conversation)

    def get_run(self, run_id: str) -> "Run":
        """Return a run by its id. Its methods raise RunNotFoundError if it does not exist."""
        return Run(run_id, self)

    def _check_agent(self, agent: str | None) -> None:
        """Raise ProjectError if the project has no such agent. Another client's workers may have another project."""
        if self._connect is None:
            self._settings.check_agent(agent)


@dataclass(frozen=True)
class Run:
    """A run, by its `id`. `conversation` is set if it is the turn of one."""

    id: str
    _perdure: Perdure
    conversation: str | None = None

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
            end = await wait_for_run_end(self._perdure.session.client, self.id)
        finally:
            reporting.cancel()
        completed = _completed_payload(self.id, end)
        return completed if result_type is None else TypeAdapter(result_type).validate_python(completed.result)

    async def stream(self) -> AsyncIterator[RunEvent]:
        """Yield the events of the run, those so far first, to its end; they are those of `perdure watch --json`.

        The types are in `perdure.client.run_events`. Raises RunNotFoundError, TemporalUnavailableError.
        """
        await self._wait_for_start()
        session = self._perdure.session
        watch = Watch(session.client, self.id, workspaces=session.settings.workspaces)
        with convert_rpc_errors(f"run {self.id}"):
            async with aclosing(watch.positioned_events()) as entries:
                async for _, event in entries:
                    yield event

    async def state(self) -> RunView | None:
        """Return status, open question, plan, steps and cost; None if no worker answers. Raises RunNotFoundError."""
        return await query_run_state(self._perdure.session.client, self.id)

    async def answer(self, text: str | None = None, *, decision: Decision | str | None = None, **fields: Any) -> None:
        """Answer the open question, with a text or a decision such as "approve" or "deny".

        `fields` has the other fields of an answer: `question_id`, `call`, `by`. Raises AnswerRejectedError with the
        run's reason, RejectedError, RunNotFoundError, TemporalUnavailableError without a worker.
        """
        session = self._perdure.session
        with _convert_validation_errors():
            body = HumanInput.model_validate({"text": text, "decision": decision, **fields})
        await submit_answer(session.client, self.id, body, session.settings.answer_keys)

    async def steer(self, text: str) -> None:
        """Send the agent a message, for its next model call. Raises RejectedError if the run has ended."""
        client = self._perdure.session.client
        with _convert_validation_errors():
            message = SteerRequest(request_id=secrets.token_hex(6), text=text)
        await steer_run(client, self.id, message)

    async def cancel(self, reason: str | None = None) -> None:
        """Ask the run to stop; a side effect in progress finishes first. Raises RejectedError if the run has ended."""
        client = self._perdure.session.client
        with _convert_validation_errors():
            body = CancelRequest(reason=reason, by="python")
        await request_cancel(client, self.id, body)

    async def _report_question(self) -> None:
        """Log that the run waits for a person: the program would wait without a sign of the cause."""
        status = None
        while status != RunStatus.waiting_on_human:
            await asyncio.sleep(QUESTION_CHECK_SECONDS)
            with suppress(ReportedError, RPCError):
                status = (run := await find_run(self._perdure.session.client, self.id)).status
        question = run.waiting_for.removeprefix("human: ")
        _log.warning("run %s waits for a person: %s (perdure show %s)", self.id, question, self.id)

    async def _wait_for_start(self) -> None:
        """Wait until a turn has started. Raises RunCancelledError if it was dropped before."""
        client = self._perdure.session.client
        if self.conversation and not await wait_for_turn_start(client, self.conversation, self.id):
            raise RunCancelledError(self.id, "", "its message was dropped")


def _completed_payload(run_id: str, end: RunEnd) -> CompletedPayload:
    """Return the result of a completed run. Raises RunNotCompletedError for another end."""
    if end.status is RunStatus.completed and end.event is not None:
        return CompletedPayload.model_validate(end.event["payload"])
    reason, text = end.kind, end.message
    if end.event is not None:
        reason, text = end.event["payload"]["reason"], end.event["payload"]["detail"]
    raise _ERRORS.get(end.status, RunFailedError)(run_id, reason, text, end.handoff)


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
