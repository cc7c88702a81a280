"""OpenTelemetry spans of activity attempts, events and, at its end, the whole run.

Nothing is passed from workflow to activity: the ids of a run's trace and root span derive from the run's id. Spans hold
figures and names, and text of the conversation only if a variable asks for it. Needs the extra `telemetry`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Self, TypeVar

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from pydantic_core import to_json
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHistoryEventFilterType
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.activities.providers.port import ModelCall
from perdure.activities.security import Secrets
from perdure.activities.telemetry.attributes import AGENT_NAME, AGENT_STATUS, AGENT_STEP, CONVERSATION_ID, COST_USD
from perdure.activities.telemetry.facts import attempt_facts
from perdure.activities.telemetry.metrics import add_observer
from perdure.contracts.run.state import CloseRequest, RunStatus
from perdure.decisions import telemetry
from perdure.decisions.ids import root_span_id, trace_id
from perdure.decisions.text.formatting import truncate

TIMEOUT_STATUSES = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)  # the client's timeout passed
RUN_WORKFLOW = "AgentRun"  # the workflow type whose trace has a root span
SERVER_TIMEOUT = timedelta(seconds=5)  # for one answer of the server
MAX_END_DELAY = timedelta(minutes=2)  # from a run's last activity to its end, on a busy machine too

R = TypeVar("R")

_log = logging.getLogger(__name__)

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"  # of OpenTelemetry's conventions
CAPTURES = ("true", "1", "span_only", "span_and_event")
CONVERSATION_ATTRIBUTES = ("gen_ai.conversation.id", "session.id")  # viewers group traces by either
MAX_CONTENT = 32_000  # characters of an attribute
EXPORT_PROTOCOL = "http/protobuf"


class _Ids(RandomIdGenerator):
    """Generates random ids, except at the start of a trace, whose ids are given."""

    def __init__(self) -> None:
        self.begins: ContextVar[tuple[int, int | None] | None] = ContextVar("begins", default=None)

    def generate_trace_id(self) -> int:
        begins = self.begins.get()
        return begins[0] if begins else super().generate_trace_id()

    def generate_span_id(self) -> int:
        begins = self.begins.get()
        return (begins and begins[1]) or super().generate_span_id()


class SpanInterceptor(Interceptor):
    """The worker's interceptor for spans, outside the redaction: failures are already redacted."""

    def __init__(self, exporter: SpanExporter, client: Client, secrets: Secrets, *, has_content: bool = False) -> None:
        self._client = client
        self._has_content = has_content
        self._secrets = secrets
        self._ids = _Ids()
        self._provider = TracerProvider(resource=_build_resource(), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("perdure")
        self._ending: dict[str, asyncio.Task[None]] = {}  # by Temporal's run id

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], client: Client, secrets: Secrets) -> Self:
        """Export to the collector of OTEL_EXPORTER_OTLP_*. Raises ValueError for an unsupported protocol or URL."""
        protocol = next((environment[name] for name in PROTOCOL_VARIABLES if environment.get(name)), EXPORT_PROTOCOL)
        if protocol != EXPORT_PROTOCOL:
            raise ValueError(f"{PROTOCOL_VARIABLES[-1]}: spans are exported by {EXPORT_PROTOCOL}, not by {protocol}")
        endpoint = next(name for name in ENDPOINT_VARIABLES if environment.get(name))
        if not environment[endpoint].startswith(("http://", "https://")):
            raise ValueError(f"{endpoint}: expected an address that begins with http:// or https://")
        has_content = environment.get(CONTENT_VARIABLE, "").strip().lower() in CAPTURES
        return cls(OTLPSpanExporter(), client, secrets, has_content=has_content)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's
        return _Inbound(next, self)

    @contextmanager
    def attempt_span(self, activity_type: str, request: Any, run: str) -> Iterator[Span]:
        info = activity.info()
        workflow_id = run or info.workflow_id or ""
        in_run = bool(run) or info.workflow_type == RUN_WORKFLOW
        with self._with_ids(info.namespace, workflow_id):
            span = self._tracer.start_span(
                telemetry.span_name(activity_type, request),
                context=_root_context(info.namespace, workflow_id) if in_run else Context(),
                kind=SpanKind.CLIENT if activity_type in telemetry.MODEL_TURNS else SpanKind.INTERNAL,
                attributes=self._redact_attributes(
                    {
                        **telemetry.run_attributes(workflow_id),
                        **telemetry.request_attributes(activity_type, request),
                        "perdure.activity": activity_type,
                        "perdure.attempt": info.attempt,
                        "temporalRunID": info.workflow_run_id or "",
                        "temporalActivityID": info.activity_id,
                    }
                )
                | self._format_content(telemetry.request_content, request),
            )
        try:
            yield span
        except BaseException as error:
            span.set_attributes(self._redact_attributes(about_failure(error)))
            if not isinstance(error, asyncio.CancelledError):
                span.set_status(StatusCode.ERROR)
            raise
        finally:
            span.set_attributes(self._redact_attributes(telemetry.fact_attributes(attempt_facts())))
            span.set_attributes(self._format_call(attempt_facts().get("call")))
            span.end()

    async def observe(self, activity_type: str, request: Any, work: Awaitable[R], run: str = "") -> R:
        """Await an attempt in a span of its own."""
        with self.attempt_span(activity_type, request, run) as span:
            result = await work
            self.record_result(span, result)
        return result

    def record_result(self, span: Span, result: Any) -> None:
        attributes = telemetry.result_attributes(result)
        span.set_attributes(self._redact_attributes(attributes))
        span.set_attributes(self._format_content(telemetry.result_content, result))
        if "error.type" in attributes:
            span.set_status(StatusCode.ERROR)

    def record_event(
        self, figures: Mapping[str, Any], namespace: str, workflow_id: str, *, in_run: bool, at: float
    ) -> None:
        """Record an event as a span of zero length. `at` is in seconds since 1970."""
        with self._with_ids(namespace, workflow_id):
            span = self._tracer.start_span(
                str(figures["event"]),
                context=_root_context(namespace, workflow_id) if in_run else Context(),
                attributes=self._redact_attributes(
                    {**telemetry.run_attributes(workflow_id), **telemetry.event_attributes(figures)}
                ),
                start_time=_to_nanoseconds(at),
            )
            span.end(_to_nanoseconds(at))

    def record_run_end(self, request: CloseRequest) -> None:
        """Record the root span of this activity's run, which is about to end, in the background."""
        info = activity.info()
        execution = info.workflow_run_id or ""
        if execution not in self._ending:  # else this is a retry
            task = self._ending[execution] = asyncio.create_task(self._record_root_span(info, request))
            task.add_done_callback(lambda _: self._ending.pop(execution))

    async def _record_root_span(self, info: activity.Info, request: CloseRequest) -> None:
        """Record the root span. The server provides name, status and start: a single execution does not have them."""
        workflow_id = info.workflow_id or ""
        try:
            await self._wait_until_closed(workflow_id, info.workflow_run_id)
            run = await self._describe_run(workflow_id, info.workflow_run_id)
            started = await self._run_start(run)
        except RPCError as error:
            _log.warning("no root span of %s: %s", workflow_id, error)
            return
        known = run.typed_search_attributes
        status, agent = known.get(AGENT_STATUS, ""), known.get(AGENT_NAME, "")
        conversation = known.get(CONVERSATION_ID)
        with self._with_ids(info.namespace, workflow_id, root_span_id(info.namespace, workflow_id)):
            span = self._tracer.start_span(
                f"invoke_agent {agent}".strip(),
                context=Context(),
                start_time=_to_nanoseconds(started.timestamp()),
                attributes=self._redact_attributes(
                    {
                        **telemetry.run_attributes(workflow_id),
                        "gen_ai.operation.name": "invoke_agent",
                        "gen_ai.agent.name": agent,
                        **dict.fromkeys(CONVERSATION_ATTRIBUTES if conversation else (), conversation),
                        "perdure.outcome": status,
                        "perdure.steps": known.get(AGENT_STEP, 0),
                        "perdure.cost_usd": known.get(COST_USD, 0.0),
                        "temporalRunID": info.workflow_run_id or "",
                    }
                )
                | self._format_content(telemetry.run_content, request.event or {"payload": {}}),
            )
        if status in (RunStatus.failed, RunStatus.timed_out):
            span.set_status(StatusCode.ERROR)
        span.end()

    async def _run_start(self, last: WorkflowExecutionDescription) -> datetime:
        """Return the start of the run's first execution, or of its last one if the server has forgotten the first."""
        first = last.raw_description.workflow_execution_info.first_run_id
        if first in ("", last.run_id):
            return last.start_time
        try:
            return (await self._describe_run(last.id, first)).start_time
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return last.start_time

    async def _wait_until_closed(self, workflow_id: str, execution: str | None) -> None:
        """Wait until the execution is closed, and its last status known. Raises RPCError if it stays open."""
        handle = self._client.get_workflow_handle(workflow_id, run_id=execution)
        deadline = monotonic() + MAX_END_DELAY.total_seconds()
        while True:
            events = handle.fetch_history_events(
                wait_new_event=True,
                event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT,
                skip_archival=True,
                rpc_timeout=SERVER_TIMEOUT,
            )
            try:
                await anext(events, None)
                return
            except RPCError as error:
                if error.status not in TIMEOUT_STATUSES or monotonic() >= deadline:
                    raise

    async def _describe_run(self, workflow_id: str, execution: str | None) -> WorkflowExecutionDescription:
        return await self._client.get_workflow_handle(workflow_id, run_id=execution).describe(
            rpc_timeout=SERVER_TIMEOUT
        )

    async def close(self) -> None:
        """Export the remaining spans, within the exporter's own timeout. Runs that are still open get no root span."""
        if ending := list(self._ending.values()):
            _, pending = await asyncio.wait(ending, timeout=SERVER_TIMEOUT.total_seconds())
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        await asyncio.to_thread(self._provider.shutdown)

    @contextmanager
    def _with_ids(self, namespace: str, workflow_id: str, span: str | None = None) -> Iterator[None]:
        """Give spans that start in the block this trace, and the id `span` if there is one."""
        ids = int(trace_id(namespace, workflow_id), 16), int(span, 16) if span else None
        token = self._ids.begins.set(ids)
        try:
            yield
        finally:
            self._ids.begins.reset(token)

    def _format_content(self, read: Callable[[Any], dict[str, Any]], value: Any) -> dict[str, str]:
        """Return attributes with text of the conversation, as JSON without secrets, if they are wanted."""
        content = read(value) if self._has_content else {}
        clean = {name: to_json(self._secrets.redact_value(part)).decode() for name, part in content.items()}
        return {name: truncate(text, MAX_CONTENT) for name, text in clean.items()}

    def _format_call(self, call: ModelCall | None) -> dict[str, str]:
        """Return what a model was sent, if it is wanted: the latest messages, as many as fit."""
        if call is None or not self._has_content:
            return {}
        messages: list[str] = []
        left = MAX_CONTENT
        for message in reversed(call.messages):
            text = to_json(self._secrets.redact_value(telemetry.input_message(message))).decode()
            if messages and len(text) > left:
                break
            messages.insert(0, truncate(text, MAX_CONTENT))
            left -= len(text)
        system = self._format_content(
            lambda front: {"gen_ai.system_instructions": telemetry.system_content(front)}, call.front
        )
        return system | {"gen_ai.input.messages": f"[{','.join(messages)}]"}

    def _redact_attributes(self, attributes: dict[str, Any]) -> dict[str, Any]:
        clean: dict[str, Any] = self._secrets.redact_value(attributes)
        return clean


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, spans: SpanInterceptor) -> None:
        super().__init__(inner)
        self._spans = spans

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        request = input.args[0] if input.args else None
        add_observer(self._spans)
        result = await self._spans.observe(activity.info().activity_type, request, super().execute_activity(input))
        if isinstance(request, CloseRequest) and request.journal is not None:
            self._spans.record_run_end(request)
        return result


