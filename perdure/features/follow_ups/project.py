"""The outbox of a project, as `[outbox]` describes it."""

import httpx

from perdure.activities.tools.outside import NO_HEADERS
from perdure.features.follow_ups.outbox import ListedOutbox, LogOutbox, Outbox, WebhookOutbox
from perdure.features.follow_ups.settings import OUTBOX
from perdure.settings import Settings


def create_outbox(settings: Settings, client: httpx.AsyncClient) -> Outbox:
    """Return the outbox that the settings describe."""
    out = OUTBOX.of(settings.file)
    outbox: Outbox = LogOutbox(settings.home)
    if out.url:
        headers = settings.headers.get("outbox", NO_HEADERS)
        outbox = WebhookOutbox(out.url, out.effect, out.timeout, client, headers)
    return outbox if out.channels is None else ListedOutbox(outbox, out.channels)
