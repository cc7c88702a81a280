"""`perdure resume` and `perdure fork`, as a person uses them."""

import json
from typing import Any

import pytest

from perdure.testkit.model_server import ScriptedModel, calls, fails
from tests.e2e.projects import MakeProject, Project

TOOL = """
[tools.note]
kind = "python"
effect = "once"
target = "notes:note"
"""
CODE = '''
from pathlib import Path


def note(text: str) -> str:
    """Writes a line down."""
    with Path("notes.txt").open("a") as notes:
        notes.write(text + "\\n")
    return f"noted {text}"
'''
AGENT = "---\ntools: [note]\n---\nYou take notes.\n"


def note(text: str) -> Any:
    return calls(("note", {"text": text}))


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    it = make_project(ANTHROPIC_API_KEY="sk-none", PERDURE_MODEL="scripted")
    it.write("perdure.toml", TOOL)
    it.write("notes.py", CODE)
    it.write("agents/clerk.md", AGENT)
    return it


def test_a_failed_run_is_resumed_and_a_finished_one_forked(project: Project) -> None:
    finish = calls(("finish", {"outcome": "two notes"}))
    script = [note("one"), fails(401, then=note("two")), finish]
    with ScriptedModel(script) as model:
        project.env["ANTHROPIC_BASE_URL"] = model.base_url
        failed = project.perdure("run", "take two notes", "--agent", "clerk", "--id", "first")
        assert failed.code == 1
        assert "ModelRefused" in failed.out
        assert "perdure resume first" in failed.out
        resumed = project.perdure("resume", "first")
        assert (resumed.code, resumed.err) == (0, "")
        assert "go on from run first" in resumed.out
        assert "two notes" in resumed.out
        shown = json.loads(project.perdure("show", "first.r2", "--json").out)
        assert (shown["origin"], shown["goal"], shown["completed_steps"]) == ("first", "take two notes", [1, 2])
        again = project.perdure("resume", "first.r2")
        assert again.code == 1
        assert again.err.startswith("perdure: run first.r2 has ended completed; only failed or timed-out runs can")
    with ScriptedModel([note("one"), note("two, differently"), finish]) as model:
        project.env["ANTHROPIC_BASE_URL"] = model.base_url
        forked = project.perdure("fork", "first.r2", "--step", "1", "--say", "the second one differently", "--json")
        assert forked.code == 0
        assert json.loads(forked.out.splitlines()[-1])["status"] == "completed"
        gone = project.perdure("fork", "first.r2", "--step", "9")
        assert (gone.code, gone.out) == (1, "")
        assert gone.err == "perdure: there is no step 9 in run first.r2 to fork after; the steps are 0 to 2\n"
        nobody = project.perdure("resume", "nobody")
        assert (nobody.code, nobody.err) == (1, "perdure: there is no run nobody\n")
        last = model.requests[-1]["messages"]
    assert (project.folder / "notes.txt").read_text() == "one\ntwo\ntwo, differently\n"
    texts = [block["text"] for message in last for block in message["content"] if block["type"] == "text"]
    assert any("the second one differently" in text and "note (step 2)" in text for text in texts)


def test_a_goal_that_no_conversation_holds_goes_into_a_file_of_the_run(
    make_project: MakeProject, critique: str
) -> None:
    project = make_project()
    goal = f"{critique}\n{'more and more of it ' * 160_000}"
    done = project.perdure("run", "-", "--id", "long", "--json", typed=goal)
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["status"] == "completed"
    [file] = (project.home / "runs/long/artifacts").glob("goal-*.md")
    assert file.read_text() == goal
    shown = json.loads(project.perdure("show", "long", "--json").out)
    assert shown["goal"].startswith(critique)
    assert shown["goal"].endswith(f"is in artifacts/{file.name}: read it.")
    taken = project.perdure("run", "-", "--id", "long", "--detach", typed=f"another {goal}")
    assert (taken.code, taken.out) == (1, "")
    assert "run long already exists" in taken.err
    assert file.read_text() == goal
    assert list(file.parent.glob("goal-*.md")) == [file]
    assert json.loads(project.perdure("show", "long", "--json").out)["goal"] == shown["goal"]
    elsewhere = project.perdure("run", "-", typed=goal, TEMPORAL_ADDRESS="127.0.0.1:1")
    assert elsewhere.code == 1
    assert elsewhere.err.count("\n") == 1
