"""The limits of a provider that all workers of a task queue share, by the purse of each worker.

A worker's calls are spaced evenly by its part of the limit, so that all of them together never exceed it.
"""

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from temporalio.client import Client

from perdure.activities.providers.port import ChargeCall, LimitReachedError, ModelCall, ModelReply
from perdure.features.budgets.admission import bounds_of_call, costs_of_reply, estimate_call, may_have_cost, purse_of
from perdure.features.budgets.contract import Every, Measure, Terms
from perdure.features.budgets.journal import Reservation
from perdure.features.budgets.purse import AwayError, Need, Purse, UsedUpError
from perdure.features.budgets.rules import PROVIDER, key_of
from perdure.settings import Settings
from perdure.settings.file import ProviderSettings

WINDOW = 60.0  # seconds
SOON = 0.25  # seconds, until a call in flight may have cost less than its bound
AWAY_PAUSE = 5.0  # seconds, until the workflow of the budgets answers
_log = logging.getLogger(__name__)


@dataclass
class FleetLimit:
    """A worker's part of the limits of one provider: requests, tokens, or both in a minute."""

    purse: Purse
    terms: Mapping[str, Terms]  # by the keys of the allowances
    _rate: float | None = field(default=None, init=False)

    @property
    def rate(self) -> float | None:
        """Calls a second; None before the first call."""
        rates = [self.purse.granted(key) / WINDOW / self._cost(key) for key in self.terms]
        if all(rates):
            self._rate = min(rates)
        return self._rate

    def _cost(self, key: str) -> float:
        return max(self.purse.mean_cost(key), 1.0)

    async def reserve(self, call: ModelCall, waiting: int) -> ChargeCall:
        """Reserve a call. While the workflow of the budgets does not answer, the last part of the limit holds.

        Raises LimitReachedError.
        """
        estimate = estimate_call(call)
        bounds = {Measure.requests: 1, **bounds_of_call(call, estimate, None)}
        needs = {
            # A call whose bound is above the limit takes all of a window.
            key: Need(terms, min(bounds[measure_of(key)], terms.limit or 0), waiting)
            for key, terms in self.terms.items()
        }
        try:
            reservation = await self.purse.reserve(needs)
        except UsedUpError as used_up:
            seconds = SOON if self.purse.is_in_use(used_up.key) else used_up.seconds or WINDOW
            raise LimitReachedError(seconds) from None
        except (AwayError, OSError) as error:
            if self._rate is None:
                raise LimitReachedError(AWAY_PAUSE) from error
            _log.debug("the limit of a provider goes on by its last part: %s", error)
            return _charge_nothing
        return partial(self._charge, reservation, estimate)

    def _charge(self, reservation: Reservation, estimate: int, result: ModelReply | BaseException) -> None:
        costs: dict[Measure, int] = {Measure.requests: 1}
        if isinstance(result, ModelReply):
            costs |= costs_of_reply(result, estimate, None)
        elif not may_have_cost(result):
            costs[Measure.tokens] = 0
        by_key = {key: costs[measure] for key in self.terms if (measure := measure_of(key)) in costs}
        self.purse.charge(reservation, by_key)


def measure_of(key: str) -> Measure:
    """Return the measure of a provider's limit."""
    return Measure(key.split("/")[1])


def _charge_nothing(_: ModelReply | BaseException) -> None:
    """The call is not counted: the workflow of the budgets is away."""


def limit_terms(name: str, provider: ProviderSettings) -> dict[str, Terms]:
    """Return the terms of a provider's shared limits, by the keys of the allowances."""
    given = {Measure.requests: provider.requests_per_minute, Measure.tokens: provider.tokens_per_minute}
    return {
        key_of(f"{PROVIDER}{name}", measure): Terms(limit=int(limit), every=Every.minute, warn_at=None, is_rate=True)
        for measure, limit in given.items()
        if limit is not None
    }


def open_provider_limits(client: Client, settings: Settings, closing: AsyncExitStack) -> dict[str, FleetLimit]:
    """Return the limits that the project's workers share, by provider."""
    shared = {name: each for name, each in settings.file.model.providers.items() if each.shared}
    return {
        name: FleetLimit(purse_of(client, settings, closing), limit_terms(name, each)) for name, each in shared.items()
    }
