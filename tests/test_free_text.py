"""Texts that begin with "-"."""

import click
import pytest
from click.testing import CliRunner

from perdure.terminal.command import FreeTextCommand


@click.command(cls=FreeTextCommand)
@click.argument("name")
@click.argument("text", required=False)
@click.option("--say")
@click.option("--context", "-c", multiple=True)
@click.option("--detach", "-d", is_flag=True)
def command(name: str, text: str | None, say: str | None, context: tuple[str, ...], *, detach: bool) -> None:
    click.echo(repr((name, text, say, context, detach)))


@pytest.mark.parametrize(
    ("args", "taken"),
    [
        (["n", "-5 degrees: is that cold?"], ("n", "-5 degrees: is that cold?", None, (), False)),
        (["n", "-5"], ("n", "-5", None, (), False)),
        (["n", "- one\n- two", "-d"], ("n", "- one\n- two", None, (), True)),
        (["n", "--say what you see", "--say", "-x y"], ("n", "--say what you see", "-x y", (), False)),
        (["n", "-delete all", "-dc", "a=b c"], ("n", "-delete all", None, ("a=b c",), True)),
        (["n", "-ca=b c", "t"], ("n", "t", None, ("a=b c",), False)),
        (["n", "--context=a=b c", "--", "-d"], ("n", "-d", None, ("a=b c",), False)),
        (["n", "-"], ("n", "-", None, (), False)),
    ],
)
def test_a_text_that_begins_with_a_dash_is_text(args: list[str], taken: object) -> None:
    assert CliRunner().invoke(command, args).output.strip() == repr(taken)


@pytest.mark.parametrize("args", [["n", "-x"], ["n", "--nonsense"], ["n", "--say"]])
def test_an_unknown_option_is_rejected(args: list[str]) -> None:
    assert CliRunner().invoke(command, args).exit_code == 2
