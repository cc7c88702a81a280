"""What every command has in common: where it prints, what it takes, and how it ends.

A failure that a person can mend becomes one line on standard error.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from pydantic import TypeAdapter, ValidationError
from temporalio.service import RPCError

from activities.security.secrets import secrets_of
from contracts.duration import Duration
from contracts.models import is_utf8
from contracts.sender import CLI
from decisions.errors import fault_line
from decisions.text.formatting import cut
from devserver import ServerDidNotStart
from perdure.client.door import speak_as
from perdure.client.errors import NoSuchRun, NotReachable, Refused
from perdure.codec import UnknownKey
from perdure.process.shutdown import leave
from perdure.terminal.completion import run_ids
from perdure.terminal.console import SafeConsole
from perdure.terminal.follow import DETACHED
from settings import ProjectError, current_folder, load
from telemetry import NoMetrics, quiet_core

G = TypeVar("G", bound=str | tuple[str, ...] | None)
MOST_NAME_BYTES = 1000  # the server's bound of a workflow's id
console = SafeConsole(highlight=False, emoji=False)


def utf8(ctx: click.Context, param: click.Parameter, value: G) -> G:  # noqa: ARG001 - click's signature
    """Whatever bytes a shell hands on, only these can be told to the server: one text, several, or none."""
    texts = value if isinstance(value, tuple) else (value,)
    if not all(is_utf8(text) for text in texts if text is not None):
        raise click.BadParameter("this is not UTF-8")
    return value


def name_on_server(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """What a run began by itself may have a longer id than one that a person chooses."""
    value = utf8(ctx, param, value)
    if not value.strip() or len(value.encode()) > MOST_NAME_BYTES:
        raise click.BadParameter(f"it has 1 to {MOST_NAME_BYTES:,} bytes")
    return value


run_argument = click.argument("run_id", metavar="RUN", shell_complete=run_ids, callback=name_on_server)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program instead.")


def examples(*commands: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  perdure {command}" for command in commands)


def go(command: Callable[[], Coroutine[Any, Any, int]], *, stays: bool = False) -> NoReturn:
    """Runs a command to its exit code; what a person can mend becomes one line. One that stays can be scraped."""
    if not console.is_terminal:
        console.width = 120  # a pipe has no width; lines there should not break at 80
    logging.getLogger().addHandler(logging.NullHandler())  # a command that works logs to a file of its own
    try:
        if project := _project_above(current_folder()):
            complain(f"no perdure.toml here, but in {project}: a command works on the project of its own folder")
        quiet_core(load().metrics if stays else None)
        speak_as(CLI)
        code = asyncio.run(command())
    except (NoSuchRun, Refused, NotReachable, ProjectError, ServerDidNotStart, UnknownKey, NoMetrics) as error:
        complain(str(error))
        code = 1
    except RPCError as error:
        complain(f"Temporal does not do it: {cut(error.message, 300)}")
        code = 1
    except BrokenPipeError:  # who read our output has seen enough
        code = 0
    except OSError as error:
        complain(str(error))
        code = 1
    except KeyboardInterrupt:
        code = DETACHED
    leave(code)


def _project_above(here: Path) -> Path | None:
    """Whoever stands in a folder of a project, and not in the project, would look for its runs in vain."""
    if os.environ.get("PERDURE_CONFIG") or os.environ.get("PERDURE_HOME") or (here / "perdure.toml").exists():
        return None
    return next((each for each in here.parents if (each / "perdure.toml").is_file()), None)


def wrong_usage(error: ValidationError) -> click.UsageError:
    """What a contract does not take, by its field."""
    return click.UsageError(fault_line(error, without="payload"))


def complain(line: str) -> None:
    """Errors are shown to others and pasted into tickets: no secret of the environment is in one."""
    print(secrets_of(os.environ).redact(f"perdure: {line}"), file=sys.stderr)


class DurationType(click.ParamType[timedelta]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            return TypeAdapter(Duration).validate_python(value)
        except ValidationError:
            self.fail(f"{value!r} is no duration; write it as 30s, 5m, 1h or 7d, up to 366d", param, ctx)
