"""Every command of the pages works as the page says: played in its order, or checked against the command's options."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import click
import pytest

from perdure import cli
from tests.docs.pages import Command, commands_of, is_whole, pages
from tests.docs.stage import Scene, not_shown, play

SCENES: dict[str, Scene] = {
    scene.page: scene
    for scene in (
        import_module(f"tests.docs.scenes.{path.stem}").SCENE
        for path in sorted((Path(__file__).parent / "scenes").glob("*.py"))
    )
}
NOT_RUN: dict[tuple[str, str], str] = {
    (scene.page, start): why for scene in SCENES.values() for start, why in scene.not_run.items()
}
ALL = [command for page in pages() for command in commands_of(page)]


def commands_played(scene: Scene) -> list[Command]:
    return [command for command in commands_of(scene.page) if scene.reason(command) is None]


PLAYED = [page for page, scene in SCENES.items() if commands_played(scene)]


@pytest.mark.timeout(900)  # a page has many commands, each with its own limit
@pytest.mark.parametrize("page", PLAYED)
def test_the_commands_of_a_page_work_in_their_order(page: str, site: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    play(SCENES[page], folder, site)


def test_every_command_of_every_page_is_played_or_has_a_reason_why_not() -> None:
    without = {command.page for command in ALL} - SCENES.keys()
    assert not without, f"pages whose commands nobody tries: {sorted(without)}"
    assert SCENES.keys() <= {command.page for command in ALL}, "scenes of pages that have no command any more"


def test_each_command_that_is_not_run_or_prepared_for_is_still_on_its_page() -> None:
    for page, scene in SCENES.items():
        for start in (*scene.not_run, *scene.steps):
            assert any(each.text.startswith(start) for each in commands_of(page)), f"{page} has no more: {start}"


@pytest.mark.parametrize(
    "command",
    [each for each in ALL if each.page in SCENES and SCENES[each.page].reason(each)],
    ids=lambda each: each.text,
)
def test_what_is_not_run_has_at_least_options_that_there_are(command: Command) -> None:
    for part in re.split(r"[;|]|&&", command.text):
        words = shlex.split(part, comments=True)
        if "perdure" in words:
            takes(cli.app, words[words.index("perdure") + 1 :])


def takes(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    """Raises click.UsageError, as the command would."""
    context = command.make_context(command.name, list(words), parent=parent)
    if isinstance(command, click.Group):
        _, below, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert below is not None
        takes(below, rest, context)


def test_a_command_goes_on_over_lines_quotes_and_heredocs() -> None:
    for part in ("echo a \\", "echo 'a", "cat <<E\nx", "for i in 1; do"):
        assert not is_whole(part)
    for whole in ("echo a \\\n b", "echo 'a\nb'", "cat <<E\nx\nE", "ls # what's there"):
        assert is_whole(whole)


def test_the_tokens_that_a_page_shows_are_those_of_a_run() -> None:
    assert not_shown(("2 turns · 2,099 → 57 tokens · 42 s",), "2 turns · 2,140 → 58 tokens · 3 s") is None
    assert not_shown(("2 turns · 4,386 → 57 tokens · 42 s",), "2 turns · 2,099 → 57 tokens · 3 s") is not None


def test_what_a_page_shows_may_differ_in_its_numbers_only() -> None:
    out = "261122-ab12cd34  clerk  5 min\n  Which shop?\nwritten: run.json, 48,210 bytes\n"
    assert not_shown(("261122-c0ffee00 clerk 12 s", "…", "written: … bytes"), out) is None
    assert not_shown(("next: Mon 2026-11-23 09:00:00",), "next: Thu 2026-11-26 09:00:00") is None
    assert not_shown(("261122-c0ffee00 cleric",), out) == "261122-c0ffee00 cleric"
    assert not_shown(("  Which shop?", "261122-ab12cd34  clerk  5 min"), out) == "261122-ab12cd34  clerk  5 min"
