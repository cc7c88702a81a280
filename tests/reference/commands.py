"""`commands.md`: every command, by section, from click."""

import inspect
import re
from collections.abc import Iterator

import click

from perdure import cli
from tests.reference.markdown import code, fenced, page, table

INTRO = """\
What `perdure --help` says, in one place; `perdure COMMAND --help` says it in the terminal. A command reads the
[project](configuration.md) of the current folder. `python worker.py` is `perdure worker`, and takes no options.

An error is one line on standard error. With `--json` standard output has JSON alone."""


def commands() -> str:
    parts = [INTRO, "## Exit codes", _exit_codes()]
    for title, section in cli.sections().items():
        parts.append(f"## {title}")
        parts.append(
            table(
                ("command", "does"),
                ((f"[`{name}`](#perdure-{name})", summary) for name, (_, summary) in section.items()),
            )
        )
        for name in section:
            command = cli.app.get_command(click.Context(cli.app), name)
            assert command is not None
            parts += _sections(command, click.Context(command, info_name=f"perdure {name}"))
    return page("Commands", *parts)


def _exit_codes() -> str:
    summary = (cli.app.epilog or "").removeprefix("Exit codes: ").removesuffix(".")
    pairs = (each.split(" ", 1) for each in summary.split(", "))
    rows = ((number, DETACHED if word == "detached" else word) for number, word in pairs)
    return table(("code", "means"), rows) + "\n\n" + ALSO


DETACHED = "detached: the run continues, and `perdure watch` follows it again"
ALSO = """\
Other commands exit with 0 on success and 1 on failure; exceptions are listed with the command."""


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"### {context.info_name}"
    usage = " ".join(command.collect_usage_pieces(context))
    yield fenced(f"{context.info_name} {usage}")
    yield from _prose(command.help or "")
    rows = [
        (_names(option), _default(option, context), option.help or "")
        for option in command.params
        if isinstance(option, click.Option)
    ]
    if rows:
        yield table(("option", "default", "means"), rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _sections(below, click.Context(below, info_name=f"{context.info_name} {name}"))
    else:
        yield fenced(_examples(command))


def _prose(summary: str) -> Iterator[str]:
    """Paragraphs; one that click must not fill (`\\b`) stays as it is."""
    for paragraph in inspect.cleandoc(summary).split("\n\n"):
        lines = paragraph.splitlines()
        yield fenced("\n".join(lines[1:])) if lines[0] == "\b" else paragraph


def _names(option: click.Option) -> str:
    return ", ".join(code(name) for name in sorted(option.opts, key=len)) + _takes(option)


def _takes(option: click.Option) -> str:
    if option.is_flag:
        return ""
    match option.type:
        case click.Choice(choices=choices):
            return " " + ", ".join(code(each) for each in choices)
        case click.IntRange() | click.FloatRange() as number:
            return f" {option.metavar or 'number'}, {_range(number)}"
        case _:
            return f" {option.metavar or 'text'}"


def _range(number: click.IntRange | click.FloatRange) -> str:
    return f"{number.min:,} to {number.max:,}" if number.max is not None else f"{number.min:,} or more"


def _default(option: click.Option, context: click.Context) -> str:
    if option.required:
        return "required"
    if option.is_flag or option.multiple:
        return ""
    default = option.get_default(context, call=True)
    return "" if default is None or "Sentinel" in repr(default) else code(str(default))


def _examples(command: click.Command) -> str:
    lines = (command.epilog or "").partition("Examples:\n")[2].splitlines()
    return "\n".join(re.sub(r"^ {2}", "", line) for line in lines)
