"""The settings of model calls: an agent's over the project's, as a run's definition holds them."""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from perdure.contracts.models import MAX_NESTING, Duration, FrozenModel, StrictModel, nesting_depth, omit_default

Effort = Literal["low", "medium", "high", "xhigh", "max"]
CacheTime = Literal["auto", "5m", "1h"]
DEFAULT_MAX_TOKENS = 8192
MIN_THINKING_BUDGET = 1024  # tokens

_OWN_MEMBERS = {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream"}
_OWN_HEADERS = {"accept-encoding", "anthropic-version", "connection", "content-length", "content-type", "host"}
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|passw|credential", re.IGNORECASE)


class Pace(StrEnum):
    """The pace of model calls: each at once, or in batches at half the price."""

    live = "live"
    batch = "batch"


class BatchSettings(StrictModel):
    """The pool of model calls at the pace `batch`."""

    size: int = Field(default=100, ge=1, le=100_000)
    """A batch is sent once this many calls wait."""
    wait: Duration = Field(default=timedelta(seconds=60), ge=timedelta(seconds=1), le=timedelta(hours=24))
    """It is sent this long after the first of them, however many wait."""


def _parse_thinking(value: Any) -> Any:
    """Return the setting; YAML reads `off` as false. Raises ValueError."""
    if value is None or value in ("off", "adaptive"):
        return value
    if value is False:
        return "off"
    if isinstance(value, bool) or not isinstance(value, int) or value < MIN_THINKING_BUDGET:
        raise ValueError(f'expected "off", "adaptive", or a budget of at least {MIN_THINKING_BUDGET} tokens')
    return value


def _check_model_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers. Raises ValueError for those that Perdure sets, and for those that hold a secret."""
    for name in headers:
        if name.lower() == "anthropic-beta":
            raise ValueError("the header anthropic-beta is the setting betas")
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"the header {name} is set by Perdure; leave it out")
        if _SECRET_HEADER.search(name):
            raise ValueError(f"the header {name} holds a secret: use api_key_env of the provider")
    return headers


def _check_extra(extra: dict[str, Any]) -> dict[str, Any]:
    """Return the members. Raises ValueError for those that Perdure sets."""
    for name in extra.keys() & _OWN_MEMBERS:
        raise ValueError(f"{name} is set by Perdure; leave it out")
    if nesting_depth(extra) > MAX_NESTING:
        raise ValueError(f"nested deeper than {MAX_NESTING} levels")
    return extra


Thinking = Annotated[
    Literal["off", "adaptive"] | int,
    BeforeValidator(_parse_thinking, json_schema_input_type=Literal["off", "adaptive"] | int),
]
Sees = bool | tuple[Annotated[str, Field(min_length=1, max_length=200)], ...]
HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
HeaderValue = Annotated[str, Field(pattern=r"^[!-~]([ -~]*[!-~])?$")]


class ModelOverrides(StrictModel):
    """Settings of model calls, set by an agent or by `[model]`."""

    max_tokens: int | None = Field(default=None, ge=256, le=128_000)
    """The maximum tokens of a reply, thinking included; 8192 by default."""
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    """The randomness of sampling. Newer Claude models take none."""
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    """The share of probability that is sampled from. Newer Claude models take none."""
    thinking: Thinking | None = None
    """`off`, `adaptive`, or a budget in tokens. By default the model's own."""
    effort: Effort | None = None
    """The effort of replies, thinking and tool calls. By default the model's own."""
    cache: CacheTime | None = None
    """The time that the provider keeps a prompt in its cache; `auto` chooses."""
    betas: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")], ...] | None = None
    """Beta features of the API, by name."""
    sees: Sees | None = None
    """Images and PDF are sent to: all models (`true`), none (`false`), or those named and those known to see them."""
    headers: Annotated[dict[HeaderName, HeaderValue], AfterValidator(_check_model_headers)] | None = None
    """Headers of each request. They are stored with a run: secrets are refused by name."""
    extra: Annotated[dict[str, JsonValue], AfterValidator(_check_extra)] | None = None
    """Members of the request's body. They replace none that Perdure sets."""


class ModelOptions(FrozenModel):
    """The options of a request, apart from its conversation. None: the server's default.

    `thinking` is "off", "adaptive", or a budget in tokens. `extra` is merged into the body of the request, and never
    replaces what Perdure sets itself. `server_tools` are tools that the provider runs, as the request has them.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float | None = omit_default(None)
    top_p: float | None = omit_default(None)
    thinking: Literal["off", "adaptive"] | int | None = omit_default(None)
    effort: Effort | None = omit_default(None)
    cache: CacheTime = omit_default("auto")
    betas: tuple[str, ...] = omit_default(())
    sees: Sees | None = omit_default(None)
    headers: dict[str, str] = omit_default({})
    extra: dict[str, Any] = omit_default({})
    server_tools: tuple[dict[str, Any], ...] = omit_default(())

    @property
    def is_thinking(self) -> bool:
        """True if thinking is asked for; by default some models think too."""
        return self.thinking not in (None, "off")

    def override(self, overrides: ModelOverrides) -> "ModelOptions":
        """Return the options with those that are set in `overrides`, field by field."""
        known = {name: getattr(overrides, name) for name in ModelOverrides.model_fields}
        return self.evolve(**({name: value for name, value in known.items() if value is not None}))
