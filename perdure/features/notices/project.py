"""The channels of a project, as `[[notify]]` describes them."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.util import find_spec

import httpx

from perdure.activities.project import Project
from perdure.contracts.people import NoticeRoute
from perdure.extras import install_command
from perdure.features.notices.channels import AppriseSender, Channel, NoticeSender, SlackSender, WebhookSender
from perdure.features.notices.settings import NOTIFY, NotifyAccess, NotifySettings, missing_variables
from perdure.settings import ProjectError, Settings
from perdure.settings.problems import format_suggestion, raise_all


def check_channels(settings: Settings) -> None:
    """Raise ProjectError if variables of channels are not set. For workers, which send notices."""
    missing = missing_variables(NOTIFY.of(settings.file), settings.access["notify"])
    raise_all([ProjectError(f"{settings.at('notify')}: {name}: {variable} is not set") for name, variable in missing])


def create_channels(settings: Settings, client: httpx.AsyncClient) -> tuple[Channel, ...]:
    """Return the channels of `[[notify]]`. Raises ProjectError."""
    return tuple(_create_channel(row, settings, client) for row in NOTIFY.of(settings.file))


def _create_channel(row: NotifySettings, settings: Settings, client: httpx.AsyncClient) -> Channel:
    access: NotifyAccess = settings.access["notify"][row.name]
    sender: NoticeSender
    match row.kind:
        case "webhook":
            sender = WebhookSender(access.url, access.secret, client)
        case "slack":
            sender = SlackSender(access.url, client)
        case "apprise":
            _must_have_apprise(settings.at("notify"))
            sender = AppriseSender(access.url)
    return Channel(NoticeRoute(channel=row.name, on=row.on, patience=row.patience), row.agents, sender)


def _must_have_apprise(place: str) -> None:
    if find_spec("apprise") is None:
        raise ProjectError(f'{place}: kind = "apprise" needs the package apprise: {install_command("notify")}')


def find_idle_channels(project: Project, settings: Settings) -> Iterator[str]:
    """Yield a line for each channel that is for no agent."""
    for channel in NOTIFY.of(settings.file):
        for glob in channel.agents:
            if not any(fnmatchcase(agent, glob) for agent in project.agents):
                hint = format_suggestion(glob, project.agents)
                yield f"{settings.at('notify')}: {channel.name}: agents: there is no agent {glob!r}{hint}"
