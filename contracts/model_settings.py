"""The settings of model calls: an agent's over the project's, as a run's definition holds them."""

from enum import StrEnum
from typing import Any, Literal

from contracts.models import FrozenModel, omit_default

Effort = Literal["low", "medium", "high", "xhigh", "max"]
CacheTime = Literal["auto", "5m", "1h"]
DEFAULT_MAX_TOKENS = 8192


class Pace(StrEnum):
    """The pace of model calls: each at once, or in batches at half the price."""

    live = "live"
    batch = "batch"


class ModelOptions(FrozenModel):
    """The options of a request, apart from its conversation. None: the server's default.

    `thinking` is "off", "adaptive", or a budget in tokens. `extra` is merged into the body of the request, and never
    replaces what Perdure sets itself.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float | None = omit_default(None)
    top_p: float | None = omit_default(None)
    thinking: Literal["off", "adaptive"] | int | None = omit_default(None)
    effort: Effort | None = omit_default(None)
    cache: CacheTime = omit_default("auto")
    betas: tuple[str, ...] = omit_default(())
    headers: dict[str, str] = omit_default({})
    extra: dict[str, Any] = omit_default({})
