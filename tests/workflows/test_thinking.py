"""Signed thinking goes back to the provider unchanged, whatever happens to the run in between."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from perdure.testkit import model_server
from perdure.testkit.model_server import Reply, calls, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import failure_of, trace_events
from tests.workflows.script import FINISH, BreakingScript, count_replies, is_summary

Json = dict[str, Any]


def sign(thinking: str) -> str:
    return hashlib.sha256(thinking.encode()).hexdigest()


@pytest.fixture(autouse=True)
def thinking_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply begins with signed thinking, with blanks at its ends that a copy could lose."""
    original = model_server._message

    def with_thinking(reply: Reply, body: Json, turn: int) -> Json:
        message, text = original(reply, body, turn), f" step {turn}: ü\n\n"
        thinking = {"type": "thinking", "thinking": text, "signature": sign(text)}
        hidden = {"type": "redacted_thinking", "data": sign(f"{turn}")}
        return {**message, "content": [thinking, hidden, *message["content"]]}

    monkeypatch.setattr(model_server, "_message", with_thinking)


def assert_signed(requests: list[Json]) -> None:
    """Each reply in each request begins with its thinking, unchanged; the server saw no request without it."""
    replies = [m["content"] for r in requests if not is_summary(r) for m in r["messages"] if m["role"] == "assistant"]
    own = [content for content in replies if content[0]["type"] != "text"]
    assert own
    for thinking, hidden, *_ in own:
        assert thinking == {**thinking, "type": "thinking", "signature": sign(thinking["thinking"])}
        assert thinking["thinking"].startswith(" step ")
        assert thinking["thinking"].endswith("\n\n")
        assert hidden["type"] == "redacted_thinking"
    last = [r["messages"][-2]["content"] for r in requests if not is_summary(r) and count_replies(r)]
    assert {content[0]["type"] for content in last} == {"thinking"}


def look() -> ScriptedTool:
    return ScriptedTool("look", lambda arguments, _: f"seen {arguments['n']}")


async def test_thinking_survives_rotations(world: MakeWorld, short_history_client: Client) -> None:
    script = [*(calls(("look", {"n": n})) for n in range(30)), FINISH]
    async with world(script, look(), server=short_history_client, max_steps=40) as it:
        await it.run_to_end("see")
        requests = it.model.requests
    assert len(requests) == 31
    assert_signed(requests)


async def test_thinking_survives_resume_and_fork(world: MakeWorld) -> None:
    script = BreakingScript(*(calls(("look", {"n": n})) for n in range(4)), FINISH, breaks=3)
    async with world(script, look()) as it:
        run = await it.start("see")
        await failure_of(run)
        script.breaks = None
        again = await it.resume(run)
        await again.result()
        fork = await it.fork(again, 2, "once more")
        await fork.result()
        requests = it.model.requests
    assert_signed(requests)


async def test_thinking_of_the_messages_that_stay_survives_a_compaction(world: MakeWorld) -> None:
    numbers = iter(range(16))

    def script(body: Json) -> Reply:
        if is_summary(body):
            return says("So far: much was seen.")
        number = next(numbers, None)
        return FINISH if number is None else calls(("read", {"n": number}))

    read = ScriptedTool("read", lambda arguments, _: f"{arguments['n']}:" + "lorem ipsum " * 333)
    async with world(script, read, window=20_000, max_steps=50) as it:
        await it.run_to_end("see")
        requests = it.model.requests
    assert any(is_summary(request) for request in requests)
    assert_signed(requests)


@pytest.mark.parametrize("recorded", [False, True])
async def test_the_trace_has_the_thinking_only_if_the_project_says_so(
    world: MakeWorld, tmp_path: Path, recorded: bool
) -> None:
    async with world([FINISH], works=False) as it:
        it.project = replace(it.project, record_thinking=recorded)
        async with it.worker():
            await it.run_to_end("see", run_id=f"traced-{recorded}")
    [line] = trace_events(tmp_path / f"traced-{recorded}", "plan")
    assert line.get("thinks") == ("step 0: ü" if recorded else None)