class SpanEventHandler(logging.Handler):
    """Records each structured event of the log as a span."""

    def __init__(self, spans: SpanInterceptor) -> None:
        super().__init__()
        self._spans = spans

    def emit(self, record: logging.LogRecord) -> None:
        source = getattr(record, "temporal_workflow", None) or getattr(record, "temporal_activity", None)
        figures = getattr(record, "event", None)
        if source and figures:
            in_run = source["workflow_type"] == RUN_WORKFLOW
            self._spans.record_event(
                figures, source["namespace"], source["workflow_id"], in_run=in_run, at=record.created
            )


def about_failure(error: BaseException) -> dict[str, Any]:
    """Return the kind of a failure. Its message is left out: it may quote the conversation."""
    if isinstance(error, asyncio.CancelledError):
        return {"perdure.outcome": "cancelled"}
    kind = error.type if isinstance(error, ApplicationError) and error.type else type(error).__name__
    return {"perdure.outcome": "failed", "error.type": kind}


def _root_context(namespace: str, workflow_id: str) -> Context:
    """Return the context of the run's root span, which is recorded at the run's end."""
    root = SpanContext(
        trace_id=int(trace_id(namespace, workflow_id), 16),
        span_id=int(root_span_id(namespace, workflow_id), 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return set_span_in_context(NonRecordingSpan(root), Context())


def _to_nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000) * 1000


def _build_resource() -> Resource:
    """Return the environment's resource; the default service name is `perdure`."""
    resource = Resource.create()
    name = str(resource.attributes.get("service.name", ""))
    return resource.merge(Resource({"service.name": "perdure"})) if name.startswith("unknown_service") else resource
