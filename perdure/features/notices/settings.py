"""`[[notify]]`: the channels that people are notified through."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from perdure.contracts.models import Duration, StrictModel
from perdure.contracts.people import NoticeKind
from perdure.settings.environment import check_key, check_url, must_be_private, parse_variable
from perdure.settings.problems import ProjectError, collecting
from perdure.settings.tables import Table

Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

# The services of Apprise that may be addressed. It also knows some that write to this machine.
_APPRISE = re.compile(
    "(?:bark|discord|gchat|gotifys?|jsons?|mailtos?|matrixs?|mmosts?|msteams|ntfys?|opsgenie|pagerduty|pover|pushover"
    "|rockets?|signals?|sns|teams|tgram|twilio|webex|workflows?|wxteams|zulip)://."
)


class NotifySettings(StrictModel):
    """A channel: a signed webhook, an incoming webhook of Slack, or an address of Apprise."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """The name of the channel."""
    kind: Literal["webhook", "slack", "apprise"]
    """`webhook` is signed as in [Standard Webhooks](https://www.standardwebhooks.com)."""
    on: tuple[NoticeKind, ...] = (NoticeKind.waiting, NoticeKind.failed, NoticeKind.wedged)
    """The events."""
    agents: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ("*",)
    """The agents, by name or pattern such as `billing-*`."""
    url: str | None = None
    """The address, if it holds no secret."""
    url_env: Variable | None = None
    """The variable that holds the address. Those of Slack and Apprise hold secrets."""
    secret_env: Variable | None = None
    """The variable that holds the secret of a `webhook`, as in `whsec_…`."""
    patience: Duration = timedelta(hours=1)
    """The time after which an open question is notified of again, with `waiting_long`."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        return None if url is None else check_url(url)

    @model_validator(mode="after")
    def _check_access(self) -> Self:
        if (self.url is None) == (self.url_env is None):
            raise ValueError("needs either url or url_env")
        if self.url is not None and self.kind != "webhook":
            raise ValueError(f'kind = "{self.kind}" needs url_env: its address holds a secret')
        if (self.secret_env is None) == (self.kind == "webhook"):
            raise ValueError('kind = "webhook" needs secret_env, and the others take none')
        if not self.on:
            raise ValueError("on: names no event")
        return self


def check_unique(channels: tuple[NotifySettings, ...]) -> tuple[NotifySettings, ...]:
    """Return the channels. Raises ValueError if two have one name."""
    names = [channel.name for channel in channels]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two channels are named {name}")
    return channels


@dataclass(frozen=True)
class NotifyAccess:
    """A channel's address and secret; a part whose variable is not set is empty."""

    url: str = field(repr=False)
    secret: str = field(default="", repr=False)


def read_access(
    channels: Iterable[NotifySettings], env: Mapping[str, str], faults: list[ProjectError]
) -> dict[str, NotifyAccess]:
    """Read addresses and secrets by channel. Values that are not valid are added to `faults`."""
    access = {}
    for channel in channels:
        access[channel.name] = NotifyAccess("")
        with collecting(faults):
            access[channel.name] = _read_channel(channel, env)
    return access


def _read_channel(channel: NotifySettings, env: Mapping[str, str]) -> NotifyAccess:
    url = channel.url or ""
    if channel.url_env:
        check = _check_apprise if channel.kind == "apprise" else check_url
        url = parse_variable(channel.url_env, env.get(channel.url_env), check) or ""
    secret = parse_variable(channel.secret_env, env.get(channel.secret_env), check_key) if channel.secret_env else ""
    if channel.kind != "apprise":
        must_be_private(f"notify.{channel.name}.url", url, "notices")
    return NotifyAccess(url, secret or "")


def _check_apprise(text: str) -> str:
    """Return an address of Apprise, stripped. Raises ValueError without the address, which holds a secret."""
    text = text.strip()
    if not _APPRISE.match(text):
        raise ValueError("expected an address of Apprise, such as mailtos://…; not all services are allowed")
    return text


def missing_variables(channels: Iterable[NotifySettings], access: Mapping[str, NotifyAccess]) -> list[tuple[str, str]]:
    """Return the channels with the variable that is not set."""
    rows = [(row.name, row.url_env) for row in channels if row.url_env and not access[row.name].url]
    return rows + [(row.name, row.secret_env) for row in channels if row.secret_env and not access[row.name].secret]


def _secret_variables(channels: Iterable[NotifySettings]) -> list[str | None]:
    return [variable for row in channels for variable in (row.url_env, row.secret_env)]


NOTIFY: Table[tuple[NotifySettings, ...]] = Table(
    "notify",
    Annotated[tuple[NotifySettings, ...], AfterValidator(check_unique)],
    (),
    read=read_access,
    secrets=_secret_variables,
)
