"""`perdure`: start agent runs, watch them, answer their questions, and run their workers.

Commands print text for people, or JSON with `--json`. An error is one line on standard error.
"""

import gc
import io
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from perdure.process.streams import exit_now, guard_streams, normalize_environment, open_null_streams
from perdure.registry import features, load, use_of_project

# The module and the summary of each command: `perdure --help` must not load the commands.
SECTIONS = {
    "Runs": {
        "run": ("perdure.commands.run:run_command", "Start an agent run and follow it to its end."),
        "chat": ("perdure.commands.chat:chat_command", "Chat with an agent in a persistent conversation."),
        "watch": ("perdure.commands.run:watch_command", "Follow a run: past events, then new ones as they happen."),
        "cancel": ("perdure.commands.answer:cancel_command", "Cancel a run."),
        "resume": ("perdure.commands.run:resume_command", "Resume a failed or timed-out run from its last safe point."),
        "fork": ("perdure.commands.run:fork_command", "Start a new run from a step of another run."),
    },
    "Questions": {
        "questions": (
            "perdure.commands.questions:questions_command",
            "List the open questions of all runs, with filters.",
        ),
        "answer": ("perdure.commands.answer:answer_command", "Answer the open question of a run."),
        "approve": ("perdure.commands.answer:approve_command", "Approve the tool call a run is waiting on."),
        "deny": ("perdure.commands.answer:deny_command", "Deny the tool call a run is waiting on; the run continues."),
    },
    "Inspection": {
        "list": (
            "perdure.commands.show:list_runs_command",
            "List runs: those that wait for a person first, then the latest.",
        ),
        "show": ("perdure.commands.show:show_command", "Show a run: status, question, steps, cost and files."),
        "redeliver": (
            "perdure.commands.questions:redeliver_command",
            "Deliver dead letters again, after their cause is corrected.",
        ),
        "trace": ("perdure.commands.show:trace_command", "Print the turns, calls and results of a run so far."),
        "verify": (
            "perdure.commands.export:verify_command",
            "Check a signed record: its events, their order, its signature.",
        ),
    },
    "Projects": {
        "demo": ("perdure.commands.demo:demo_command", "Run an agent on an example site, from goal to artifact."),
        "new": (
            "perdure.commands.new:new_command",
            "Create a project in FOLDER: an agent, tools, a policy, tests.",
        ),
        "agents": (
            "perdure.commands.show:agents_command",
            "List the project's agents: models, settings, tools, limits.",
        ),
        "tools": ("perdure.commands.show:tools_command", "List the project's tools: effects, approvals and timeouts."),
        "policy": (
            "perdure.commands.policy:policy_command",
            "Check, test and explain the policy of a project, `policy.toml`.",
        ),
    },
    "Operations": {
        "worker": ("perdure.commands.control:worker_command", "Run a worker for the configured Temporal server."),
        "dev": ("perdure.commands.control:dev_command", "Run Temporal, its Web UI and a worker until Ctrl-C."),
        "gateway": ("perdure.commands.gateway:gateway_command", "Serve runs over HTTP, with a web page, until Ctrl-C."),
        "token": ("perdure.commands.gateway:token_command", "Create, list and revoke bearer tokens for the gateway."),
        "doctor": ("perdure.commands.control:doctor_command", "Check everything a run needs, and say how to fix it."),
        "completion": ("perdure.commands.control:completion_command", "Print the shell completion script."),
    },
}


def commands() -> dict[str, tuple[str, str]]:
    """Return the target and the summary of each command, those of features included."""
    return {name: entry for section in sections().values() for name, entry in section.items()}


def sections() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the commands by section of `perdure --help`. A feature cannot replace one of the core's."""
    own = {name for section in SECTIONS.values() for name in section}
    found = {title: {**section} for title, section in SECTIONS.items()}
    for feature in features().values():
        for name, command in feature.commands.items():
            if name not in own:
                found.setdefault(command.section, {})[name] = (command.target, command.summary)
    return found


class CommandGroup(click.Group):
    """The command group. It loads a command on first use, and lists commands by section."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - same
        known = commands()
        if cmd_name not in known:
            return None
        gc.disable()  # what modules create stays: collections among it make short commands slower
        try:
            command: click.Command = load(known[cmd_name][0])
        finally:
            gc.freeze()
            gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in commands() and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], possibilities=commands(), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - same
        widest = max(map(len, commands()))
        for title, section in sections().items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), summary) for name, (_, summary) in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["click.shell_completion.CompletionItem[str]"]:
        """Complete command names without loading the commands; click completes options."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        from click.shell_completion import CompletionItem

        matching = {name: summary for name, (_, summary) in commands().items() if name.startswith(incomplete)}
        return [CompletionItem(name, help=summary) for name, summary in matching.items()]


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 completed, 1 failed, 2 usage error, 3 escalated to a person, 4 cancelled, 130 detached.",
)
@click.version_option(package_name="perdure", message="perdure %(version)s")
def app() -> None:
    """LLM agents that outlast their processes, on Temporal.

    If no Temporal server is configured (TEMPORAL_ADDRESS or a profile), commands start an embedded one. Its state is
    in .perdure, next to perdure.toml.

    \b
    Examples:
      perdure run "fetch https://example.com and say in two lines what it is"
      perdure list
      perdure answer RUN "the second one"
    """


def main() -> NoReturn:
    open_null_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Readers of a pipe get each line at once; a character that the encoding lacks becomes "?".
        sys.stdout.reconfigure(line_buffering=True, errors="replace")
    guard_streams()
    normalize_environment(os.environ)
    use_of_project(Path(os.environ.get("PERDURE_CONFIG") or "perdure.toml"))
    code, out = 0, sys.stdout
    try:
        app(prog_name="perdure", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = 2
    except click.UsageError as error:
        from perdure.terminal.command import print_error

        command = error.ctx.command_path if error.ctx else "perdure"
        hint = "; put arguments that begin with - after --" if isinstance(error, click.NoSuchOption) else ""
        print_error(f"{' '.join(error.format_message().split())}{hint} (see {command} --help)")
        code = 2
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except SystemExit as end:  # from click: after a completion, or a closed pipe, for which it swaps stdout
        code = end.code if isinstance(end.code, int) and sys.stdout is out else 0
    except ModuleNotFoundError as error:  # of a command's modules
        from perdure.extras import describe_missing
        from perdure.terminal.command import print_error

        if (line := describe_missing(error)) is None:
            raise
        print_error(line)
        code = 1
    except OSError as error:  # on standard output; `run_async` handles a command's own
        from perdure.terminal.command import print_error

        print_error(str(error))
        code = 1
    exit_now(code)


if __name__ == "__main__":
    main()
