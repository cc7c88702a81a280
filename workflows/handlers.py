"""How workflow inputs and handlers read their one JSON argument.

An argument that does not decode into a typed parameter, and an exception out of a signal handler, fail the workflow
task for ever. So everything takes `*args` and is read here, where a bad one becomes a refusal.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, Protocol, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from contracts.failures import RunFailure
from contracts.models import Undecodable, printable
from decisions.errors import fault_line

M = TypeVar("M", bound=BaseModel)


class Listener(Protocol):
    """A workflow that takes signals."""

    def ignore(self, signal: str, why: str) -> None:
        """A signal cannot be refused to its sender, so it is told where people look."""


L = TypeVar("L", bound=Listener)


def ignoring_refusals(handler: Callable[Concatenate[L, ...], None]) -> Callable[Concatenate[L, ...], None]:
    """A signal handler may raise a refusal, an ApplicationError: its workflow ignores the signal, and says why."""

    @wraps(handler)
    def handle(listener: L, *args: Any) -> None:
        try:
            handler(listener, *args)
        except ApplicationError as refused:
            listener.ignore(handler.__name__, refused.message)

    return handle


def read(model: type[M], args: Sequence[Any]) -> M:
    """The one argument as `model`. Raises ApplicationError `InvalidInput`: one line, no input echoed."""
    if len(args) != 1:
        raise invalid(f"one JSON argument expected, got {len(args)}")
    if isinstance(args[0], Undecodable):
        raise invalid(f"not readable as JSON: {args[0].reason}")
    try:
        return model.model_validate(args[0])
    except ValidationError as error:
        raise invalid(fault_line(error)) from None


def read_optional(model: type[M], args: Sequence[Any]) -> M:
    """As `read`, with the model's defaults where no argument (or null) is given."""
    return read(model, [{}]) if not args or list(args) == [None] else read(model, args)


def must_continue() -> None:
    """Raises ApplicationError `InvalidInput` for a carried state that no earlier execution handed on."""
    if workflow.info().continued_run_id is None:
        raise invalid("state: a start cannot bring a state of its own; it is only carried over continue-as-new")


def invalid(message: str) -> ApplicationError:
    return ApplicationError(printable(message)[:500], type=RunFailure.invalid_input, non_retryable=True)
