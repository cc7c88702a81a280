"""`perdure`: start agent runs, watch them, answer their questions, and run their workers.

Every command prints for a person, or JSON where a program reads (`--json`). An error is one line on standard error.
"""

import io
import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from perdure.process.shutdown import leave
from perdure.process.streams import guard_streams, open_closed
from perdure.process.variables import normalize

# Where each command is, and the first line of its help: to list them must not take the time to load them.
SECTIONS = {
    "Work": {
        "run": ("run:run", "Start an agent run and follow it to its end."),
        "chat": ("chat:chat", "Talk to an agent; the conversation goes on where it was left."),
        "watch": ("run:watch", "Follow a run: what has happened, and what happens."),
        "cancel": ("answer:cancel_", "Stop a run."),
        "resume": ("run:resume", "Go on with a failed or timed-out run, from its last safe point."),
        "fork": ("run:fork", "Start a new run from what a run was after one of its steps."),
        "schedule": ("schedule:schedule", "Start runs by the clock."),
        "event": ("event:event_", "Publish what happened outside, for what waits for it."),
        "mail": ("mail:mail", "Take tasks and replies that come as files in a folder."),
    },
    "People": {
        "answer": ("answer:answer_", "Answer the open question of a run."),
        "approve": ("answer:approve", "Let a call be made that a run asks approval for."),
        "deny": ("answer:deny", "Refuse a call that a run asks approval for; the run goes on."),
    },
    "Look": {
        "list": ("show:list_", "List runs: what waits for a person first, then the latest."),
        "show": ("show:show", "Show one run: status, question, steps, cost, and its files."),
        "trace": ("show:trace", "Print what a run did so far: each turn, each call, each result."),
    },
    "Projects": {
        "new": ("new:new", "Make a project in FOLDER: an agent, two tools and a test."),
        "agents": ("agents:agents", "Show the agents of the project: models, tools, peers, limits."),
        "tools": ("show:tools", "Show the tools: what each does to the world, whether it asks."),
        "eval": ("evaluate.evaluate:evaluate", "Run a table of goals, and say how many came out as expected."),
    },
    "Operate": {
        "worker": ("control:worker", "Run a worker against the configured Temporal."),
        "dev": ("control:dev", "Run Temporal, its Web UI and a worker here, until Ctrl-C."),
        "gateway": ("gateway:gateway", "Serve runs over HTTP, with a page for people, until Ctrl-C."),
        "token": ("token:token", "Make, list and revoke the bearer tokens of the gateway."),
        "mcp": ("mcp.server:mcp_", "Serve runs to an MCP client over standard input and output."),
        "doctor": ("control:doctor", "Check that everything a run needs is there; say what to do."),
        "completion": ("completion:completion", "Print the script that completes commands in a shell."),
    },
}
COMMANDS = {name: where for section in SECTIONS.values() for name, (where, _) in section.items()}


class Commands(click.Group):
    """A command is loaded where it is named, and not before. Help lists them by section."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - same
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"perdure.commands.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - same
        widest = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), told) for name, (_, told) in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["click.shell_completion.CompletionItem[str]"]:
        """The names of the commands, without loading any; options are click's business."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        from click.shell_completion import CompletionItem

        lines = {name: told for section in SECTIONS.values() for name, (_, told) in section.items()}
        return [CompletionItem(name, help=told) for name, told in lines.items() if name.startswith(incomplete)]


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 escalated to a person, 4 cancelled, 130 left.",
)
@click.version_option(package_name="perdure", message="perdure %(version)s")
def app() -> None:
    """LLM agents that outlast their processes, on Temporal.

    With no Temporal configured (TEMPORAL_ADDRESS or a profile), a command brings an embedded server; its state lies
    in .perdure, beside perdure.toml.

    \b
    Examples:
      perdure run "fetch https://example.com and say in two lines what it is"
      perdure list
      perdure answer RUN "the second one"
    """


def main() -> NoReturn:
    open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Who reads a pipe sees each line as it comes, and a terminal with few signs a ? for the others.
        sys.stdout.reconfigure(line_buffering=True, errors="replace")
    guard_streams()
    normalize(os.environ)
    code, out = 0, sys.stdout
    try:
        app(prog_name="perdure", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = 2
    except click.UsageError as error:
        from perdure.terminal.command import complain

        command = error.ctx.command_path if error.ctx else "perdure"
        hint = "; what begins with - and is no option comes after --" if isinstance(error, click.NoSuchOption) else ""
        complain(f"{' '.join(error.format_message().split())}{hint} (see {command} --help)")
        code = 2
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except SystemExit as end:  # click's: of a completion, or where a reader has seen enough, whose output it then swaps
        code = end.code if isinstance(end.code, int) and sys.stdout is out else 0
    except OSError as error:  # standard output's: a command's own is told where it runs
        from perdure.terminal.command import complain

        complain(str(error))
        code = 1
    leave(code)


if __name__ == "__main__":
    main()
