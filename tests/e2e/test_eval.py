"""`perdure eval`: real runs of a table of goals, with a model that is a script."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from perdure.client.errors import RunNotFoundError
from perdure.client.run_list import find_run, iterate_runs
from perdure.features.proof import evaluate
from perdure.features.proof.contract import Case
from perdure.session import Session
from perdure.settings import load_settings
from perdure.testkit.model_server import ScriptedAnswer, ScriptedModel, calls, fails, says, slow
from tests.e2e.notes import CODE, PROJECT
from tests.e2e.projects import Project, Served, goal_of, reply_by_goal, use_model
from tests.waiting import until

AGENT = "---\ntools: [note, write_file]\n---\nYou take notes.\n"
WRITE = calls(("write_file", {"path": "artifacts/list.md", "content": "milk"}))
NOTE = calls(("note", {"text": "milk"}))
ASK = calls(("ask_human", {"question": "Which shop?", "options": ["corner", "market"]}))
SCRIPTS: dict[str, list[Any]] = {
    "write a list": [WRITE, calls(("finish", {"outcome": "written", "artifacts": ["artifacts/list.md"]}))],
    "which shop": [ASK, says("to the market")],
    "note it": [NOTE, says("noted")],
    "note both": [calls(("note", {"text": "milk"}), ("note", {"text": "bread"})), says("noted")],
    "break": [fails(401, message="no such key")],
    "count them": [calls(("finish", {"outcome": "three", "result": {"total": 3, "of": [{"sku": "mug"}]}}))],
    "take your time": [slow(says("at last"), 120)],
}
CASES = """
- name: writes
  goal: write a list
  expect: {contains: written, artifact: "artifacts/*.md", calls: write_file, never_calls: note, max_cost_usd: 1}
- name: asks
  goal: which shop
  expect: {asks: shop, answer: "2", contains: market}
- name: asks only
  goal: which shop
  expect: {asks: true}
- name: surprises
  goal: which shop
- name: is let
  goal: note it
  expect: {asks: note, answer: approve, calls: note, contains: noted}
- name: is not let
  goal: note it
  expect: {answer: deny no, never_calls: note}
- name: answers nonsense
  goal: note it
  expect: {answer: perhaps}
- name: breaks
  goal: break
- name: sometimes
  goal: toss a coin
  expect: {contains: heads}
