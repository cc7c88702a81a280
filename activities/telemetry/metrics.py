"""The metrics of each activity attempt."""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from contextvars import ContextVar
from datetime import timedelta
from time import perf_counter
from typing import Any, Protocol, TypeVar

from temporalio import activity
from temporalio.common import MetricHistogramTimedelta, MetricMeter
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.activities.telemetry.facts import attempt_facts, set_facts
from perdure.contracts.run.turn import Acceptance, ModelTurn, PolicyReview, Summary, TurnRequest, Usage
from perdure.contracts.tool import ToolCall, ToolOutcome
from perdure.decisions import telemetry
from perdure.decisions.telemetry import HELP, Count

R = TypeVar("R")


def add_counts(meter: MetricMeter, counts: Iterable[Count]) -> None:
    for item in counts:
        meter.create_counter(item.name, HELP[item.name]).add(item.by, item.labels)


class AttemptObserver(Protocol):
    """An interceptor that observes attempts, also those that share an activity."""

    def observe(self, activity_type: str, request: Any, work: Awaitable[R], run: str = "") -> Awaitable[R]:
        """Await the attempt. `run` is the workflow id of the run that it is for, if that is not the activity's own."""


_observers: ContextVar[tuple[AttemptObserver, ...]] = ContextVar("observers", default=())


def add_observer(observer: AttemptObserver) -> None:
    """Let the observer see the attempts that the current activity makes in place of other activities."""
    _observers.set((*_observers.get(), observer))


async def observed(activity_type: str, request: Any, work: Coroutine[Any, Any, R], run: str = "") -> R:
    """Await what would be an attempt of an activity of its own, with facts, metrics and a span of its own.

    `run` is as in `AttemptObserver.observe`.
    """
    observing: Awaitable[R] = work
    for observer in reversed(_observers.get()):
        observing = observer.observe(activity_type, request, observing, run)

    async def wait() -> R:
        set_facts(_first_facts(request))
        return await observing

    return await asyncio.create_task(wait())


class MetricsInterceptor(Interceptor):
    """The worker's interceptor for metrics. It wraps the redaction, so it sees redacted data only.

    `attempts` counts the attempts in progress.
    """

    def __init__(self) -> None:
        self.attempts = 0

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's
        return _Inbound(next, self)

    async def observe(self, activity_type: str, request: Any, work: Awaitable[R], run: str = "") -> R:  # noqa: ARG002 - of the protocol
        started, result = perf_counter(), None
        try:
            result = await work
        finally:
            _record_metrics(timedelta(seconds=perf_counter() - started), result)
        return result


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, observation: MetricsInterceptor) -> None:
        super().__init__(inner)
        self._observation = observation

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        set_facts(_first_facts(input.args[0] if input.args else None))
        add_observer(self._observation)
        self._observation.attempts += 1
        try:
            return await self._observation.observe(activity.info().activity_type, None, super().execute_activity(input))
        finally:
            self._observation.attempts -= 1


def _first_facts(request: Any) -> dict[str, Any]:
    match request:
        case ToolCall():
            return {"step": request.step, "tool": request.tool}
        case TurnRequest():
            return {"turn": request.turn}
        case _:
            return {}


def _record_metrics(took: timedelta, result: Any) -> None:
    """Record the metrics of an attempt. A failed one has no result."""
    meter, known = activity.metric_meter(), attempt_facts()
    if "tool" in known:
        labels = {"tool": known["tool"], "status": result.status if isinstance(result, ToolOutcome) else "failed"}
        _duration_histogram(meter, telemetry.TOOL_DURATION).record(took, labels)
    elif "model" in known:
        status = "held" if "held" in known else "failed" if result is None else "ok"
        labels = {"model": known["model"], "status": status}
        if "batched" not in known:  # the time of a batch is not the model's
            _duration_histogram(meter, telemetry.MODEL_DURATION).record(took, labels)
        if isinstance(usage := getattr(result, "usage", None), Usage):
            add_counts(meter, telemetry.count_tokens(known["model"], usage))
        if isinstance(result, ModelTurn | Summary | Acceptance | PolicyReview) and result.cost_usd is not None:
            spent = meter.create_histogram_float(telemetry.MODEL_COST, HELP[telemetry.MODEL_COST])
            spent.record(result.cost_usd, {"model": known["model"]})


def _duration_histogram(meter: MetricMeter, name: str) -> MetricHistogramTimedelta:
    return meter.create_histogram_timedelta(name, HELP[name], unit="duration")
