"""The port for outgoing messages, and its two adapters: a webhook and a log file."""

import asyncio
import errno
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import httpx

from perdure.activities.project import Project
from perdure.activities.security import make_private, open_private
from perdure.activities.tools.outside import key_header, post_json
from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import Effect, ToolOutcome, error_outcome
from perdure.features.follow_ups.contract import Outbound

FILE = "outbound.jsonl"


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
        body, headers = message.model_dump_json(exclude_none=True), {**self.headers, **key_header(key)}
        try:
            seconds = self.timeout.total_seconds()
            answer = await post_json(self.client, self.url, "the outbox", body, seconds, headers, limit=0)
        except httpx.InvalidURL as error:  # permanent
            return error_outcome(ToolFault.unreachable, f"the outbox has no usable url: {error}")
        return answer.to_failure("the outbox") or ToolOutcome(result="sent")


def outbox_of(project: Project) -> Outbox | None:
    """Return the outbox of a project, if it has one."""
    outbox: Outbox | None = project.parts.get("follow_ups")
    return outbox
