"""People and runs at the command line: what waits, how it is answered, and what a person who takes over is told."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from temporalio.client import Client

from contracts.run.state import RunStatus
from devserver import embedded_server
from perdure.client.errors import RunNotFoundError
from perdure.client.runs import query_run_state, wait_for_run_end
from perdure.converter import data_converter
from perdure.testkit.model_server import ScriptedModel, calls, fails

TOOL = """
[tools.note]
kind = "python"
effect = "once"
approval = "always"
approval_timeout = "1h"
target = "notes:note"
"""
CODE = '''
def note(text: str) -> str:
    """Writes a line down."""
    return f"noted {text}"
'''
AGENT = "---\ntools: [note]\n---\nYou take notes.\n"
FINISH = calls(("finish", {"outcome": "done"}))
NOTE = calls(("note", {"text": "milk"}), text="Frame: a list for the shop")
SCRIPTS: dict[str, list[Any]] = {
    "note it": [NOTE, NOTE, FINISH],
    "ask": [calls(("ask_human", {"question": "Which shop?"})), FINISH],
    "ask nothing": [calls(("ask_human", {})), FINISH],
    "give up": [calls(("escalate", {"reason": "the shop is [closed]"}), text="Frame: buy milk")],
    "break": [fails(401, message="no such key")],
}
HANDOFF = {"objective", "state", "blocker", "next"}


def reply(body: dict[str, Any]) -> Any:
    goal = body["messages"][0]["content"][0]["text"]
    return SCRIPTS[goal][sum(message["role"] == "assistant" for message in body["messages"])]


@dataclass(frozen=True)
class Shop:
    """A project with a worker, and its runs: each command is a process of its own."""

    project: Any
    client: Client
    until: Any

    def perdure(self, *args: str) -> Any:
        return self.project.perdure(*args)

    async def starts(self, goal: str, run_id: str) -> None:
        assert self.perdure("run", "--detach", "--agent", "clerk", "--id", run_id, goal).code == 0

    async def waits(self, run_id: str, question: str = "q1") -> None:
        async def asks() -> bool:
            try:
                view = await query_run_state(self.client, run_id)
            except RunNotFoundError:
                return False
            return view is not None and view.question is not None and view.question.id == question

        await self.until(asks)


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(reply) as serving:
        yield serving


@pytest.fixture(scope="module")
async def shop(make_project: Any, model: ScriptedModel, until: Any) -> AsyncIterator[Shop]:
    project = make_project(ANTHROPIC_API_KEY="sk-none", PERDURE_MODEL="scripted", ANTHROPIC_BASE_URL=model.base_url)
    project.write("perdure.toml", TOOL)
    project.write("notes.py", CODE)
    project.write("agents/clerk.md", AGENT)
    async with embedded_server(project.home) as server:
        client = await Client.connect(server.address, data_converter=data_converter)
        project.env["TEMPORAL_ADDRESS"] = server.address
        with project.running(script="worker.py") as worker:
            worker.until("worker ready")
            yield Shop(project, client, until)


async def test_a_call_is_approved_by_its_digest_and_another_denied_with_a_reason(shop: Shop) -> None:
    await shop.starts("note it", "noting")
    await shop.waits("noting")
    shown = shop.perdure("show", "noting").out
    digest = re.findall(r"q1, call ([0-9a-f]{24}), until 20", shown)[0]
    assert "asks     approve a call: note milk" in shown
    assert f"perdure approve noting --question q1 --call {digest}" in shown
    other = shop.perdure("approve", "noting", "--call", "c0ffee")
    assert (other.code, other.err) == (1, "perdure: question q1 is not about the call c0ffee\n")
    accepted = shop.perdure("approve", "noting", "--call", digest, "--by", "eva")
    assert (accepted.code, accepted.out, accepted.err) == (0, "accepted\n", "")
    await shop.waits("noting", "q2")
    assert shop.perdure("deny", "noting", "--question", "q2", "--reason", "one is enough").out == "accepted\n"
    assert (await wait_for_run_end(shop.client, "noting")).status == RunStatus.completed
    page = await shop.client.get_workflow_handle("run:noting").query("transcript")
    told = [part["content"][0]["content"] for part in page["parts"] if part["kind"] == "result"]
    assert told[:2] == ["noted milk", "denied: a person denied this call: one is enough"]
    traced = shop.perdure("trace", "noting").out.splitlines()
    assert [line for line in traced if "←" in line] == ["  ← cli, as eva  approve", "  ← cli  deny: one is enough"]
    assert "  ✗ note milk  step 2  denied: a person denied this call: one is enough" in traced
    assert [line.partition("  ")[0] for line in traced if line.startswith("■")] == ["■ completed"]
    late = shop.perdure("deny", "noting")
    assert (late.code, len(late.err.splitlines())) == (1, 1)


async def test_a_tool_is_approved_for_the_rest_of_a_run(shop: Shop) -> None:
    await shop.starts("note it", "trusted")
    await shop.waits("trusted")
    assert shop.perdure("approve", "trusted", "--tool").out == "accepted\n"
    assert (await wait_for_run_end(shop.client, "trusted")).status == RunStatus.completed


async def test_what_waits_for_a_person_is_listed_whatever_its_cause_and_nothing_else(shop: Shop) -> None:
    await shop.starts("ask", "asking")
    await shop.starts("note it", "approving")
    await shop.waits("asking")
    await shop.waits("approving")
    listed = [json.loads(line) for line in shop.perdure("list", "--waiting", "--json").out.splitlines()]
    assert {row["run_id"]: row["waiting_for"] for row in listed} == {
        "asking": "human: asks: Which shop?",
        "approving": "human: approve note",
    }
    table = shop.perdure("list", "--waiting").out
    assert "  asks: Which shop?\n" in table
    assert "  approve note\n" in table
    assert 'perdure answer asking --question q1 "…"' in shop.perdure("show", "asking").out
    wrong = shop.perdure("approve", "asking")
    assert (wrong.code, wrong.err) == (1, "perdure: question q1 takes a text\n")
    assert shop.perdure("answer", "asking", "the near one").out == "accepted\n"
    assert shop.perdure("cancel", "approving").out.splitlines()[-1] == "cancelled"
    assert shop.perdure("list", "--waiting").out == "no run waits for a person\n"


@pytest.mark.parametrize(
    ("goal", "run_id", "objective", "blocker"),
    [
        ("give up", "given-up", "buy milk", "the shop is [closed]"),
        ("break", "broken", "break", "the provider refused the request (401): no such key"),
    ],
)
async def test_whoever_takes_over_an_escalated_or_failed_run_reads_how_it_stands(
    shop: Shop, goal: str, run_id: str, objective: str, blocker: str
) -> None:
    await shop.starts(goal, run_id)
    end = await wait_for_run_end(shop.client, run_id)
    told = json.loads(shop.perdure("show", run_id, "--json").out)
    assert told["end"]["status"] == told["status"] == end.status
    assert told["handoff"].keys() == HANDOFF
    assert (told["handoff"]["objective"], told["handoff"]["blocker"]) == (objective, blocker)
    lines = [" ".join(line.split()) for line in shop.perdure("show", run_id).out.splitlines()]
    for name, said in told["handoff"].items():
        assert f"{name} {said}" in lines


async def test_a_run_without_a_handoff_shows_none(shop: Shop) -> None:
    await shop.starts("ask", "stopped")
    await shop.waits("stopped")
    assert json.loads(shop.perdure("show", "stopped", "--json").out)["handoff"] is None
    assert shop.perdure("cancel", "stopped").code == 0
    assert json.loads(shop.perdure("show", "stopped", "--json").out)["handoff"] is None
    assert "handoff" not in shop.perdure("show", "stopped").out


async def test_a_call_of_a_built_in_tool_that_was_refused_is_traced(shop: Shop) -> None:
    await shop.starts("ask nothing", "asked nothing")
    assert (await wait_for_run_end(shop.client, "asked nothing")).status == RunStatus.completed
    refused = "  ✗ ask_human  step 1  invalid_arguments: `question` is required: ask one question, in a sentence"
    assert refused in shop.perdure("trace", "asked nothing").out.splitlines()


async def test_a_misspelt_decision_is_told_with_those_that_the_open_question_takes(shop: Shop) -> None:
    def refused(run_id: str, decision: str) -> str:
        done = shop.perdure("answer", run_id, "--decision", decision)
        assert (done.code, done.out) == (2, "")
        return str(done.err).partition(" (see ")[0]

    await shop.starts("note it", "misspelt")
    await shop.waits("misspelt")
    said = (
        "perdure: invalid --decision 'aprove' (did you mean approve?); question q1 takes one of: approve, approve_tool"
    )
    assert refused("misspelt", "aprove") == f"{said}, deny"
    assert shop.perdure("cancel", "misspelt").code == 0
    assert refused("misspelt", "aprove").endswith("keep_old, continue, stop")
    await shop.starts("ask", "in words")
    await shop.waits("in words")
    assert refused("in words", "yes") == "perdure: invalid --decision 'yes'; question q1 takes: a text"
    assert shop.perdure("cancel", "in words").code == 0


def test_an_answer_that_no_run_takes_is_wrong_usage(shop: Shop) -> None:
    refused = shop.perdure("approve", "noting", "--by", "x" * 300)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "by: " in refused.err
    assert shop.perdure("answer", "nobody", "--decision", "continue").err == "perdure: there is no run nobody\n"
