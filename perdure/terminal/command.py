"""The parts that all commands share: console, arguments, options, errors and exit codes."""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import timedelta
from functools import wraps
from getpass import getuser
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import click
from pydantic import TypeAdapter, ValidationError
from temporalio.service import RPCError

from perdure.activities.security import collect_secrets
from perdure.client.door import name_person, set_sender
from perdure.contracts.models import Duration, is_utf8
from perdure.contracts.people import CLI
from perdure.decisions.errors import ReportedError, format_validation_error
from perdure.decisions.text.formatting import truncate
from perdure.extras import naming_extras
from perdure.process.streams import exit_now
from perdure.settings import ProjectError, current_folder, load_settings
from perdure.telemetry import quiet_core
from perdure.terminal.completion import complete_runs
from perdure.terminal.console import SafeConsole
from perdure.terminal.follow import DETACHED

_P = ParamSpec("_P")
_G = TypeVar("_G", bound=str | tuple[str, ...] | None)
MAX_RUN_ARGUMENT_BYTES = 1000  # the server's limit for a workflow id
console = SafeConsole(highlight=False, emoji=False)


def require_utf8(ctx: click.Context, param: click.Parameter, value: _G) -> _G:  # noqa: ARG001 - click's signature
    """Reject values that cannot be sent to the server: a shell passes on any bytes."""
    texts = value if isinstance(value, tuple) else (value,)
    if not all(is_utf8(text) for text in texts if text is not None):
        raise click.BadParameter("not valid UTF-8")
    return value


def check_server_id(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Check an id that the server may have made: it can be longer than one that a person may choose."""
    value = require_utf8(ctx, param, value)
    if not value.strip() or len(value.encode()) > MAX_RUN_ARGUMENT_BYTES:
        raise click.BadParameter(f"the length must be 1 to {MAX_RUN_ARGUMENT_BYTES:,} bytes")
    return value


run_argument = click.argument("run_id", metavar="RUN", shell_complete=complete_runs, callback=check_server_id)
attach_option = click.option(
    "--attach",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="An image (PNG, JPEG, WebP, GIF) or a PDF for the agent; repeatable.",
)
STDOUT = "-"  # as the name of a file
file_type = click.Path(path_type=Path)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def format_examples(*commands: str) -> str:
    """Return the last paragraph of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  perdure {command}" for command in commands)


def _read_people() -> Mapping[str, Collection[str]]:
    """Return the groups of the project. A command that needs a project reports by itself what is wrong with it."""
    try:
        return load_settings(strict=False).file.people
    except ProjectError:
        return {}


def find_user() -> str:
    """Return the name of the user of the machine; "" in a container without one."""
    try:
        return getuser()
    except (KeyError, OSError):
        return ""


def run_async(command: Callable[[], Coroutine[Any, Any, int]], *, stays: bool = False) -> NoReturn:
    """Run a command, print an expected error as one line, and exit.

    A command that stays serves metrics.
    """
    if not console.is_terminal:
        console.width = 120  # the width of a pipe is unknown; do not wrap at 80
    logging.getLogger().addHandler(logging.NullHandler())  # commands that run workers log to their own file
    try:
        if project := _find_parent_project(current_folder()):
            print_error(f"no perdure.toml in this folder, but one in {project}: run the command there")
        quiet_core(load_settings(strict=False).metrics if stays else None)
        set_sender(name_person(_read_people(), find_user(), CLI))
        with naming_extras():
            code = asyncio.run(command())
    except ReportedError as error:
        for line in str(error).splitlines():
            print_error(line)
        code = 1
    except RPCError as error:
        print_error(f"Temporal rejected the request: {truncate(error.message)}")
        code = 1
    except ValidationError as error:  # what was read is of another version
        reason = truncate(format_validation_error(error), 300)
        print_error(f"this version cannot read a {error.title} that it got: {reason}")
        code = 1
    except KeyboardInterrupt:
        code = DETACHED
    exit_now(code)


def async_command(*, stays: bool = False) -> Callable[[Callable[_P, Coroutine[Any, Any, int]]], Callable[_P, NoReturn]]:
    """Make a command's callback of a coroutine function that returns the exit code."""

    def decorate(command: Callable[_P, Coroutine[Any, Any, int]]) -> Callable[_P, NoReturn]:
        @wraps(command)
        def callback(*args: _P.args, **kwargs: _P.kwargs) -> NoReturn:
            run_async(lambda: command(*args, **kwargs), stays=stays)

        return callback

    return decorate


def _find_parent_project(folder: Path) -> Path | None:
    """Return the nearest parent folder with a project, if `folder` has none and none is configured."""
    if os.environ.get("PERDURE_CONFIG") or os.environ.get("PERDURE_HOME") or (folder / "perdure.toml").exists():
        return None
    return next((parent for parent in folder.parents if (parent / "perdure.toml").is_file()), None)


def to_usage_error(error: ValidationError) -> click.UsageError:
    """Convert a contract's validation error, with the name of the field."""
    return click.UsageError(format_validation_error(error, without="payload"))


def print_error(line: str) -> None:
    """Print an error, with the secrets of the environment redacted: people paste errors into tickets."""
    print(collect_secrets(os.environ).redact(f"perdure: {line}"), file=sys.stderr)


def print_faults(*faults: ReportedError | None) -> None:
    """Print a line for each fault beside which the command goes on."""
    for line in dict.fromkeys(line for fault in faults if fault for line in str(fault).splitlines()):
        print_error(line)


class DurationType(click.ParamType[timedelta]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            return TypeAdapter(Duration).validate_python(value)
        except ValidationError:
            self.fail(f"{value!r} is not a duration; use 30s, 5m, 1h or 7d, up to 366d", param, ctx)


class FreeTextCommand(click.Command):
    """A command that takes an argument as text if it begins with "-" and contains a space or is a number.

    For a free text such as "-5 degrees: is that cold?".
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options, texts = list[str](), list[str]()
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                texts.extend(rest)
            elif arg == "-" or not arg.startswith("-") or self._is_text(arg):
                texts.append(arg)
            else:
                options.append(arg)
                if self._takes_next(arg):
                    if (value := next(rest, None)) is None:
                        return super().parse_args(ctx, args)  # raises the error for the missing value
                    options.append(value)
        return super().parse_args(ctx, [*options, "--", *texts])

    def _is_text(self, arg: str) -> bool:
        name = arg.partition("=")[0] if arg.startswith("--") else arg[:2]
        if self._has_value(name):
            return False
        return re.match(r"-[\d.]", arg) is not None or re.search(r"\s", arg) is not None

    def _takes_next(self, arg: str) -> bool:
        """Return whether the next argument is the value of the last option in this one."""
        names = [arg] if arg.startswith("--") else [f"-{letter}" for letter in arg[1:]]
        first = next((index for index, name in enumerate(names) if self._has_value(name)), None)
        return first == len(names) - 1

    def _has_value(self, name: str) -> bool:
        options = (param for param in self.params if isinstance(param, click.Option))
        return any(name in option.opts and not option.is_flag for option in options)
