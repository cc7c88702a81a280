"""Budgets on the page: what is used of them, and the question whether to raise one, for all runs that wait for it."""

from collections.abc import AsyncIterator
from functools import partial

import pytest

from tests.browser import needs_browser
from tests.e2e.projects import MakeProject
from tests.gateway.conftest import AGENT, Gateway, replies, serve_gateways
from tests.gateway.paging import Page, driver, page
from tests.waiting import until

__all__ = ["driver", "page"]  # fixtures

BUDGETS = """
[prices.scripted]
input = 1
output = 5
cache_read = 0.1
cache_write = 1.25

[model]
default = "scripted"

[[budget]]
name = "starts"
runs = 2
every = "month"
when_used_up = "ask"

[[budget]]
name = "customers"
per = "key"
tokens = 100000
every = "month"
"""


@pytest.fixture(scope="module")
async def gateway(make_project: MakeProject) -> AsyncIterator[Gateway]:
    files = {"perdure.toml": BUDGETS, "agents/default.md": AGENT.replace("tools: [charge, lookup]\n", "")}
    async with serve_gateways(make_project, replies, files) as opened:
        with opened.open() as gateway:
            yield gateway


async def start(gateway: Gateway, goal: str) -> str:
    begun = await gateway.post("/v1/runs", {"payload": {"goal": goal, "budget_key": "anna"}})
    return str(begun.json()["run_id"])


async def has_ended(gateway: Gateway, run_id: str) -> bool:
    return (await gateway.client.get_workflow_handle(f"run:{run_id}").describe()).close_time is not None


@needs_browser
async def test_a_person_raises_a_budget_for_all_runs_that_wait_for_it(gateway: Gateway, page: Page) -> None:
    for goal in ("one", "two"):
        await until(partial(has_ended, gateway, await start(gateway, f"say: {goal}")))
    waiting = [await start(gateway, f"say: {goal}") for goal in ("three", "four")]
    page.open("now")
    page.shows("2 of 2 runs used up", "td")
    page.shows("customers of anna", "td")
    page.shows("Spent today, in UTC: default $0.0028")
    card = 'article[aria-label*="question:budget-starts-"]'
    page.shows("2 runs asked for it", card)
    page.drops("starts", "section[aria-labelledby=broken-title]")
    page.write("remark", "for the launch", card)
    page.press("raise", card)
    page.drops("The project asks")
    for run_id in waiting:
        await until(partial(has_ended, gateway, run_id))
    page.shows("4 of 4 runs", "td")
