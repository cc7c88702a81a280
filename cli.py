"""`perdure`: start agent runs, watch them, answer their questions, and run their workers.

Every command prints for a person, or JSON where a program reads (`--json`). An error is one line on standard error.
"""

import io
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from commands.agents import agents
from commands.chat import chat
from commands.common import complain, console
from commands.evaluation import evaluate
from commands.event import event_
from commands.follow import DETACHED
from commands.gateway import gateway
from commands.look import list_, show, tools, trace
from commands.mail import mail
from commands.mcp import mcp_
from commands.new import new
from commands.operate import dev, doctor, worker
from commands.people import answer_, approve, cancel_, deny
from commands.run import fork, resume, run, watch
from commands.schedule import schedule
from commands.token import token
from runs import leave

COMMANDS = (
    run,
    chat,
    list_,
    show,
    watch,
    answer_,
    approve,
    deny,
    cancel_,
    resume,
    fork,
    trace,
    event_,
    mail,
    mcp_,
    tools,
    agents,
    new,
    evaluate,
    schedule,
    worker,
    dev,
    gateway,
    token,
    doctor,
)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 escalated to a person, 4 cancelled, 130 left.",
)
@click.version_option(package_name="perdure", message="perdure %(version)s")
def app() -> None:
    """LLM agents that outlast their processes, on Temporal.

    With no Temporal configured (TEMPORAL_ADDRESS or a profile), a command brings an embedded server; its state lies
    in .perdure, beside perdure.toml.
    """


for each in COMMANDS:
    app.add_command(each)


def main() -> NoReturn:
    if sys.stdout is None:  # started with its standard output closed
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it stays open to the end
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # who reads a pipe sees each line as it comes
    if not console.is_terminal:
        console.width = 120  # a pipe has no width; lines there should not break at 80
    try:
        app(prog_name="perdure", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "perdure"
        complain(f"{' '.join(error.format_message().split())} (see {command} --help)")
        leave(2)
    except (click.Abort, KeyboardInterrupt):
        leave(DETACHED)
    leave(0)


if __name__ == "__main__":
    main()
