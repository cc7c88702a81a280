"""Who answers: the model that is asked for, at its provider's pace, or the next of the list where it cannot."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import monotonic

from temporalio.exceptions import ApplicationError

from activities.model.port import Model, ModelCall, ModelReply
from activities.model.rate_limit import MOST_HELD, HeldBack, Pace
from contracts.failures import RunFailure
from contracts.run.turn import PassedOver
from decisions.model_names import DEFAULT, provider_of

REST = (30.0, 300.0)  # seconds that a model rests after a failure: at first, and at most
MOST_WHY = 300  # characters


@dataclass(frozen=True)
class Provider:
    """An endpoint of models, and how fast it is asked."""

    endpoint: Model
    pace: Pace


@dataclass
class Rests:
    """Models that failed of late: they are not asked while another one answers, so that no turn waits for them in vain.

    When its time is over a model is asked by one call; the others go on without it until that one has its answer.
    """

    _failed: dict[str, "_Rest"] = field(default_factory=dict)

    def why(self, name: str) -> str | None:
        """Why it is not asked now; None where it is."""
        rest = self._failed.get(name)
        return rest.why if rest and rest.until > monotonic() else None

    def tried(self, name: str) -> None:
        if rest := self._failed.get(name):
            rest.until = monotonic() + rest.seconds

    def failed(self, name: str, began: float, why: str) -> None:
        rest = self._failed.get(name)
        if rest is None:
            self._failed[name] = _Rest(REST[0], monotonic() + REST[0], why, monotonic())
        elif began >= rest.failed_at:  # else it was on its way when another call failed
            seconds = min(rest.seconds * 2, REST[1])
            self._failed[name] = _Rest(seconds, monotonic() + seconds, why, monotonic())

    def answered(self, name: str) -> None:
        self._failed.pop(name, None)


@dataclass
class _Rest:
    seconds: float
    until: float
    why: str
    failed_at: float


class Models:
    """The providers of one worker. `DEFAULT` is always among them."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._providers = providers
        self._rests = Rests()

    async def reply(self, call: ModelCall) -> ModelReply:
        """By the first of `call.definition.models` that can. Raises as `MessagesModel` does, and HeldBack.

        A model is passed over where it fails, or could only be asked after a while; one that rests is asked last. What
        a provider refuses (a key, a name, a request) is for a person to mend, and no other model is asked.
        """
        failures: list[ApplicationError] = []
        names = call.definition.models
        whys = {name: why for name in names if len(names) > 1 and (why := self._rests.why(name))}
        ends_at = monotonic() + call.limit if call.limit else None
        for name in sorted(names, key=lambda name: name in whys):  # those that rest, last
            try:
                reply = await self._call_provider(name, call, ends_at)
            except ApplicationError as failure:
                if failure.non_retryable or _is_soon(failure):
                    raise
                failures.append(failure)
                whys[name] = failure.message[:MOST_WHY]
            else:
                passed = tuple(PassedOver(model=each, why=whys[each]) for each in names[: names.index(name)])
                return replace(reply, asked=name, passed_over=passed)
        raise _kindest(failures)

    async def _call_provider(self, name: str, call: ModelCall, ends_at: float | None) -> ModelReply:
        where, model = provider_of(name, self._providers)
        provider = self._providers[where]
        came = monotonic()
        began = await provider.pace.enter(call.caller, call.on_held)
        waited = monotonic() - came
        limit = max(ends_at + waited - monotonic(), 1.0) if ends_at else None  # waits for the pace do not count
        self._rests.tried(name)
        definition = call.definition.model_copy(update={"model": model, "fallbacks": ()})
        try:
            reply = await provider.endpoint.reply(replace(call, definition=definition, limit=limit))
        except ApplicationError as failure:
            if failure.type == RunFailure.rate_limited:
                delay = provider.pace.refused(began, call.caller, failure.next_retry_delay)
                raise ApplicationError(failure.message, type=failure.type, next_retry_delay=delay) from None
            if failure.type == RunFailure.model_unavailable:
                self._rests.failed(name, began, failure.message[:MOST_WHY])
            raise self._explained(failure, name) from None
        provider.pace.passed(began)
        self._rests.answered(name)
        shown = reply.model if where == DEFAULT else f"{where}:{reply.model}"
        return replace(reply, model=shown, waited=waited)

    def _explained(self, failure: ApplicationError, name: str) -> ApplicationError:
        """A provider that does not know `locl:llama3` cannot say that a provider was meant."""
        front, colon, _ = name.partition(":")
        if failure.type != RunFailure.model_refused or not colon or front in (DEFAULT, *self._providers):
            return failure
        known = ", ".join(sorted(self._providers))
        message = f"{failure.message} ({name!r} is no provider's: there is no {front!r} among {known})"
        return ApplicationError(message, type=failure.type, non_retryable=True)


def _is_soon(failure: ApplicationError) -> bool:
    """Whether the model can be asked again after a short wait, so that no other one is needed."""
    delay = failure.next_retry_delay
    return failure.type == RunFailure.rate_limited and delay is not None and delay <= timedelta(seconds=MOST_HELD)


def _kindest(failures: list[ApplicationError]) -> ApplicationError:
    """Where one of them is only held back, the turn has lost nothing yet."""
    held = [failure for failure in failures if isinstance(failure, HeldBack)]
    return min(held, key=lambda each: each.next_retry_delay or timedelta.max) if held else failures[-1]
