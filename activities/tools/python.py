"""The kind `python`: a typed function with a docstring, from which the schema is derived."""

import asyncio
import importlib
import inspect
import io
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model
from pydantic_core import from_json, to_json

from perdure.activities.media.check import media_type_of
from perdure.activities.media.store import ResultFiles
from perdure.activities.tools.interface import CallContext, TransientToolError
from perdure.activities.tools.printing import in_tool
from perdure.contracts.agent import ToolSchema
from perdure.contracts.failures import ToolFault
from perdure.contracts.models import replace_surrogates
from perdure.contracts.strict_input import find_flaw
from perdure.contracts.tool import MAX_RESULT_BYTES, ToolOutcome, ToolRoute, error_outcome
from perdure.decisions.errors import describe_exception, format_validation_error

TRANSIENT_ERRORS = (ConnectionError, TimeoutError, httpx.TransportError)
UNSENT_ERRORS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)  # a retry would fail in the same way
MAX_THREADS = 32  # concurrent calls of one plain function
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")  # of Pillow's images
KEY_PARAMETER = "idempotency_key"  # a function that declares it gets the call's key


class BadTargetError(ValueError):
    """`target` does not name a function that can be a tool. The message gives the reason."""


class PythonTool:
    """Calls `target` ("package.module:function"): a plain function in a thread, a coroutine on the loop.

    `MAY_PASS` exceptions are transient, except `UNSENT_ERRORS`; the model sees every other exception.
    """

    def __init__(self, route: ToolRoute, target: str, description: str | None = None) -> None:
        self.route = route
        self._function = load_function(target)
        # A pool of its own: calls that hang must not take the threads in which the runtime writes its files.
        self._threads = ThreadPoolExecutor(MAX_THREADS, f"tool-{route.name}")
        parameters = _read_parameters(self._function, target)
        self._takes_key = KEY_PARAMETER in parameters
        fields: dict[str, Any] = {}
        for name, parameter in parameters.items():
            if name == KEY_PARAMETER:
                continue
            if name.startswith("_") or parameter.annotation is parameter.empty or parameter.kind in _UNNAMED:
                raise BadTargetError(f"{target}: parameter {name!r} needs a type, and a name that a model can use")
            fields[name] = (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
        self._arguments = _build_model(f"{route.name}_arguments", fields, target)
        text = description or inspect.getdoc(self._function)
        if not text:
            raise BadTargetError(f"{target}: needs a docstring, or a `description` in perdure.toml")
        schema = self._arguments.model_json_schema()
        schema.pop("title", None)
        self.schema = ToolSchema(name=route.name, description=text, input_schema=schema)

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        try:
            checked = self._arguments.model_validate_json(to_json(arguments))  # a strict type reads more from JSON
        except ValidationError as error:
            return error_outcome(ToolFault.invalid_arguments, format_validation_error(error, "arguments"))
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        if self._takes_key:
            values[KEY_PARAMETER] = context.idempotency_key
        with in_tool():
            result = await self._call_function(values)
        if isinstance(result, _Raised):
            return _to_failure(result.error)
        if inspect.isasyncgen(result):
            return error_outcome(
                ToolFault.tool_error, "nothing was done: it gave an async generator, which no one runs"
            )
        try:
            kept = ResultFiles(f"{self.route.name}-{context.step:02}", context.workspace, context.store)
            return await asyncio.to_thread(_to_outcome, result, kept)
        except ValueError as error:
            reason = find_flaw({"result": result}) or str(error)
            return error_outcome(
                ToolFault.tool_error, f"the call was made, but what it returned is no usable JSON: {reason}"
            )

    async def _call_function(self, values: dict[str, Any]) -> Any:
        """Call the function and await its result if needed. Return the result, or `_Raised`."""
        call = partial(_call_safely, partial(self._function, **values))
        if inspect.iscoroutinefunction(self._function):
            result = call()
        else:
            in_context = partial(copy_context().run, call)
            result = await asyncio.get_running_loop().run_in_executor(self._threads, in_context)
        if not inspect.isawaitable(result):  # a plain function may return a coroutine
            return result
        try:
            return await result
        except (asyncio.CancelledError, GeneratorExit):  # the call is being ended; the function did not fail
            raise
        except BaseException as error:  # noqa: BLE001 - as in `_call_safely`
            return _Raised(error)


def _to_outcome(result: Any, kept: ResultFiles) -> ToolOutcome:
    """Convert a returned value to JSON; of a large one, keep the text of its first part. Raises ValueError.

    An image or a PDF, as bytes or as an image of Pillow, becomes a file; also one in a list.
    """
    items = result if isinstance(result, list | tuple) else [result]
    files = [_to_file(item) for item in items]
    if any(files):
        shown = [kept.add_file(*file) if file else item for item, file in zip(items, files, strict=True)]
        outcome = _to_json_outcome(shown if items is result else shown[0])
        return outcome.evolve(media=tuple(kept.media), artifacts=tuple(kept.paths))
    return _to_json_outcome(result)


def _to_file(item: Any) -> tuple[str, bytes] | None:
    """Return the content type and the bytes of an image or a PDF, None for any other value."""
    if isinstance(item, bytes):
        kind = media_type_of(item)
        return (kind, item) if kind else None
    pillow = sys.modules.get("PIL.Image")  # a tool that returns an image has loaded it
    if pillow is None or not isinstance(item, pillow.Image):
        return None
    buffer = io.BytesIO()
    (item if item.mode in PNG_MODES else item.convert("RGB")).save(buffer, "PNG")
    return "image/png", buffer.getvalue()


def _to_json_outcome(result: Any) -> ToolOutcome:
    data = to_json(replace_surrogates(result), fallback=str)
    if len(data) <= MAX_RESULT_BYTES:
        return ToolOutcome(result=from_json(data))
    text = result if isinstance(result, str) else data[: MAX_RESULT_BYTES + 1].decode(errors="replace")
    return ToolOutcome(result=text[: MAX_RESULT_BYTES + 1])


@dataclass(frozen=True)
class _Raised:
    error: BaseException


def _call_safely(call: Callable[[], Any]) -> Any:
    """Return the result, or `_Raised`: a future cannot hold StopIteration, and SystemExit must not end the worker."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - `_judged` handles any exception of the user's function
        return _Raised(error)


def _to_failure(error: BaseException) -> ToolOutcome:
    """Return the error for the model. Raises TransientToolError if it is transient."""
    message = describe_exception(error)
    if _is_transient(error):
        raise TransientToolError(ToolFault.unreachable, message) from error
    return error_outcome(ToolFault.tool_error, message)


def _is_transient(error: BaseException) -> bool:
    """Return True if the error is transient; for a group, if all its errors are."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_transient, error.exceptions))
    return isinstance(error, TRANSIENT_ERRORS) and not isinstance(error, UNSENT_ERRORS)


_UNNAMED = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
)


def load_function(target: str) -> Callable[..., Any]:
    """Import the function that "package.module:function" names. Raises BadTargetError."""
    function = load_target(target)
    if not callable(function):
        raise BadTargetError(f"{target} is not a function")
    if inspect.isasyncgenfunction(function):
        raise BadTargetError(f"{target} is an async generator: return a list instead")
    return function  # type: ignore[no-any-return]  # narrowed by callable()


def load_target(target: str) -> Any:
    """Import what "package.module:name" names. Raises BadTargetError."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise BadTargetError(f'{target!r}: expected "package.module:function"')
    try:
        with in_tool():
            return getattr(importlib.import_module(module_name), name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise BadTargetError(f"{target}: {describe_exception(error)}") from error


def _read_parameters(function: Callable[..., Any], target: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, ValueError, SyntaxError) as error:
        raise BadTargetError(f"{target}: its signature cannot be read: {error}") from error


def _build_model(name: str, fields: dict[str, Any], target: str) -> type[BaseModel]:
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticUserError, NameError) as error:
        raise BadTargetError(f"{target}: a parameter cannot be described to a model: {error}") from error
