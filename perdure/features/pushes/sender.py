"""The request that brings a state, and the addresses that it may go to.

An address is checked as it is named, and again at each sending: a name may point elsewhere by then.
"""

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpcore
import httpx
from standardwebhooks.webhooks import EmptyWebhookSecretError
from standardwebhooks.webhooks import Webhook as StandardWebhook
from temporalio.exceptions import ApplicationError

from perdure.activities.http import (
    IDENTITY,
    BlockedAddressError,
    GuardedTransport,
    host_spellings,
    is_public,
    parse_literal,
    resolve_host,
    usable_url,
)
from perdure.features.pushes.contract import StateDelivery
from perdure.features.pushes.settings import PUSH
from perdure.settings import ProjectError, Settings

NOT_PUSHED = "NotPushed"
SEND_SECONDS = 30.0  # of one attempt
MAX_URL = 2000  # characters


def check_address(text: str, allow_hosts: frozenset[str]) -> httpx.URL:
    """Return an address that states may be sent to. Raises ValueError with one line."""
    if len(text) > MAX_URL or not text.isprintable() or " " in text:
        raise ValueError(f"an address has at most {MAX_URL} characters, all printable, without spaces")
    url = usable_url(text)
    name, port = url.raw_host.decode().lower().rstrip("."), url.port or (80 if url.scheme == "http" else 443)
    is_allowed = not allow_hosts.isdisjoint(host_spellings(name, port))
    if not name or url.userinfo or url.scheme not in ("https", *(["http"] if is_allowed else [])):
        raise ValueError("an address begins with https:// and a host, without a name and password")
    literal = parse_literal(name)
    if literal is not None and not is_allowed and not is_public(literal):
        raise ValueError(f"{name} is not a public address")
    return url


@dataclass(frozen=True)
class PushSender:
    """POSTs a state as A2A has it, signed as in https://www.standardwebhooks.com."""

    secret: str = field(repr=False)
    allow_hosts: frozenset[str]
    tls: ssl.SSLContext

    async def send(self, delivery: StateDelivery) -> None:
        """Raises ApplicationError `NotPushed`, unless the receiver has taken it; a refused address is not retried."""
        try:
            async with asyncio.timeout(SEND_SECONDS):
                status = await self._post(delivery)
        except (BlockedAddressError, ValueError) as error:
            raise ApplicationError(str(error), type=NOT_PUSHED, non_retryable=True) from None
        except (TimeoutError, httpcore.TimeoutException):
            raise _not_pushed(f"no answer within {SEND_SECONDS:g} s") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol, OSError) as error:
            raise _not_pushed(" ".join(str(error).split())[:300] or type(error).__name__) from None
        if not 200 <= status < 300:
            raise _not_pushed(f"the receiver answered {status}")

    async def _post(self, delivery: StateDelivery) -> int:
        """Return the status. Redirects are not followed: the token and the credentials are for this address."""
        url, target, now = check_address(delivery.target.url, self.allow_hosts), delivery.target, datetime.now(UTC)
        status = {"state": delivery.state, "timestamp": delivery.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        update = {"taskId": delivery.run_id, "contextId": delivery.context, "status": status}
        body = json.dumps({"statusUpdate": update})
        headers = {
            "content-type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": StandardWebhook(self.secret).sign(delivery.id, now, body),
            **({"x-a2a-notification-token": target.token} if target.token else {}),
            **({"authorization": f"{target.scheme} {target.credentials}"} if target.scheme else {}),
            **IDENTITY,
        }
        request = httpx.Request("POST", url, headers=headers, content=body)
        async with GuardedTransport(self.tls, self.allow_hosts, resolve_host) as transport:
            response = await transport.handle_async_request(request)
            await response.aclose()
            return response.status_code


def _not_pushed(reason: str) -> ApplicationError:
    return ApplicationError(reason, type=NOT_PUSHED)


def create_sender(settings: Settings, _: httpx.AsyncClient) -> PushSender | None:
    """Return the sender of a project with a secret. Raises ProjectError."""
    secret: str = settings.access["push"]
    if not secret:
        return None
    try:
        StandardWebhook(secret)
    except (ValueError, EmptyWebhookSecretError):
        name = PUSH.of(settings.file).secret_env
        raise ProjectError(f"{settings.at('push')}: {name} is not base64, with or without whsec_ before it") from None
    hosts = frozenset(host.lower() for host in PUSH.of(settings.file).allow_hosts)
    return PushSender(secret, hosts, httpx.create_ssl_context(trust_env=False))


def check_secret(settings: Settings) -> None:
    """Raise ProjectError if the variable of the secret is not set. For workers, which send."""
    if (name := PUSH.of(settings.file).secret_env) and not settings.access["push"]:
        raise ProjectError(f"{settings.at('push')}: {name} is not set")
