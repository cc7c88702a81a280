"""`[outbox]`: the delivery of messages."""

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from perdure.contracts.models import Duration, StrictModel
from perdure.contracts.tool import Effect
from perdure.settings.environment import HeaderVariables
from perdure.settings.tables import Table


class OutboxSettings(StrictModel):
    """The delivery of messages."""

    kind: Literal["log", "http"] = "log"
    """`log` writes to `outbound.jsonl` in `PERDURE_HOME`, `http` POSTs to `url`."""
    url: str | None = Field(default=None, pattern=r"^https?://")
    """The URL. Required for `http`."""
    headers_env: HeaderVariables = Field(default_factory=dict)
    """Headers of the POST, each with the variable that holds its secret value."""
    effect: Literal[Effect.once, Effect.keyed] = Effect.once
    """`keyed` if `url` honours `Idempotency-Key`; a message is then retried until it is accepted."""
    timeout: Duration = timedelta(seconds=30)
    """The timeout of one attempt."""
    channels: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] | None = None
    """The only channels for messages: `channel`, `platform:channel` or `platform:*`."""

    @model_validator(mode="after")
    def _check_destination(self) -> Self:
        if (self.kind == "http") != (self.url is not None):
            raise ValueError('kind = "http" needs a url, and kind = "log" takes none')
        if self.kind == "log" and self.headers_env:
            raise ValueError('headers_env is for kind = "http": a log file takes no headers')
        if self.kind == "log" and self.effect is Effect.keyed:
            raise ValueError('a log file honours no keys: effect = "keyed" is for kind = "http"')
        return self


OUTBOX = Table("outbox", OutboxSettings, OutboxSettings())
