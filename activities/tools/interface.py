"""The interface between the activity `call_tool` and every tool."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from perdure.activities.storage.store import Store
from perdure.activities.storage.workspace import Workspace
from perdure.contracts.agent import ToolSchema
from perdure.contracts.tool import Effect, InputRequest, ServerTask, ToolOutcome, ToolRoute, Unfinished


@dataclass(frozen=True)
class CallContext:
    """The context of a call besides its arguments.

    `idempotency_key` is the same on every attempt of the call, also after a crash. `store` is the run's, for images and
    PDF that the model sees; without it the model sees none. `accepts`, `nonce`, `definition` and `unfinished` are as in
    `perdure.contracts.tool.ToolCall`.
    """

    run_id: str
    step: int
    idempotency_key: str
    requested_at: datetime
    workspace: Workspace
    store: Store | None = None
    accepts: str | None = None
    nonce: str | None = None
    definition: str | None = None
    unfinished: Unfinished | None = None


class TransientToolError(Exception):
    """A failure that may pass. `retry_after`: the delay that the other side asked for, in seconds, capped."""

    def __init__(self, kind: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after = retry_after


class Tool(Protocol):
    """A tool. It returns permanent failures (`error_outcome`) and raises transient ones."""

    @property
    def route(self) -> ToolRoute: ...

    @property
    def schema(self) -> ToolSchema: ...

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome: ...


class PreflightTool(ABC):
    """A tool with a check before its effect may begin.

    An abstract class, since each call checks for it and `isinstance` of a protocol is slow.
    """

    @abstractmethod
    async def check_preflight(self, effect: Effect, accepts: str | None, timeout: timedelta) -> ToolOutcome | None:
        """Return an error outcome if the call must not be made now.

        `effect` is the tool's effect when the run began; `accepts` is as in `perdure.contracts.tool.ToolCall`.

        Raises TransientToolError if the check fails, or does not end within `timeout`.
        """


class TaskVerb(StrEnum):
    """A request about a task of a server. An answer has the `answers` of the call's `unfinished`."""

    check = "check"
    answer = "answer"
    cancel = "cancel"


@dataclass(frozen=True)
class TaskReply:
    """A task after a request about it: as it is now, what it asks people that they have not answered, or its outcome.

    `why` is the reason that nothing is known for now, `lost` that nothing will be known any more.
    """

    task: ServerTask | None = None
    inputs: tuple[InputRequest, ...] = ()
    outcome: ToolOutcome | None = None
    why: str = ""
    lost: str = ""


class TaskTool(ABC):
    """A tool whose server may make a task of a call. An abstract class, as `PreflightTool`."""

    @abstractmethod
    async def request_task(self, verb: TaskVerb, task: ServerTask, context: CallContext) -> TaskReply:
        """Send one request about a task. `task` is as it was last seen. Raises HeldError while people are to log in."""
