"""`perdure replay` with a model or an agent: played beside the user's own server, which it only reads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.testkit.model_server import ScriptedAnswer, ScriptedModel, calls, fails, says
from tests.e2e.notes import CODE, PROJECT
from tests.e2e.projects import Project, Served, use_model
from tests.waiting import until

NOTE, OTHER = calls(("note", {"text": "milk"})), calls(("note", {"text": "bread"}))
AGENT = "---\ntools: [note]\n{head}---\n{prompt}\n"
CASES = """
- goal: note milk
  expect: {contains: noted, calls: note}
- goal: another
"""
REPLAY = ("replay", "noted")


def reply(body: dict[str, Any]) -> ScriptedAnswer:
    turn: int = sum(message["role"] == "assistant" for message in body["messages"])
    match body["model"]:
        case "unheard-of":
            return fails(404, type="not_found_error", message="no such model")
        case "wayward":
            return says("bread it is") if turn else OTHER
        case _ if "Be curt." in str(body["system"]):
            return says("ok") if turn else NOTE
        case _:
            return says("noted") if turn else NOTE


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(reply) as serving:
        yield serving


@pytest.fixture(scope="module")
async def project(served: Served, model: ScriptedModel) -> Project:
    """A project with a run that a person approved a call of, and an open one."""
    project = served.project
    project.env |= use_model(model)
    files = {"agents/clerk.md": AGENT.format(head="", prompt="You take notes."), "cases.yaml": CASES}
    files |= {"drafts/clerk.md": AGENT.format(head="", prompt="Be curt."), "drafts/broken.md": "no front matter\n"}
    files |= {"drafts/other.md": AGENT.format(head="peers: [nobody]\n", prompt="?")}
    project.write_all({"perdure.toml": PROJECT, "notes.py": CODE, "policy-2.toml": "", **files})
    with project.worker(TEMPORAL_ADDRESS=served.address):
        for run in ("noted", "open"):
            started = project.perdure("run", "--id", run, "--agent", "clerk", "--detach", "note milk")
            assert started.code == 0, started
        await until(lambda: project.perdure("approve", "noted").code == 0)
        assert project.perdure("watch", "noted").code == 0
    return project


def figures(out: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(out)
    return {column["column"]: column for column in report.pop("columns")} | {"report": report}


def test_a_faithful_candidate_passes_with_cost_and_verdicts_and_leaves_nothing(
    project: Project, tmp_path: Path
) -> None:
    done = project.perdure(*REPLAY, "--model", "cheap", "--case", "cases.yaml", "--json", TMPDIR=str(tmp_path))
    assert (done.code, done.err) == (0, "")
    columns = figures(done.out)
    assert columns["report"] == {
        "run_id": "noted",
        "passed": True,
        "differences": [],
        "changed": [],
        "not_called": [],
    }
    assert [columns[name]["failed_checks"] for name in ("observed", "as it was", "candidate")] == [[], [], []]
    assert columns["observed"]["cost_usd"] == columns["as it was"]["cost_usd"] > 0
    assert (columns["candidate"]["models"], columns["candidate"]["cost_usd"]) == (["cheap"], None)
    assert not any(tmp_path.iterdir())


def test_an_agents_file_is_tried_in_place_of_the_runs_agent(project: Project) -> None:
    done = project.perdure(*REPLAY, "--agent", "drafts/clerk.md", "--case", "cases.yaml")
    assert done.code == 1
    assert "candidate: it does not say 'noted', but 'ok'" in done.out
    assert "not passed" in done.out
    assert "the agent changed" not in done.out


def test_a_candidate_that_leaves_the_record_stops_or_goes_on(project: Project) -> None:
    stopped = project.perdure(*REPLAY, "--model", "wayward")
    assert (stopped.code, stopped.err) == (1, "")
    assert "left the record" in stopped.out
    assert "not in the record: step 1: note bread" in stopped.out
    gone_on = project.perdure(*REPLAY, "--model", "wayward", "--beyond", "dry")
    assert gone_on.code == 0
    assert "not called any more: step 1: note milk" in gone_on.out
    assert "candidate: bread it is" in gone_on.out


def test_several_runs_are_tried_and_those_that_cannot_be_are_named(project: Project) -> None:
    done = project.perdure("replay", "--since", "1d", "--agent", "clerk", "--model", "cheap", "--json")
    assert done.code == 0
    assert [row["run_id"] for row in done.rows()] == ["noted"]
    assert done.err == "perdure: run open cannot be replayed: it is open: wait for its end\n"


def test_a_model_that_the_provider_does_not_know_fails_the_candidate(project: Project) -> None:
    done = project.perdure(*REPLAY, "--model", "unheard-of")
    assert (done.code, done.err) == (1, "")
    assert "no such model" in done.out


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("replay", "nowhere", "--model", "cheap"), 1, "there is no run nowhere"),
        (("replay", "open", "--model", "cheap"), 1, "run open cannot be replayed: it is open: wait for its end"),
        ((*REPLAY, "--agent", "drafts/none.md"), 1, "drafts/none.md"),
        ((*REPLAY, "--agent", "drafts/broken.md"), 1, "expected front matter"),
        ((*REPLAY, "--agent", "drafts/other.md"), 1, "there is no agent 'nobody'"),
        ((*REPLAY, "--model", "cheap", "--case", "none.yaml"), 1, "none.yaml"),
        (REPLAY, 2, "give what to try"),
        ((*REPLAY, "--model", "cheap", "--policy", "policy-2.toml"), 2, "give what to try"),
        ((*REPLAY, "--model", "cheap", "--agent", "clerk"), 2, "--agent clerk selects runs, with --since"),
        ((*REPLAY, "--agent", "a.md", "--agent", "b.md"), 2, "give one --agent FILE.md"),
        ((*REPLAY, "--since", "1d", "--model", "cheap"), 2, "give either RUN or --since"),
    ],
)
def test_bad_input_is_one_line(project: Project, command: tuple[str, ...], code: int, words: str) -> None:
    assert words in project.perdure(*command).error(code)
