"""`perdure run` at a real terminal of a known size: what a person sees, types, and is left with."""

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.testkit.model_server import Reply, ScriptedModel, calls, says, slow
from tests.e2e.projects import MakeProject, Project, goal_of, turn_of, use_model
from tests.e2e.terminal import in_foreground
from tests.waiting import PATIENCE

ARGUMENTS = {"text": "milk \x1b]0;evil\x07 and eggs " * 300}  # longer than a question's text
TOOL = """
[tools.note]
kind = "python"
effect = "once"
approval = "always"
target = "notes:note"
"""
CODE = '''
def note(text: str) -> str:
    """Writes a line down."""
    return f"noted {text}"
'''
PLAN = "Plan:\n1. Note terminal.\n2. Finish.\n"


def reply(body: dict[str, Any]) -> Any:
    match goal_of(body), turn_of(body):
        case "note it", 0:
            return slow(Reply(text=PLAN, calls=(("note", ARGUMENTS),)), 1)
        case "ask", 0:
            return calls(("ask_human", {"question": "Which shop?", "options": ["near", "far"]}))
        case "take long", _:
            return slow(says("word \x1b[31m" * 400), 30)
        case _:
            return says("All is \x1b[31mdone.")


@pytest.fixture(scope="module")
def project(make_project: MakeProject) -> Iterator[Project]:
    with ScriptedModel(reply) as model:
        project = make_project(**use_model(model))
        project.write_all({"perdure.toml": TOOL, "notes.py": CODE})
        project.write("agents/clerk.md", "---\ntools: [note]\n---\nYou take notes.\n")
        yield project


@pytest.mark.parametrize(("columns", "rows"), [(60, 24), (200, 50)])
def test_a_call_is_seen_whole_and_approved_by_its_number_and_by_nothing_typed_before(
    project: Project, columns: int, rows: int
) -> None:
    run = f"noting-{columns}"
    with in_foreground(
        project, "run", "--agent", "clerk", "--id", run, "note it", columns=columns, rows=rows
    ) as terminal:
        terminal.until("Plan:")
        terminal.type("1\n")  # by accident, while the model writes
        terminal.until("answer> ")
        shown = "".join("".join(line.split()) for line in terminal.screen.lines)
        assert "".join(json.dumps(ARGUMENTS["text"]).split()) in shown
        terminal.type("\n")
        terminal.until("type a number from 1 to 3")
        terminal.until("answer> ")
        terminal.type("maybe\n")
        terminal.until("takes one of: approve, approve_tool, deny")
        terminal.until("answer> ")
        assert terminal.echoes
        terminal.type("1\n")
        terminal.until("✓ note")
        terminal.until("■ completed")
        terminal.until("USD")
        assert terminal.echoes
    assert not terminal.screen.hides_cursor
    assert not terminal.has_area


def test_ctrl_c_leaves_the_terminal_as_it_was(project: Project) -> None:
    with in_foreground(project, "run", "--id", "left", "take long") as terminal:
        terminal.until("word ␛[31mword")
        terminal.until("step 0 of")
        assert not terminal.echoes
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("left the run. Follow it: perdure watch left")
        terminal.until("Waiting for running calls to finish")
        assert terminal.echoes
        assert not terminal.screen.hides_cursor
        assert not terminal.has_area
        terminal.process.send_signal(signal.SIGINT)


def test_ctrl_c_while_only_a_person_is_awaited_speaks_of_no_work(project: Project) -> None:
    with in_foreground(project, "run", "--agent", "clerk", "--id", "idle", "ask") as terminal:
        terminal.until("answer> ")
        terminal.process.send_signal(signal.SIGINT)
        terminal.until("left the run. Follow it: perdure watch idle")
        assert terminal.process.wait(PATIENCE) == 130
        while terminal.read(0):
            pass
    assert "Finishing" not in terminal.written


def test_ctrl_z_gives_the_terminal_back_and_goes_on_later(project: Project) -> None:
    with in_foreground(project, "run", "--id", "stopped", "take long") as terminal:
        terminal.until("word ␛[31mword")
        terminal.until("step 0 of")
        terminal.process.send_signal(signal.SIGTSTP)
        assert os.WIFSTOPPED(os.waitpid(terminal.process.pid, os.WUNTRACED)[1])
        while terminal.read():
            pass
        assert terminal.echoes
        assert not terminal.has_area
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until("step 0 of")
        assert not terminal.echoes


def test_ctrl_d_leaves_the_question_open_and_says_how_to_answer_later(project: Project) -> None:
    with in_foreground(project, "run", "--agent", "clerk", "--id", "open", "ask") as terminal:
        terminal.until("1 near")
        terminal.until("2 far")
        terminal.until("answer> ")
        terminal.type("\x04")
        terminal.until('answer it with: perdure answer open --question q1 "…"')
        terminal.until("waiting for human: asks: Which shop?")
        assert project.perdure("answer", "open", "the near one").code == 0
        terminal.until("■ completed")


def test_an_answer_from_another_process_ends_the_prompt(project: Project) -> None:
    with in_foreground(project, "run", "--agent", "clerk", "--id", "other", "ask", NO_COLOR="1") as terminal:
        terminal.until("answer> ")
        assert project.perdure("answer", "other", "far").code == 0
        terminal.until("■ completed")
    assert not re.search(r"\x1b\[[0-9;]*[34][0-7]m", terminal.written)


def test_a_terminal_that_can_only_print_gets_lines(project: Project) -> None:
    with in_foreground(project, "run", "--agent", "clerk", "--id", "dumb", "ask", TERM="dumb") as terminal:
        terminal.until("? the agent asks: Which shop? · near, far")
        terminal.until("answer> ")
        terminal.type("2\n")
        terminal.until("■ completed")
    assert "\x1b" not in terminal.written
