"""The port for outgoing messages, and its two adapters: a webhook and a log file."""

import asyncio
import errno
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import httpx

from activities.http.body import IDENTITY, BodyEncodingError, read_prefix
from activities.http.retry_after import retry_after
from activities.security.private import make_private, open_private
from activities.tools.http import TRANSIENT_STATUSES, to_header_value
from activities.tools.interface import TransientToolError
from contracts.failures import ToolFault
from contracts.followup import Outbound
from contracts.tool import Effect, ToolOutcome, error_outcome

FILE = "outbound.jsonl"
MAX_RESPONSE = 2000  # bytes of an error response that are reported


class Outbox(Protocol):
    """Sends messages. `effect` is `keyed` if the receiver honors the key, else `once`: then nothing is sent twice."""

    @property
    def effect(self) -> Effect: ...

    @property
    def timeout(self) -> timedelta: ...

    async def send(self, message: Outbound, key: str) -> ToolOutcome:
        """Send a message. Return a permanent failure; raise a transient one (`TransientToolError`)."""


class ListedOutbox:
    """Sends only to listed channels: `channel`, `platform:channel` or `platform:*`."""

    def __init__(self, inner: Outbox, channels: Collection[str]) -> None:
        self._inner = inner
        self._channels = frozenset(channels)
        self.effect = inner.effect
        self.timeout = inner.timeout

    def rejection_reason(self, message: Outbound) -> str | None:
        """Return the reason, if any, why such a message is never sent."""
        spellings = {message.channel_id}
        if message.platform is not None:
            spellings |= {f"{message.platform}:{message.channel_id}", f"{message.platform}:*"}
        if not self._channels.isdisjoint(spellings):
            return None
        where = f"{message.platform}:{message.channel_id}" if message.platform else message.channel_id
        return f"not sent: the channel {where[:200]!r} is not in [outbox] channels of perdure.toml"

    async def send(self, message: Outbound, key: str) -> ToolOutcome:
        if reason := self.rejection_reason(message):
            return error_outcome(ToolFault.blocked, reason)
        return await self._inner.send(message, key)


class LogOutbox:
    """Writes each message as a JSON line, for another program to send."""

    effect = Effect.once
    timeout = timedelta(seconds=10)

    def __init__(self, home: Path) -> None:
        self._path = home / FILE

    async def send(self, message: Outbound, key: str) -> ToolOutcome:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"key": key, "at": at, **message.model_dump(mode="json", exclude_none=True)}
        await asyncio.to_thread(self._append_line, json.dumps(line, ensure_ascii=False).encode() + b"\n")
        return ToolOutcome(result="written")

    def _append_line(self, line: bytes) -> None:
        make_private(self._path.parent)
        with open(self._path, "ab", buffering=0, opener=open_private) as file:
            data = self._line_break(os.fstat(file.fileno()).st_size) + line
            # One write, so that lines of several workers do not mix. A partial line on a full disk is not removed:
            # another worker may have written after it.
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())

    def _line_break(self, size: int) -> bytes:
        """Return the line break that ends a partial line, or nothing."""
        if not size:
            return b""
        with self._path.open("rb") as file:
            file.seek(size - 1)
            return b"" if file.read(1) == b"\n" else b"\n"


@dataclass(frozen=True)
class WebhookOutbox:
    """POSTs the message as JSON, with its key in `Idempotency-Key`. A 2xx status means that it is sent."""

    url: str
    effect: Effect
    timeout: timedelta
    client: httpx.AsyncClient
    headers: Mapping[str, str] = field(default_factory=dict)

    async def send(self, message: Outbound, key: str) -> ToolOutcome:
        body = message.model_dump(mode="json", exclude_none=True)
        seconds = self.timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                answer, text = await self._post(
                    body, {**self.headers, "idempotency-key": to_header_value(key), **IDENTITY}
                )
        except httpx.InvalidURL as error:  # not an HTTPError, and permanent
            return error_outcome(ToolFault.unreachable, f"the outbox has no usable url: {error}")
        except (TimeoutError, httpx.TimeoutException) as error:
            raise TransientToolError(ToolFault.timeout, f"the outbox did not answer within {seconds:g} s") from error
        except httpx.HTTPError as error:
            raise TransientToolError(ToolFault.unreachable, f"the outbox cannot be reached: {error}") from error
        if answer.is_success:
            return ToolOutcome(result="sent")
        error_text = f"{answer.status_code} from the outbox: {text}"
        if answer.status_code in TRANSIENT_STATUSES or answer.status_code >= 500:
            raise TransientToolError(ToolFault.http_error, error_text, retry_after(answer.headers))
        return error_outcome(ToolFault.http_error, error_text)

    async def _post(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[httpx.Response, str]:
        """Return the response, and the start of its text if it is an error. The rest is not read."""
        seconds = self.timeout.total_seconds()
        async with self.client.stream(
            "POST", self.url, json=body, headers=headers, timeout=seconds, follow_redirects=False
        ) as answer:
            if answer.is_success:
                return answer, ""
            try:
                text, _ = await read_prefix(answer, MAX_RESPONSE)
            except BodyEncodingError as error:
                return answer, str(error)
            return answer, text.decode(errors="replace")