"""
WHY = {
    "surprises": "it asks a person: Which shop?",
    "is not let": "it calls note",
    "answers nonsense": (
        "it asks a person, and no answer settles it: the answer 'perhaps' was rejected: question q1 takes one of"
    ),
    "breaks": "it is failed, not completed: ",
}


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    coin, script = cycle(["heads", "tails"]), reply_by_goal(SCRIPTS)

    def reply(body: dict[str, Any]) -> ScriptedAnswer:
        return says(next(coin)) if goal_of(body) == "toss a coin" else script(body)

    with ScriptedModel(reply) as serving:
        yield serving


@pytest.fixture(scope="module")
def table(served: Served, model: ScriptedModel) -> Project:
    """The project, whose commands bring a worker with the scripted model."""
    project = served.project
    project.env |= use_model(model)
    project.write_all({"perdure.toml": PROJECT, "notes.py": CODE, "agents/clerk.md": AGENT, "cases.yaml": CASES})
    return project


@pytest.fixture(scope="module")
def report(table: Project) -> dict[str, Any]:
    done = table.perdure("eval", "cases.yaml", "--agent", "clerk", "--repeat", "2", "--json")
    assert (done.code, done.err) == (1, "")
    rows: dict[str, Any] = json.loads(done.out)
    return rows


def test_each_case_passes_or_says_why_with_the_run_that_shows_it(report: dict[str, Any]) -> None:
    cases = {case["name"]: case for case in report["cases"]}
    passed = {name: case["passed"] for name, case in cases.items()}
    assert passed == {
        "writes": 2,
        "asks": 2,
        "asks only": 2,
        "surprises": 0,
        "is let": 2,
        "is not let": 0,
        "answers nonsense": 0,
        "breaks": 0,
        "sometimes": 1,
    }
    for name, why in WHY.items():
        for result in cases[name]["results"]:
            (shown,) = result["why"]
            assert shown.startswith(why)
            assert result["run_id"].startswith("eval-")
    assert (report["runs"], report["passed"], report["rate"]) == (18, 9, 0.5)


def test_steps_tokens_cost_and_time_are_reported(report: dict[str, Any]) -> None:
    (writes,) = [case for case in report["cases"] if case["name"] == "writes"]
    assert (writes["steps"], writes["rate"]) == (1, 1.0)
    assert writes["tokens"] > 100
    assert 0 < writes["cost_usd"] < 1
    assert writes["seconds"] > 0
    assert writes["results"][0]["calls"] == ["write_file", "finish"]


async def test_an_unexpected_question_cancels_its_run(report: dict[str, Any], served: Served) -> None:
    (case,) = [case for case in report["cases"] if case["name"] == "surprises"]
    for result in case["results"]:
        assert (await find_run(served.client, result["run_id"])).status == "cancelled"
    await until(partial(_none_is_open, served))


async def _none_is_open(served: Served) -> bool:
    """The server lists the end of a run some time after it."""
    return not [each async for each in iterate_runs(served.client, limit=None) if each.is_open]


def test_enough_that_pass_are_enough(table: Project) -> None:
    table.write("two.jsonl", '{"goal": "write a list"}\n{"goal": "break", "name": "[b]breaks"}\n')
    enough = table.perdure("eval", "two.jsonl", "--agent", "clerk", "--min-pass", "0.5")
    assert (enough.code, enough.err) == (0, "")
    shown = " ".join(enough.out.split())
    assert "✓ write a list eval-" in shown
    assert "✗ [b]breaks eval-" in shown
    assert "1 write a list 1 of 1" in shown
    assert "passed: 50% of 2 runs, 50% needed" in shown


async def test_ctrl_c_cancels_what_it_started(table: Project, served: Served) -> None:
    table.write("slow.yaml", "- goal: take your time\n- goal: take your time\n- goal: take your time\n")
    at_work: set[str] = set()

    async def two_at_work() -> bool:
        listed = [each.run_id async for each in iterate_runs(served.client) if each.status == "running"]
        at_work.update([each for each in listed if (await find_run(served.client, each)).is_open])
        return len(at_work) == 2

    with table.running("eval", "slow.yaml", "--concurrency", "2") as process:
        await until(two_at_work)
        done = process.send_signal(signal.SIGINT)
    assert done.code == 130
    assert done.err == "cancelling 2 runs …\n"
    assert [(await find_run(served.client, run_id)).status for run_id in at_work] == ["cancelled"] * 2
    [token] = {run_id.split("-")[1] for run_id in at_work}
    with pytest.raises(RunNotFoundError):
        await find_run(served.client, f"eval-{token}-3-1")


async def test_the_runs_that_do_not_end_after_a_stop_are_named(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "CANCEL_SECONDS", 0.1)
    settings = load_settings({"PERDURE_TASK_QUEUE": "nobody-works-here"}, Path("/"))
    evaluation = evaluate.Evaluation(Session(served.client, settings, None), None, asyncio.Semaphore(1))
    playing = asyncio.create_task(evaluation.run_cases([Case(goal="wait")], 1))
    run_id = f"eval-{evaluation.token}-1-1"

    async def has_started() -> bool:
        with suppress(RunNotFoundError):
            return (await find_run(served.client, run_id)).is_open
        return False

    await until(has_started)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await served.client.get_workflow_handle(f"run:{run_id}").terminate("its test is over")
    assert capsys.readouterr().err.splitlines() == [
        "cancelling 1 run …",
        f"not ended within 0.1 s: {run_id}; perdure show RUN says why",
    ]


@pytest.mark.parametrize(
    ("args", "code", "says_"),
    [
        (("nothing.yaml",), 1, "nothing.yaml: No such file or directory"),
        (("cases.yaml", "--agent", "nobody"), 1, "there is no agent 'nobody'"),
        (("misspelt.yaml",), 1, "case 'pay': expect.never_calls: there is no tool 'refnud'; the tools are: "),
        (("cases.yaml", "--min-pass", "90"), 2, "Invalid value for '--min-pass'"),
        (("cases.yaml", "--repeat", "0"), 2, "Invalid value for '--repeat'"),
    ],
    ids=str,
)
def test_what_cannot_be_evaluated_is_one_line(table: Project, args: tuple[str, ...], code: int, says_: str) -> None:
    table.write("misspelt.yaml", "- goal: pay\n  expect: {calls: [write_file, finish], never_calls: refnud}\n")
    assert table.perdure("eval", *args).error(code).startswith(f"perdure: {says_}")


def test_values_of_a_typed_result_are_compared_by_their_paths(table: Project) -> None:
    table.write("agents/counter.md", "---\ntools: []\noutput_schema: {type: object}\n---\nYou count.\n")
    table.write(
        "counted.yaml",
        "- goal: count them\n  name: right\n  expect: {result: {total: 3, of.0.sku: mug}}\n"
        "- goal: count them\n  name: wrong\n  expect: {result: {total: 4}}\n",
    )
    done = table.perdure("eval", "counted.yaml", "--agent", "counter", "--json")
    right, wrong = json.loads(done.out)["cases"]
    assert (done.code, right["passed"], wrong["passed"]) == (1, 1, 0)
    assert wrong["results"][0]["why"] == ["its result has total = 3, not 4"]


def test_questions_that_are_asked_together_are_answered_in_their_order(table: Project) -> None:
    table.write("both.yaml", "- goal: note both\n  expect: {asks: milk, answer: [approve, deny no], contains: noted}\n")
    (case,) = json.loads(table.perdure("eval", "both.yaml", "--agent", "clerk", "--json").out)["cases"]
    (result,) = case["results"]
    assert (result["passed"], result["why"]) == (True, [])
    first, second = result["asked"]
    assert ("milk" in first, "bread" in second) == (True, True)
