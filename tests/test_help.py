"""What the help says: commands by section, no line cut short, an example that works, and the nearest name."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from perdure import cli

HEAVY = ("temporalio", "pydantic", "mcp", "fastapi", "anthropic", "perdure.process.worker")  # a second or more to load


def every(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each command with what is typed to reach it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield (*path, name), below
            yield from every(below, *path, name)


ALL = dict(every(cli.app))


def help_of(*path: str, width: int) -> str:
    return CliRunner().invoke(cli.app, [*path, "--help"], terminal_width=width, prog_name="perdure").output


def test_the_overview_has_the_first_line_of_each_commands_help() -> None:
    first = {name: (ALL[name,].help or "").partition("\n\n")[0] for name in cli.commands()}
    assert first == {name: summary for section in cli.sections().values() for name, (_, summary) in section.items()}


@pytest.mark.parametrize("path", [(), *(path for path, each in ALL.items() if isinstance(each, click.Group))])
def test_no_line_of_an_overview_is_cut_short_at_80_columns(path: tuple[str, ...]) -> None:
    text = help_of(*path, width=80)
    assert "..." not in text.replace("[ARGS]...", "")
    assert "\n\n  Examples:\n" in text
    assert max(map(len, text.splitlines())) <= 80


def test_each_command_has_one_line_at_80_columns_below_the_heading_of_its_section() -> None:
    text = help_of(width=80)
    at = [text.index(f"\n{title}:\n") for title in cli.SECTIONS]
    assert at == sorted(at)
    for section in cli.SECTIONS.values():
        for name, (_, line) in section.items():
            assert f"\n  {name:<10}  {line}\n" in text


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_each_command_has_examples_that_it_takes(path: tuple[str, ...]) -> None:
    lines = help_of(*path, width=80).partition("Examples:\n")[2].splitlines()
    examples = [line.strip() for line in lines if line.strip().startswith("perdure ")]
    assert examples
    for example in examples:
        words = shlex.split(re.split(r" [|<>]", example)[0])[1:]
        names = next(names for names in (tuple(words[:2]), tuple(words[:1])) if names in ALL)
        assert names[: len(path)] == path
        ALL[names].make_context(" ".join(names), words[len(names) :])  # raises UsageError


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("lst", "'list'"), ("wach r1", "'watch'"), ("list --wating", "--waiting"), ("schedule ad", "'add'")],
)
def test_an_unknown_name_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(click.UsageError) as error:
        cli.app(typed.split(), prog_name="perdure", standalone_mode=False)
    assert "Did you mean" in error.value.format_message()
    assert meant in error.value.format_message()


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(cli.__file__).parents[1], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def test_help_loads_no_command() -> None:
    shows = "import sys; from perdure import cli; cli.app(['--help'], prog_name='perdure', standalone_mode=False)"
    assert run(f"{shows}; print([name for name in {HEAVY!r} if name in sys.modules])") == "[]"


def test_the_worker_script_rejects_options() -> None:
    script = [sys.executable, "worker.py", "--help"]
    done = subprocess.run(
        script, cwd=Path(cli.__file__).parents[1], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "worker: no options are accepted; configure it with perdure.toml and the environment\n"


@pytest.mark.parametrize("module", ["show", "answer"])
def test_short_commands_load_neither_the_worker_nor_servers(module: str) -> None:
    shows = f"import sys, perdure.commands.{module}"
    assert run(f"{shows}; print([name for name in {HEAVY[2:]!r} if name in sys.modules])") == "[]"
