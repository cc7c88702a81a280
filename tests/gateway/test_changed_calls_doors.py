"""A call that one person has changed: every door refuses what is not about the call as it is now."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest

from perdure.client.connection import register_search_attributes
from perdure.testkit.model_server import ScriptedModel, calls
from tests.browser import needs_browser
from tests.e2e.conftest import make_project
from tests.e2e.projects import MakeProject, reply_by_goal, serve, use_model
from tests.e2e.test_mcp_server import call_and_fail, connect
from tests.gateway.conftest import PLAIN_SECRET, Gateway, Gateways, make_token
from tests.gateway.paging import Page, card_of, driver
from tests.gateway.test_runs import wait_for_end
from tests.gateway.test_slack_buttons import press

__all__ = ["driver", "make_project"]  # fixtures

PROJECT = """
[people]
finance = ["ann", "eva"]

[tools.pay]
kind = "python"
effect = "once"
target = "bank:pay"

[gateway.webhooks.slack]
scheme = "slack"
secret_env = "HOOK_SLACK"
people = { U1 = "eva" }
"""
CODE = '''
def pay(cents: int) -> str:
    """Pays."""
    open("paid.txt", "a").write(f"{cents}\\n")
    return "paid"
'''
POLICY = '[[rule]]\ntools = ["pay"]\nthen = "ask"\napprovers = ["finance"]\nquorum = 2\n'
AGENT = "---\ntools: [pay]\n---\nYou pay.\n"
SCRIPT = {"pay": [calls(("pay", {"cents": 100})), calls(("finish", {"outcome": "done"}))]}
HAS_CHANGED = "a person has changed its arguments"
Json = dict[str, Any]


@pytest.fixture(scope="module")
async def bank(make_project: MakeProject) -> AsyncIterator[Gateway]:
    """A gateway for Eva, whose project asks two people of finance before it pays."""
    with ScriptedModel(reply_by_goal(SCRIPT)) as model:
        project = make_project(**use_model(model), HOOK_SLACK=PLAIN_SECRET)
        files = {"perdure.toml": PROJECT, "bank.py": CODE, "policy.toml": POLICY, "agents/default.md": AGENT}
        project.write_all(files)
        async with serve(project) as served:
            await register_search_attributes(served.client)
            with project.worker(TEMPORAL_ADDRESS=served.address):
                token = await asyncio.to_thread(make_token, project, "eva", "runs:start", "runs:read", "human:answer")
                with Gateways(project, served.client, served.address, token).open() as gateway:
                    yield gateway


async def ask(bank: Gateway) -> tuple[str, Json]:
    run_id = await bank.waiting("pay")
    state: Json = (await bank.get(f"/v1/runs/{run_id}")).json()["state"]
    return run_id, state["question"]


async def change(bank: Gateway, run_id: str, cents: int) -> Json:
    """Ann changes the call. Returns the question about it."""
    arguments = json.dumps({"cents": cents})
    done = await asyncio.to_thread(run_cli, bank, "approve", run_id, "--by", "ann", "--arguments", arguments)
    assert (done[0], done[1]) == (0, "accepted\n"), done
    question: Json = (await bank.get(f"/v1/runs/{run_id}")).json()["state"]["question"]
    assert (question["revision"], question["terms"][0]["approved_by"]) == (1, ["ann"])
    return question


def run_cli(bank: Gateway, *args: str) -> tuple[int, str, str]:
    done = bank.project.perdure(*args, TEMPORAL_ADDRESS=bank.address)
    return done.code, done.out, done.err


def paid(bank: Gateway) -> list[str]:
    ledger = bank.project.folder / "paid.txt"
    return ledger.read_text(encoding="utf-8").split() if ledger.exists() else []


def interaction(run_id: str, question: Json, text: str) -> bytes:
    """The press of "approve" under a message with this text."""
    value = {"run_id": run_id, "question_id": question["id"], "call": question["call"], "option": 0}
    payload = {
        "type": "block_actions",
        "user": {"id": "U1"},
        "message": {"blocks": [{"type": "section", "text": {"type": "plain_text", "text": text}}]},
        "actions": [{"action_id": "perdure:answer:0", "type": "button", "value": json.dumps(value)}],
    }
    return urlencode({"payload": json.dumps(payload)}).encode()


async def test_no_door_takes_an_answer_to_the_call_as_it_was(bank: Gateway) -> None:
    run_id, before = await ask(bank)
    after = await change(bank, run_id, 900)
    stale: tuple[Json, ...] = ({}, {"call": before["call"]}, {"question_id": "q1"})
    for named in stale:
        answer = await bank.post(f"/v1/runs/{run_id}/answer", {"decision": "approve", **named})
        assert (answer.status_code, HAS_CHANGED in answer.json()["detail"]) == (409, True), answer.text
    several = await bank.post(f"/v1/runs/{run_id}/answers", {"answers": [{"question_id": "q1", "decision": "approve"}]})
    assert HAS_CHANGED in several.json()["results"][0]["reason"]
    by = ("--by", "eva")
    for command in (
        ("approve", run_id, *by),
        ("approve", run_id, *by, "--question", "q1"),
        ("approve", run_id, *by, "--call", str(before["call"])),
        ("approve", run_id, *by, "--arguments", '{"cents": 5}'),
        ("answer", run_id, *by, "--decision", "approve"),
        ("deny", run_id, *by),
    ):
        code, out, err = await asyncio.to_thread(run_cli, bank, *command)
        assert (code, out, HAS_CHANGED in err) == (1, "", True), (command, err)
    code, out, _ = await asyncio.to_thread(run_cli, bank, "approve", run_id, *by, "--all")
    assert (code, HAS_CHANGED in out) == (1, True)
    pressed = (await press(bank, interaction(run_id, before, before["text"]))).json()
    assert (pressed["accepted"], HAS_CHANGED in pressed["why"]) == (False, True)
    async with connect(bank.project, "--may-approve", TEMPORAL_ADDRESS=bank.address) as client:
        named = {"run_id": run_id, "question_id": "q1", "decision": "approve"}
        assert HAS_CHANGED in await call_and_fail(client, "answer_question", **named)
        assert HAS_CHANGED in await call_and_fail(client, "answer_question", **named, call=before["call"])
    assert paid(bank) == []
    pressed = (await press(bank, interaction(run_id, after, "as Slack shows it"))).json()
    assert pressed == {"accepted": True}
    await wait_for_end(bank, run_id)
    assert paid(bank) == ["900"]


async def test_the_record_has_what_each_door_showed_and_nothing_where_a_door_showed_nothing(bank: Gateway) -> None:
    run_id, before = await ask(bank)
    after = await change(bank, run_id, 901)
    pressed = (await press(bank, interaction(run_id, after, "as Slack shows it"))).json()
    assert pressed == {"accepted": True}
    await wait_for_end(bank, run_id)
    _, out, _ = await asyncio.to_thread(run_cli, bank, "trace", run_id, "--export", "-")
    [question] = json.loads(out)["questions"]
    assert [answer["shown"] for answer in question["answers"]] == [before["text"], "as Slack shows it"]

    run_id, before = await ask(bank)
    named = {"question_id": "q1", "call": before["call"], "decision": "deny"}
    assert (await bank.post(f"/v1/runs/{run_id}/answer", named)).status_code == 200
    await wait_for_end(bank, run_id)
    _, out, _ = await asyncio.to_thread(run_cli, bank, "trace", run_id, "--export", "-")
    assert json.loads(out)["questions"][0]["answers"][0]["shown"] is None


@needs_browser
async def test_the_page_refuses_the_old_card_and_the_new_one_is_about_the_changed_call(
    bank: Gateway, driver: Any
) -> None:
    page = Page(driver, bank)
    run_id, before = await ask(bank)
    other, _ = await ask(bank)  # so that calls can be chosen
    card, chosen = card_of(run_id), f"choose pay of {run_id}"
    page.open()
    page.press("exactly as the run asks", card)
    page.shows(before["call"], card)
    page.press(chosen)
    page.show(is_shown=False)  # a hidden page does not look
    after = await change(bank, run_id, 902)
    page.press("approve", card)
    page.shows(HAS_CHANGED, f"{card} [role=alert]")
    page.show(is_shown=True)
    page.shows("902", card)
    assert not page.wait_for(chosen).is_selected()
    page.shows(after["call"], card)  # what was open stays open
    page.press("approve", card)
    await wait_for_end(bank, run_id)
    assert paid(bank)[-1] == "902"
    page.open_run(run_id, "talk")
    page.shows("ann: approve, cents: 100 → 902", ".talk")
    page.shows("eva: approve", ".talk")
    traced = (await asyncio.to_thread(run_cli, bank, "trace", run_id))[1]
    assert "← cli, as ann  approve, cents: 100 → 902" in traced
    _, out, _ = await asyncio.to_thread(run_cli, bank, "trace", run_id, "--export", "-")
    [question] = json.loads(out)["questions"]
    assert [answer["shown"] for answer in question["answers"]] == [before["text"], after["text"]]
    await bank.post(f"/v1/runs/{other}/cancel", {})
