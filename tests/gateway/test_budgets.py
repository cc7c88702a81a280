"""Budgets as people meet them: in perdure.toml, at the command line and the gateway, and in the doctor's report."""

import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from perdure.features.budgets.settings import BudgetSettings
from perdure.settings import ProjectError
from perdure.settings.file import read_file
from tests.e2e.projects import MakeProject
from tests.gateway.conftest import AGENT, Gateways, replies, serve_gateways
from tests.waiting import until

BUDGETS = """
[people]
finance = ["ines"]

[prices.scripted]
input = 1
output = 5
cache_read = 0.1
cache_write = 1.25

[model]
default = "scripted"
max_tokens = 1024

[[budget]]
name = "all"
usd = 1.0
every = "day"

[[budget]]
name = "starts"
runs = 1
when_used_up = "wait"
raise_by = ["finance"]

[[budget]]
name = "customers"
per = "key"
tokens = 100000
every = "hour"
"""


@pytest.fixture(scope="module")
async def budgeted(make_project: MakeProject) -> AsyncIterator[Gateways]:
    files = {"perdure.toml": BUDGETS, "agents/default.md": AGENT.replace("tools: [charge, lookup]\n", "")}
    async with serve_gateways(make_project, replies, files) as opened:
        yield opened


async def test_a_budget_is_listed_raised_and_reset_and_runs_that_wait_go_on(budgeted: Gateways) -> None:
    perdure = partial(budgeted.project.perdure, TEMPORAL_ADDRESS=budgeted.address)
    with budgeted.open() as gateway:
        rows = (await asyncio.to_thread(perdure, "budget", "list", "--json")).rows()
        assert [(row["name"], row["limit"], row["used"]) for row in rows] == [
            ("all", 1_000_000, 0),
            ("customers", 100_000, 0),
            ("starts", 1, 0),
        ]
        body = {"payload": {"goal": "say: hello", "budget_key": "anna"}}
        first = (await gateway.post("/v1/runs", body)).json()["run_id"]
        await until(partial(is_over, budgeted, first))
        second = (await gateway.post("/v1/runs", body)).json()["run_id"]

        async def is_used_up() -> bool:
            async with gateway.http as http:
                listed = (await http.get("/v1/budgets")).json()["budgets"]
            return any(row["name"] == "starts" and row["is_used_up"] for row in listed)

        await until(is_used_up)
        doctor = await asyncio.to_thread(perdure, "doctor")
        assert "used up: starts: 1 of 1 runs used" in doctor.out
        refused = await gateway.post("/v1/budgets/starts/raise", {"runs": 5})
        assert (refused.status_code, refused.json()["detail"]) == (409, "budget starts is raised and reset by finance")
        line = await asyncio.to_thread(perdure, "budget", "raise", "starts", "--runs", "5", "--by", "carl")
        assert line.error() == "perdure: budget starts is raised and reset by finance\n"
        raised = await asyncio.to_thread(perdure, "budget", "raise", "starts", "--runs", "5", "--by", "ines", "--json")
        assert raised.rows()[0]["limit"] == 6
        await until(partial(is_over, budgeted, second))
        more = await gateway.post("/v1/budgets/customers/raise", {"tokens": 5, "value": "anna"})
        assert [row["limit"] for row in more.json()["budgets"]] == [100_005]
        whose = await gateway.post("/v1/budgets/customers/reset", {})
        assert whose.json()["detail"] == "budget customers is one for each key: say whose"
        unknown = await gateway.post("/v1/budgets/custmers/raise", {"tokens": 5})
        assert unknown.status_code == 409
        assert "there is no budget 'custmers'" in unknown.json()["detail"]
        reset = await asyncio.to_thread(perdure, "budget", "reset", "all", "--json")
        assert reset.rows()[0]["used"] == 0
        table = await asyncio.to_thread(perdure, "budget", "list", COLUMNS="200")
        assert "anna" in table.out


async def is_over(at: Gateways, run_id: str) -> bool:
    return (await at.client.get_workflow_handle(f"run:{run_id}").describe()).close_time is not None


