"""What every tool looks like to the activity `call_tool`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from activities.storage.workspace import Workspace
from contracts.agent import ToolSchema
from contracts.tool import Effect, ToolOutcome, ToolRoute


@dataclass(frozen=True)
class CallContext:
    """What a tool may know of the call besides its arguments.

    `idempotency_key` is the same on every attempt of the call, also after a crash. `accepts` is as in
    `contracts.tool.ToolCall`, and so is `nonce`.
    """

    run_id: str
    step: int
    idempotency_key: str
    requested_at: datetime
    workspace: Workspace
    accepts: str | None = None
    nonce: str | None = None


class TransientFailure(Exception):
    """The other side failed in a way that may pass. `retry_after`: seconds, capped, where it asked for a delay."""

    def __init__(self, kind: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after


class Tool(Protocol):
    """A permanent failure is returned (`contracts.tool.failed`), a passing one raised (`TransientFailure`)."""

    @property
    def route(self) -> ToolRoute: ...

    @property
    def schema(self) -> ToolSchema: ...

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome: ...


class Guarded(ABC):
    """A tool that must be looked at before its effect may begin.

    A class, since to ask whether something keeps to a protocol takes its time, and each call asks.
    """

    @abstractmethod
    async def refusal(self, effect: Effect, accepts: str | None, timeout: timedelta) -> ToolOutcome | None:
        """Why a call must not be made now; None where it may.

        `effect` is what the run takes the tool for, and `accepts` as in `contracts.tool.ToolCall`.

        Raises TransientFailure where that cannot be told, or not within `timeout`.
        """
