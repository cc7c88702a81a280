"""The start, signals, updates and queries of a workflow, and the one JSON argument that each of them takes.

An argument that does not decode into a typed parameter, and an exception raised in a signal handler, fail the workflow
task forever. So every handler takes `*args` and reads it here: a bad argument becomes an `InvalidInput` error.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, ClassVar, Concatenate, Generic, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure.contracts.failures import RunFailure
from perdure.contracts.models import Undecodable, escape_unprintable
from perdure.contracts.run.signals import WAKE_SIGNAL, CancelRequest
from perdure.decisions.errors import format_validation_error
from perdure.decisions.text.formatting import format_signal_notice, truncate

C = TypeVar("C")
M = TypeVar("M", bound=BaseModel)


class ValidatedWorkflow(Generic[C]):
    """A workflow that rejects a bad start and ignores bad signals.

    A bad start must fail the workflow, not its task, so `context` raises the error and `__init__` does not.
    """

    UNKNOWN_SIGNAL: ClassVar[str]  # the reason with which an unknown signal is ignored

    def __init__(self, begin: Callable[[Sequence[Any]], C], args: Sequence[Any]) -> None:
        try:
            self._context: C | ApplicationError = begin(args)
        except ApplicationError as error:
            self._context = error

    @property
    def context(self) -> C:
        """The state or context of a valid start. Raises the ApplicationError of a rejected one."""
        if isinstance(self._context, ApplicationError):
            raise self._context
        return self._context

    @context.setter
    def context(self, new: C) -> None:
        self._context = new

    def ignore(self, signal: str, reason: str) -> None:
        """Log a signal that has no effect, and note it where people look, as its sender gets no answer."""
        workflow.logger.warning("%s ignored: %s", signal, reason)
        self.note(format_signal_notice(signal, reason))

    def note(self, notice: str) -> None:
        """Keep a notice in the state, if the workflow has notices."""

    def ignore_signal(self, signal: str, reason: str) -> None:
        with suppress(ApplicationError):  # a rejected start keeps no notices
            self.ignore(signal, reason)

    @workflow.signal(dynamic=True)
    def unknown_signal(self, name: str, args: Sequence[RawValue]) -> None:  # noqa: ARG002 - Temporal's signature
        if name != WAKE_SIGNAL:
            self.ignore_signal(truncate(name, 80), self.UNKNOWN_SIGNAL)


W = TypeVar("W", bound=ValidatedWorkflow[Any])


def ignore_if_invalid(handler: Callable[Concatenate[W, ...], None]) -> Callable[Concatenate[W, ...], None]:
    """Decorate a signal handler so that an ApplicationError ignores the signal, with the error as the reason."""

    @wraps(handler)
    def handle(own: W, *args: Any) -> None:
        try:
            handler(own, *args)
        except ApplicationError as error:
            own.ignore_signal(handler.__name__, error.message)

    return handle


def start_type(args: Sequence[Any]) -> Any:
    """Return the `type` of a start's argument, if it has one."""
    return args[0].get("type") if len(args) == 1 and isinstance(args[0], dict) else None


def read_argument(model: type[M], args: Sequence[Any]) -> M:
    """Return the one argument as `model`. Raises ApplicationError `InvalidInput`: one line, no input echoed."""
    if len(args) != 1:
        raise invalid_input(f"one JSON argument expected, got {len(args)}")
    if isinstance(args[0], Undecodable):
        raise invalid_input(f"not readable as JSON: {args[0].reason}")
    try:
        return model.model_validate(args[0])
    except ValidationError as error:
        raise invalid_input(format_validation_error(error)) from None


def read_optional_argument(model: type[M], args: Sequence[Any]) -> M:
    """Read as `read_argument` does; without an argument, or with null, return the model's defaults."""
    return read_argument(model, [{}]) if not args or list(args) == [None] else read_argument(model, args)


def cancel_reason(request: CancelRequest, default: str) -> str:
    return (request.reason or default) + (f" by {request.by}" if request.by else "")


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return int(workflow.time() * 1000)


def require_continue_as_new() -> None:
    """Raises ApplicationError `InvalidInput` if a carried state does not come from continue-as-new."""
    if workflow.info().continued_run_id is None:
        raise invalid_input("state: a start cannot bring a state of its own; it is only carried over continue-as-new")


def invalid_input(message: str) -> ApplicationError:
    return ApplicationError(escape_unprintable(message)[:500], type=RunFailure.invalid_input, non_retryable=True)


@workflow.defn(dynamic=True)
class UnknownWorkflow:
    """A workflow of an unknown type, which ends at once instead of waiting for a worker that has the type."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> NoReturn:  # noqa: ARG002 - Temporal's signature
        reason = f"there is no workflow type {workflow.info().workflow_type!r}; agent runs are of type AgentRun"
        raise ApplicationError(reason, type="UnknownWorkflowType", non_retryable=True)