async def test_a_worker_that_stops_gives_back_what_it_held_and_leaves_no_journal(budgeted: Gateways) -> None:
    project = budgeted.project
    folder = project.home / "budgets"
    with project.running("worker", TEMPORAL_ADDRESS=budgeted.address, PERDURE_TASK_QUEUE="apart") as worker:
        worker.until("worker ready")
        perdure = partial(project.perdure, TEMPORAL_ADDRESS=budgeted.address, PERDURE_TASK_QUEUE="apart")
        done = await asyncio.to_thread(perdure, "run", "say: hello", "--detach", "--id", "apart-1")
        assert done.code == 0, done.err
        await until(partial(is_over, budgeted, "apart-1"))
        assert len(list(folder.glob("apart/*.jsonl"))) == 1
        worker.send_signal(signal.SIGTERM)
    assert list(folder.glob("apart/*.jsonl")) == []
    with project.running("worker", TEMPORAL_ADDRESS=budgeted.address, PERDURE_TASK_QUEUE="apart") as worker:
        worker.until("worker ready")
        [row] = [
            row for row in (await asyncio.to_thread(perdure, "budget", "list", "--json")).rows() if row["name"] == "all"
        ]
    assert row["used"] > 0
    assert row["leased"] == 0


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ('name = "a"', "sets no limit: give usd, tokens, runs or steps"),
        ('name = "a"\nusd = -1', "usd: "),
        ('name = "agents"\nusd = 1', "the name 'agents' is taken by Perdure's own count"),
        ('name = "a"\nusd = 1\nraise_by = ["boss"]', "budget a: raise_by: [people] has no group 'boss'"),
        ('name = "a"\nusd = 1\nper = "month"', "per: "),
        ('name = "a"\nusd = 1\n[[budget]]\nname = "a"\nruns = 1', "two budgets are named a"),
    ],
)
def test_a_budget_that_cannot_be_meant_is_refused_in_one_line(tmp_path: Path, table: str, reason: str) -> None:
    path = tmp_path / "perdure.toml"
    path.write_text(f"[[budget]]\n{table}\n", encoding="utf-8")
    [fault] = read_file(path).faults
    assert isinstance(fault, ProjectError)
    assert reason in str(fault)
    assert "\n" not in str(fault)


def test_the_terms_of_a_budget() -> None:
    both = BudgetSettings.model_validate({"name": "a", "usd": 1.5, "runs": 3, "every": "day", "per": "owner"})
    assert {measure: (terms.limit, terms.has_credit, terms.waits) for measure, terms in both.limits.items()} == {
        "usd": (1_500_000, True, False),
        "runs": (3, True, False),
    }
    forever = BudgetSettings.model_validate({"name": "a", "usd": 1, "per": "owner", "when_used_up": "wait"})
    assert [(terms.has_credit, terms.waits) for terms in forever.limits.values()] == [(False, True)]


def test_an_agent_whose_calls_go_in_batches_is_refused_as_the_worker_starts(make_project: MakeProject) -> None:
    project = make_project(ANTHROPIC_BASE_URL="http://127.0.0.1:1")
    batched = '[model]\npace = "batch"\n[[budget]]\nname = "all"\ntokens = 1\n'
    project.write_all({"perdure.toml": batched, "agents/default.md": AGENT.replace("tools: [charge, lookup]\n", "")})
    failed = project.perdure("run", "hello")
    assert failed.code == 1
    assert "budget all does not count batches, and the pace of agent default is batch: give it pace live" in failed.err


def test_a_model_without_a_price_is_refused_as_the_worker_starts(make_project: MakeProject) -> None:
    project = make_project(ANTHROPIC_BASE_URL="http://127.0.0.1:1")
    unpriced = '[model]\ndefault = "mystery"\n[[budget]]\nname = "all"\nusd = 1\n'
    project.write_all({"perdure.toml": unpriced, "agents/default.md": AGENT.replace("tools: [charge, lookup]\n", "")})
    failed = project.perdure("run", "hello")
    assert failed.code == 1
    assert 'budget all is in USD, and agent default uses mystery: set [prices."mystery"]' in failed.err
