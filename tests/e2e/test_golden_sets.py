"""`perdure eval --from-runs`: past runs become cases, which `perdure eval` plays at once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.testkit.model_server import ScriptedModel, calls, says
from tests.e2e.notes import CODE, PROJECT
from tests.e2e.projects import CommandResult, Project, Served, reply_by_goal, until_asked, use_model

AGENT = "---\ntools: [note, write_file]\n---\nYou take notes.\n"
SECRET = "k3y-of-the-warehouse-71"
RESULT = {"total": 3, "of": [{"sku": "mug"}]}
SCRIPTS: dict[str, list[Any]] = {
    "note it": [
        calls(("ask_human", {"question": "Which shop?", "options": ["corner", "market"]})),
        calls(("note", {"text": "milk"})),
        calls(("write_file", {"path": "artifacts/list.md", "content": "milk"})),
        calls(("note", {"text": "bread"})),
        says("noted for the market"),
    ],
    "count them": [calls(("finish", {"outcome": "three", "result": RESULT}))],
    "hand it back": [calls(("escalate", {"reason": "no idea"}))],
    "no answer": [calls(("ask_human", {"question": "Who?"}))],
}
LEFT_OUT = {
    "unanswered": "its question q1 got no answer, and a case has one for each",
    "open": "it is open",
    "forked": "it is a subtask, a turn of a conversation, resumed or forked",
    "typed": "its start has output_schema, which a case cannot have",
}


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(reply_by_goal(SCRIPTS)) as serving:
        yield serving


@pytest.fixture(scope="module")
async def shop(served: Served, model: ScriptedModel) -> Project:
    """A project with past runs: with answers and a secret, with other ends, and some that no case can hold."""
    project = served.project
    project.env |= use_model(model) | {"WAREHOUSE_KEY": SECRET}
    project.write_all({"perdure.toml": PROJECT, "notes.py": CODE, "agents/clerk.md": AGENT})
    project.write("agents/counter.md", "---\ntools: []\noutput_schema: {type: object}\n---\nYou count.\n")
    project.write("schema.json", '{"type": "object"}')
    project.env["TEMPORAL_ADDRESS"] = served.address

    def play(*args: str, code: int = 0) -> CommandResult:
        done = project.perdure(*args)
        assert done.code == code, (args, done)
        return done

    more = ("-c", f"key=is {SECRET}", "--max-steps", "9")
    with project.worker():
        for name, goal in {"noted": f"note it with {SECRET}", "unanswered": "no answer", "open": "no answer"}.items():
            play("run", "--detach", "--id", name, "--agent", "clerk", *more, goal)
            await until_asked(served.client, name)
        play("answer", "noted", "2")
        for question in ("q2", "q3"):
            await until_asked(served.client, "noted", question)
            play("approve", "noted")
        play("cancel", "unanswered")
        play("run", "--id", "counted", "--agent", "counter", "count them")
        play("run", "--id", "escalated", "--agent", "clerk", "hand it back", code=3)
        play("run", "--id", "typed", "--agent", "clerk", "--output-schema", "schema.json", "count them")
        forked = play("fork", "escalated", "--step", "0", "--json", code=3).rows()[-1]["run_id"]
        play("watch", "noted")
        play("watch", "unanswered", code=4)
    LEFT_OUT[forked] = LEFT_OUT.pop("forked")
    return project


@pytest.fixture(scope="module")
def golden(shop: Project) -> dict[str, Any]:
    done = shop.perdure("eval", "--from-runs", "--since", "1h", "--output", "golden", "--json")
    assert (done.code, done.err) == (0, "")
    report: dict[str, Any] = json.loads(done.out)
    return report


def case_of(shop: Project, name: str, folder: str = "golden") -> dict[str, Any]:
    (case,) = yaml.safe_load((shop.folder / folder / f"{name}.yaml").read_text())
    assert isinstance(case, dict)
    return case


def test_a_run_becomes_a_case_with_its_start_answers_calls_and_end(shop: Project, golden: dict[str, Any]) -> None:
    assert case_of(shop, "noted") == {
        "name": "noted",
        "goal": "note it with [redacted WAREHOUSE_KEY]",
        "agent": "clerk",
        "context": {"key": "is [redacted WAREHOUSE_KEY]", "max_steps": 9},
        "expect": {
            "status": "completed",
            "contains": ["noted for the market"],
            "calls": ["ask_human", "note", "write_file"],
            "asks": True,
            "answer": ["2", "approve", "approve"],
        },
    }
    assert case_of(shop, "counted")["expect"] == {"status": "completed", "result": RESULT, "calls": ["finish"]}
    assert case_of(shop, "escalated")["expect"] == {"status": "escalated", "calls": ["escalate"]}


def test_the_report_names_what_was_redacted_and_why_runs_were_left_out(golden: dict[str, Any]) -> None:
    redacted = {Path(case["file"]).stem: case["redacted"] for case in golden["written"]}
    assert redacted == {
        "noted": ["goal (WAREHOUSE_KEY)", "context.key (WAREHOUSE_KEY)"],
        "counted": [],
        "escalated": [],
    }
    assert golden["left_out"] == LEFT_OUT


def test_the_cases_are_played_at_once_and_pass_until_the_agent_changes(shop: Project, golden: dict[str, Any]) -> None:
    with shop.worker():
        done = shop.perdure("eval", "golden", "--json")
        report = json.loads(done.out)
        assert (done.code, report["runs"], report["passed"]) == (0, 3, 3), report
        assert [case["name"] for case in report["cases"]] == ["counted", "escalated", "noted"]
        changed = SCRIPTS["note it"]
        SCRIPTS["note it"] = [*changed[:1], calls(("note", {"text": "milk"})), says("noted for the corner")]
        try:
            report = json.loads(shop.perdure("eval", "golden/noted.yaml", "--json").out)
        finally:
            SCRIPTS["note it"] = changed
    assert report["cases"][0]["results"][0]["why"] == [
        "it does not say 'noted for the market', but 'noted for the corner'",
        "it does not call write_file; it calls: ask_human, note",
    ]


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (("AgentName = 'counter' OR WorkflowId = 'run:noted'",), ["counted", "noted"]),
        (("", "--agent", "counter"), ["counted"]),
        (("WorkflowId != 'run:counted'", "--status", "completed"), ["noted"]),
        (("WorkflowId IN ('run:noted', 'run:counted')", "--limit", "1"), ["counted"]),
    ],
    ids=str,
)
def test_runs_are_chosen_by_a_query_or_by_filters(
    shop: Project, tmp_path: Path, filters: tuple[str, ...], names: list[str]
) -> None:
    done = shop.perdure("eval", "--from-runs", *filters, "--output", str(tmp_path / "set"))
    assert done.code == 0, done
    assert sorted(file.stem for file in (tmp_path / "set").iterdir()) == names
    assert f"written: {len(names)} case" in done.out


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (("--from-runs", "", "--output", "golden"), 1, "golden has files already, and none is replaced: "),
        (("--from-runs", "AgentNam = 'x'", "--output", "other"), 1, "the query is not valid: "),
        (("--from-runs", "", "--agent", "nobody", "--output", "other"), 1, "no run matches"),
        (("--from-runs", ""), 2, "--from-runs requires --output"),
        (("--from-runs", "", "--output", "x", "--repeat", "2"), 2, "--repeat, --concurrency and --min-pass are for"),
        (("golden", "--from-runs", "", "--output", "x"), 2, "give either FILE or --from-runs"),
        ((), 2, "give either FILE or --from-runs"),
        (("golden", "--output", "x"), 2, "--output, --since and --status require --from-runs"),
    ],
    ids=str,
)
def test_what_makes_no_set_is_one_line(
    shop: Project, golden: dict[str, Any], args: tuple[str, ...], code: int, line: str
) -> None:
    assert line in shop.perdure("eval", *args).error(code)
