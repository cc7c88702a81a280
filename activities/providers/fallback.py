"""The first model of a run's list that can answer, called at its provider's rate."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import monotonic

from temporalio.exceptions import ApplicationError

from perdure.activities.effects.holding import must_not_be_held
from perdure.activities.providers.port import (
    Admission,
    ChargeCall,
    LimitReachedError,
    Model,
    ModelCall,
    ModelReply,
    SharedLimit,
)
from perdure.activities.providers.rate_limit import (
    MAX_SLOT_WAIT,
    RateLimitedError,
    RateLimiter,
)
from perdure.activities.telemetry.facts import record_facts
from perdure.contracts.bounds import Backoff
from perdure.contracts.failures import HELD, RunFailure
from perdure.contracts.run.turn import SkippedModel
from perdure.decisions.model_names import DEFAULT, provider_of

RESTS = Backoff(30.0, 300.0)  # of a model, after a failure
MAX_FAILURE_REASON = 300  # characters


@dataclass(frozen=True)
class Provider:
    """An endpoint of models, and its rate limiter. `system` is its name in spans.

    `shared` are limits that the worker shares with others; the limiter then keeps its part of them.
    """

    endpoint: Model
    pace: RateLimiter
    system: str = ""
    shared: SharedLimit | None = None

    async def reply(self, call: ModelCall) -> ModelReply:
        """Return a reply of the endpoint. Raises RateLimitedError if the shared limits are reached for long."""
        if self.shared is None:
            return await self.endpoint.reply(call)
        charge = await self._reserve(self.shared, call)
        try:
            reply = await self.endpoint.reply(call)
        except BaseException as error:
            charge(error)
            raise
        charge(reply)
        return reply

    async def _reserve(self, shared: SharedLimit, call: ModelCall) -> ChargeCall:
        while True:
            try:
                charge = await shared.reserve(call, self.pace.waiting)
            except LimitReachedError as reached:
                self.pace.close_for(reached.seconds)
                await self.pace.await_slot(call.caller, call.on_held)
            else:
                if shared.rate is not None:
                    self.pace.change_limit(shared.rate)
                return charge


@dataclass
class CircuitBreaker:
    """Models that failed recently. They are not called while another one answers.

    When the rest ends, one call tries the model; the others skip it until that call succeeds.
    """

    _failed: dict[str, "_Rest"] = field(default_factory=dict)

    def resting_reason(self, name: str) -> str | None:
        """Return the reason why the model rests, if it does."""
        rest = self._failed.get(name)
        return rest.reason if rest and rest.until > monotonic() else None

    def record_attempt(self, name: str) -> None:
        if rest := self._failed.get(name):
            rest.until = monotonic() + RESTS.seconds(rest.failures)

    def record_failure(self, name: str, began: float, reason: str) -> None:
        rest, now = self._failed.get(name), monotonic()
        if rest is None or began >= rest.failed_at:  # else the call was under way when another one failed
            failures = rest.failures + 1 if rest else 1
            self._failed[name] = _Rest(failures, now + RESTS.seconds(failures), reason, now)

    def record_success(self, name: str) -> None:
        self._failed.pop(name, None)


@dataclass
class _Rest:
    failures: int
    until: float
    reason: str
    failed_at: float


class FallbackModel:
    """The providers of one worker. `DEFAULT` is always among them."""

    def __init__(self, providers: Mapping[str, Provider], admission: Admission | None = None) -> None:
        self._providers = providers
        self._admission = admission
        self._rests = CircuitBreaker()

    async def reply(self, call: ModelCall) -> ModelReply:
        """Return the reply of the first of `call.definition.models` that can answer.

        A model that fails or is rate-limited for long is skipped; a resting model is tried last. If a provider rejects
        a key, a name or a request, no other model is tried: a person must correct it. Raises as `MessagesModel` does,
        RateLimitedError, and as `Admission`.
        """
        failures: list[ApplicationError] = []
        names = call.definition.models
        reasons = {name: reason for name in names if len(names) > 1 and (reason := self._rests.resting_reason(name))}
        ends_at = monotonic() + call.limit if call.limit else None
        for name in sorted(names, key=lambda name: name in reasons):  # resting models last
            try:
                reply = await self._call_provider(name, call, ends_at)
            except ApplicationError as failure:
                if failure.non_retryable or failure.type == HELD or _has_short_delay(failure):
                    raise
                failures.append(failure)
                reasons[name] = failure.message[:MAX_FAILURE_REASON]
            else:
                skipped = tuple(SkippedModel(model=other, why=reasons[other]) for other in names[: names.index(name)])
                return replace(reply, asked=name, passed_over=skipped)
        # The hold with the shortest delay costs no attempt.
        holds = [failure for failure in failures if isinstance(failure, RateLimitedError)]
        raise min(holds, key=lambda hold: hold.next_retry_delay or timedelta.max) if holds else failures[-1]

    def provider_of(self, model: str) -> tuple[str, str]:
        """Return the provider of a model of the project, and the model's name there."""
        return provider_of(model, self._providers)

    async def refuse_batched(self, call: ModelCall) -> None:
        """Raise as `Admission.refuse_batched`."""
        if self._admission:
            await self._admission.refuse_batched(call)

    def system_of(self, provider: str) -> str:
        """Return the name of a provider in spans."""
        return self._providers[provider].system or provider

    def endpoint_of(self, provider: str) -> Model | None:
        """Return the endpoint of a provider, if the worker has one of this name."""
        known = self._providers.get(provider)
        return known.endpoint if known else None

    async def _call_provider(self, name: str, call: ModelCall, ends_at: float | None) -> ModelReply:
        provider_name, model = self.provider_of(name)
        provider = self._providers[provider_name]
        record_facts(provider=self.system_of(provider_name), call=call)
        asked_at = monotonic()
        began = await provider.pace.await_slot(call.caller, call.on_held)
        waited = monotonic() - asked_at
        await must_not_be_held()
        limit = max(ends_at + waited - monotonic(), 1.0) if ends_at else None  # waits for the rate limit do not count
        self._rests.record_attempt(name)
        definition = call.definition.evolve(model=model, fallbacks=())
        try:
            reply = await self._ask(name, replace(call, definition=definition, limit=limit), provider)
        except RateLimitedError:  # the provider was not called
            raise
        except ApplicationError as failure:
            if failure.type == RunFailure.rate_limited:
                delay = provider.pace.record_refusal(began, call.caller, failure.next_retry_delay)
                raise ApplicationError(failure.message, type=failure.type, next_retry_delay=delay) from None
            if failure.type == RunFailure.model_unavailable:
                self._rests.record_failure(name, began, failure.message[:MAX_FAILURE_REASON])
            raise self._explain_unknown_provider(failure, name) from None
        provider.pace.record_success(began)
        self._rests.record_success(name)
        shown = reply.model if provider_name == DEFAULT else f"{provider_name}:{reply.model}"
        return replace(reply, model=shown, waited=waited)

    async def _ask(self, name: str, call: ModelCall, provider: Provider) -> ModelReply:
        if self._admission is None:
            return await provider.reply(call)
        return await self._admission.make_call(name, call, provider.reply)

    def _explain_unknown_provider(self, failure: ApplicationError, name: str) -> ApplicationError:
        """Add a hint to a rejection of a name like `locl:llama3`, whose prefix is not a known provider."""
        front, colon, _ = name.partition(":")
        if failure.type != RunFailure.model_refused or not colon or front in (DEFAULT, *self._providers):
            return failure
        known = ", ".join(sorted(self._providers))
        message = f"{failure.message} ({name!r} is no provider's: there is no {front!r} among {known})"
        return ApplicationError(message, type=failure.type, non_retryable=True)


def _has_short_delay(failure: ApplicationError) -> bool:
    """Return True if the model can be called again after a short wait, so that no other one is needed."""
    delay = failure.next_retry_delay
    return failure.type == RunFailure.rate_limited and delay is not None and delay <= timedelta(seconds=MAX_SLOT_WAIT)
