"""`perdure chat` as a person at a terminal, a pipe and a program meet terminal."""

import json
import subprocess
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.devserver import embedded_server
from perdure.testkit.model_server import Reply, ScriptedModel, calls, says, slow
from tests.e2e.projects import MakeProject, Project, use_model
from tests.e2e.terminal import at_terminal
from tests.preloaded import program
from tests.waiting import PATIENCE


def last_said(body: dict[str, Any]) -> str:
    texts = [b["text"] for m in body["messages"] if m["role"] == "user" for b in m["content"] if b["type"] == "text"]
    return str(texts[-1])


def reply(body: dict[str, Any]) -> Any:
    results = [b["content"] for b in body["messages"][-1]["content"] if b["type"] == "tool_result"]
    match last_said(body), results:
        case _, [answer, *_]:
            return says(f"I heard {answer}")
        case "ask me", _:
            return calls(("ask_human", {"question": "which one?", "options": ["red", "blue"]}))
        case "take long", _:
            return slow(says("done at last " * 20), 30)  # of which the first words come soon
        case "note it", _:
            return Reply(text="noted", calls=(("update_run_journal", {"current_state": "all is noted"}),))
        case said, _:
            return says(f"you said {said}")


@pytest.fixture(scope="module")
async def project(make_project: MakeProject) -> AsyncIterator[Project]:
    """Its embedded server is held up, so that no command has to start one."""
    with ScriptedModel(reply) as model:
        project = make_project(**use_model(model))
        async with embedded_server(project.home):
            yield project


def test_a_line_of_a_pipe_that_is_no_text_costs_no_other(project: Project) -> None:
    done = subprocess.run(
        [program("cli"), "chat", "bytes"],
        cwd=project.folder,
        env=project.environment({"PYTHONIOENCODING": "utf-8:strict"}),
        input=b"hello\ncaf\xe9\nbye\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    said = done.stdout.decode()
    assert all(f"you said {each}" in said for each in ("hello", "caf\N{REPLACEMENT CHARACTER}", "bye"))


def test_a_conversation_at_the_terminal(project: Project) -> None:
    with at_terminal(project, "chat", "sea") as terminal:
        terminal.until("/help lists the commands")
        terminal.type("hello\n")
        terminal.until("you said hello")
        terminal.type("ask me\n")
        terminal.until("which one?")
        terminal.type("2\n")
        terminal.until("I heard blue")
        terminal.type("note it\n")
        terminal.until("noted")
        terminal.type("/journal\n")
        terminal.until("all is noted")
        terminal.type("take long\n")
        terminal.until("done at last")  # what is seen is cancelled, and before that it may be the turn before
        terminal.type("after it\n")
        terminal.until("queued; 1 ahead")
        terminal.type("/cancel\n")
        terminal.until("■ cancelled")
        terminal.until("you said after it")
        terminal.type("/forget\n")
        terminal.until("removed from the next turn on: after it")
        terminal.type("/nonsense\n")
        terminal.until("there is no /nonsense")
        terminal.type("/quit\n")
        terminal.until("to continue: perdure chat sea")
        assert terminal.wait() == 0
    with at_terminal(project, "chat", "sea") as terminal:
        terminal.until("> ask me")
        terminal.until("I heard blue")
        terminal.until("> take long")
        terminal.until("cancelled")
        terminal.type("and now?\n")
        terminal.until("you said and now?")


def test_what_was_asked_a_moment_ago_can_be_cancelled(project: Project) -> None:
    with at_terminal(project, "chat", "hasty") as terminal:
        terminal.until("/help")
        terminal.type("take long\n")
        terminal.type("/cancel\n")
        terminal.until("■ cancelled")
        terminal.type("/cancel\n")
        terminal.until("no turn is active")


def test_what_ran_when_the_person_left_is_shown_when_they_come_back(project: Project) -> None:
    with at_terminal(project, "chat", "away") as terminal:
        terminal.until("/help")
        terminal.type("ask me\n")
        terminal.until("which one?")
        terminal.process.kill()
    with at_terminal(project, "chat", "away") as terminal:
        terminal.until("which one?")
        terminal.type("red\n")
        terminal.until("I heard red")


def test_what_came_too_late_to_steer_is_shown_as_a_turn_of_its_own(project: Project) -> None:
    with at_terminal(project, "chat", "late") as terminal:
        terminal.until("/help")
        terminal.type("ask me\n")
        terminal.until("which one?")
        terminal.type("/steer and hurry\n")
        terminal.type("/cancel\n")
        terminal.until("■ cancelled")
        terminal.until("I heard interrupted")


def test_one_message_and_its_answer(project: Project) -> None:
    said = project.perdure("chat", "once", "-m", "hello")
    assert (said.code, said.out.strip().splitlines()[-1]) == (0, "you said hello")
    answer = project.perdure("chat", "once", "-m", "again", "--json")
    end = json.loads(answer.out)
    assert (end["conversation_id"], end["status"]) == ("once", "completed")
    assert end["event"]["payload"]["outcome"] == "you said again"


def test_a_pipe_is_answered_to_its_end(project: Project) -> None:
    said = project.perdure("chat", "pipe", typed="one\ntwo\n")
    assert said.code == 0
    assert said.out.index("you said one") < said.out.index("you said two")


def test_a_line_that_is_too_long_is_refused_and_the_conversation_goes_on(project: Project) -> None:
    """Also where it would have been an answer."""
    endless, answer = "x" * 200_001, "String should have at most 200000 characters"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [program("cli"), "chat", "endless"]
    with subprocess.Popen(command, cwd=project.folder, env=project.environment({}), **pipes) as chat:
        gives_up = threading.Timer(2 * PATIENCE, chat.kill)
        gives_up.start()
        typed, shown = chat.stdin, chat.stdout
        assert typed
        assert shown
        for line, words in (
            (endless, f"goal: {answer}"),
            ("ask me", "answer it with"),
            (endless, f"text: {answer}"),
            ("red", "I heard red"),
        ):
            typed.write(f"{line}\n")
            typed.flush()
            assert any(words in said for said in shown), words
        typed.close()
        assert chat.wait() == 0
        gives_up.cancel()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--json",), "--json needs a --message"),
        (("x" * 300,), "the name of a conversation must have 1 to 200 characters"),
        (("",), "the name of a conversation must have 1 to 200 characters"),
        (("-m", " "), "the request is empty"),
        (("--agent", "nobody", "-m", "x"), "there is no agent 'nobody'"),
    ],
)
def test_wrong_usage_is_one_line(project: Project, args: tuple[str, ...], complaint: str) -> None:
    done = project.perdure("chat", *args)
    assert done.code != 0
    assert complaint in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_message_from_another_process_is_shown_in_the_conversation(project: Project) -> None:
    with at_terminal(project, "chat", "shared") as terminal:
        terminal.until("/help")
        assert project.perdure("chat", "shared", "-m", "from elsewhere").code == 0
        terminal.until("> from elsewhere")
        terminal.until("you said from elsewhere")
