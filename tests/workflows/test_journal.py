"""The run journal: costs nothing, outlasts what the conversation does not, and is what a person takes over (B11)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client

from perdure.activities.providers.port import JOURNAL_HEADING
from perdure.client.runs import wait_for_run_end
from perdure.contracts.failures import Escalation
from perdure.contracts.run.journal import Journal
from perdure.decisions.run.journal import DIGEST, READ, digest_journal, render_journal
from perdure.decisions.run.transcript import SHOW_JOURNAL
from perdure.testkit.model_server import ScriptedAnswer, calls, fails
from perdure.testkit.tools import ScriptedTool
from tests.timeline import timeline
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import failure_of, printed_run, result_of
from tests.workflows.script import FINISH, count_replies

EIGHT = {
    "objective": "count the ships",
    "current_state": "two of three harbours are counted",
    "verified_findings": ["12 in the north", "7 in the south"],
    "decisions": ["tugs are ships"],
    "artifacts": ["doc 7"],
    "open_questions": ["is a raft a ship?"],
    "blockers": ["the west is in fog"],
    "handoff_next_action": "wait for the fog to lift",
}
UPDATE = ("update_run_journal", EIGHT)


def appended(entry: str) -> tuple[str, dict[str, Any]]:
    return ("append_run_journal_entry", {"section": "decisions", "entry": entry})


def said(body: dict[str, Any]) -> list[tuple[str, str]]:
    """The texts of a request: (role, text)."""
    return [
        (message["role"], block["text"])
        for message in body["messages"]
        for block in message["content"]
        if block["type"] == "text"
    ]


def pair(body: dict[str, Any]) -> str:
    """The journal as the model is shown it: asked for by the user, given by the assistant."""
    texts = said(body)
    at = next(i for i, (_, text) in enumerate(texts) if text == SHOW_JOURNAL)
    assert (texts[at][0], texts[at + 1][0]) == ("user", "assistant")
    return texts[at + 1][1]


def in_short(body: dict[str, Any]) -> str:
    """The digest in the system prompt."""
    front, _, digest = body["system"][-1]["text"].partition(f"{JOURNAL_HEADING}\n")
    assert front == ""
    return str(digest)


def breaking(*answers: ScriptedAnswer) -> tuple[Callable[[dict[str, Any]], ScriptedAnswer], list[bool]]:
    """A script that is refused where it ends, until the list is cleared; then the run finishes."""
    broken = [True]

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        turn = sum(any(b["type"] == "tool_use" for b in m["content"]) for m in body["messages"])
        if turn < len(answers) and broken:
            return answers[turn]
        return fails(401, type="authentication_error") if broken else FINISH

    return script, broken


async def test_the_three_tools_cost_no_activity_and_no_step(world: MakeWorld) -> None:
    script = [calls(UPDATE, appended("rafts are not"), ("get_run_journal", {})), calls(("get_run_journal", {})), FINISH]
    async with world(script) as it:
        run = await it.start("count", limits={"max_steps": 1})
        event = await result_of(run)
        state = await it.state(run)
        results = await it.results(run)
        assert await timeline(run) == ["open_run", "plan", "reflect", "reflect", "close_segment"]
    whole = Journal.model_validate({**EIGHT, "decisions": ["tugs are ships", "rafts are not"]})
    assert (event["payload"]["steps_taken"], state["step"], state["turns"], state["pending"]) == (0, 0, 3, [])
    assert [text for _, text in results[2:4]] == [f"{render_journal(whole)}\n{READ}"] * 2


async def test_the_query_and_the_file_have_the_same_journal(world: MakeWorld, tmp_path: Path) -> None:
    save = ScriptedTool("save")
    async with world([calls(UPDATE, ("save", {})), FINISH], save) as it:
        run = await it.start("count", run_id="counted")
        await result_of(run)
        journal = Journal.model_validate(await run.query("journal"))
    assert journal == Journal.model_validate(EIGHT)
    assert (tmp_path / "counted/memory.md").read_text() == render_journal(journal)


async def test_without_entries_the_journal_has_the_goal_and_the_last_finding(world: MakeWorld, tmp_path: Path) -> None:
    script = [calls(("look", {}), text="Plan: look"), calls(("look", {}), text="It is white."), FINISH]
    async with world(script, ScriptedTool("look")) as it:
        run = await it.start("see the wall", run_id="silent")
        await result_of(run)
        journal = Journal.model_validate(await run.query("journal"))
    assert journal == Journal(objective="see the wall", current_state="It is white.")
    assert (tmp_path / "silent/memory.md").read_text() == render_journal(journal)


async def test_the_journal_outlasts_continue_as_new(
    world: MakeWorld, short_history_client: Client, tmp_path: Path
) -> None:
    looks = [calls(("look", {"n": n}), appended(f"look {n}")) for n in range(30)]
    look = ScriptedTool("look", lambda arguments, _: f"view {arguments['n']}")
    async with world([calls(UPDATE), *looks, FINISH], look, server=short_history_client, max_steps=99) as it:
        run = await it.start("count", run_id="rotated-journal")
        await result_of(run)
        journal = Journal.model_validate(await run.query("journal"))
        assert (await run.describe()).run_id != run.first_execution_run_id
    expected = Journal.model_validate({**EIGHT, "decisions": ["tugs are ships", *(f"look {n}" for n in range(30))]})
    assert journal == expected
    assert (tmp_path / "rotated-journal/memory.md").read_text() == render_journal(expected)


async def test_a_resumed_run_is_shown_its_journal_before_it_goes_on(world: MakeWorld, tmp_path: Path) -> None:
    script, broken = breaking(calls(UPDATE, text="Plan: count"), calls(appended("rafts are not")))
    async with world(script) as it:
        run = await it.start("count", run_id="lost")
        await failure_of(run)
        broken.clear()
        again = await it.resume(run)
        await result_of(again)
        journal = Journal.model_validate(await again.query("journal"))
        shown = it.model.requests[-1]
        before = it.model.requests[0]
    assert journal == Journal.model_validate({**EIGHT, "decisions": ["tugs are ships", "rafts are not"]})
    assert pair(shown) == render_journal(journal)
    assert in_short(shown) == digest_journal(journal)
    assert len(in_short(shown)) <= DIGEST
    assert "run journal, in short" not in json.dumps(before["system"])
    assert (
        (tmp_path / "lost/memory.md").read_text()
        == (tmp_path / "lost.r2/memory.md").read_text()
        == render_journal(journal)
    )


async def test_the_digest_of_a_long_journal_fits_in_500_characters(world: MakeWorld) -> None:
    long = {
        name: text * 40 if isinstance(text, str) else [entry * 40 for entry in text] for name, text in EIGHT.items()
    }
    script, broken = breaking(calls(("update_run_journal", long)))
    async with world(script) as it:
        run = await it.start("count")
        await failure_of(run)
        broken.clear()
        again = await it.resume(run)
        await result_of(again)
        digest = in_short(it.model.requests[-1])
    assert [line.partition(":")[0] for line in digest.splitlines()][:4] == ["Objective", "State", "Blocker", "Next"]
    assert 300 < len(digest) <= DIGEST


async def test_a_fork_has_the_journal_of_its_step_and_nothing_later(world: MakeWorld, tmp_path: Path) -> None:
    """The objective too, which the runtime writes itself from frame and reframe."""
    script: list[ScriptedAnswer] = [
        calls(("look", {"n": 1}), appended("one"), text="Frame: see one\nPlan: look"),
        calls(("look", {"n": 2}), appended("two"), ("reframe", {"frame": "see two"})),
        calls(("look", {"n": 3}), UPDATE),
        FINISH,
    ]
    forks = {1: Journal(objective="see one", decisions=("one",))}
    forks[2] = Journal(objective="see two", decisions=("one", "two"))
    forks[3] = Journal.model_validate(EIGHT)

    def answers(body: dict[str, Any]) -> ScriptedAnswer:
        if "This is a fork of run" in json.dumps(body["messages"]):
            return calls(("ask_human", {"question": "Well?"})) if len(said(body)) and not _asked(body) else FINISH
        return script[count_replies(body)]

    look = ScriptedTool("look", lambda arguments, _: f"view {arguments['n']}")
    async with world(answers, look) as it:
        run = await it.start("see", run_id="forked-from")
        await result_of(run)
        for step, journal in forks.items():
            branch = await it.fork(run, step)
            await it.until_state(branch, question=True)
            shown = it.model.requests[-1]
            assert pair(shown) == render_journal(Journal(**{**dict(journal), "objective": journal.objective}))
            assert in_short(shown) == digest_journal(journal)
            assert Journal.model_validate(await branch.query("journal")) == journal
            file = tmp_path / branch.id.removeprefix("run:") / "memory.md"
            assert file.read_text() == render_journal(journal), "while it goes on, too"
            await branch.signal("human_input", {"text": "go"})
            await result_of(branch)
            assert file.read_text() == render_journal(journal)


def _asked(body: dict[str, Any]) -> bool:
    return '"ask_human"' in json.dumps(body["messages"])


async def test_when_all_turns_are_used_the_journal_is_the_handoff(world: MakeWorld) -> None:
    async with world([calls(UPDATE), calls(("get_run_journal", {}))], max_turns=2) as it:
        run = await it.start("count", run_id="handed-over")
        event = await result_of(run)
        page = await printed_run(it, run)
    expected = {
        "Objective": "count the ships",
        "State": "two of three harbours are counted",
        "Blocker": "the west is in fog",
        "Next": "wait for the fog to lift",
    }
    payload = event["payload"]
    assert (event["type"], payload["reason"]) == ("agent.escalated", Escalation.turn_budget)
    assert payload["handoff"] == "\n".join(f"{name}: {text}" for name, text in expected.items())
    lines = [" ".join(line.split()) for line in page.splitlines()]
    at = lines.index("handoff")
    assert lines[at + 1 : at + 5] == [f"{name.lower()} {text}" for name, text in expected.items()]


async def test_a_failed_run_hands_its_journal_over_too(world: MakeWorld) -> None:
    script, _ = breaking(calls(UPDATE))
    async with world(script) as it:
        run = await it.start("count")
        await failure_of(run)
        handoff = (await wait_for_run_end(it.client, run.id)).handoff
    assert handoff.splitlines()[0] == "Objective: count the ships"
    assert handoff.splitlines()[-1] == "Next: wait for the fog to lift"


async def test_the_fullest_journal_fits_into_the_run_s_state(world: MakeWorld, short_history_client: Client) -> None:
    """What would not is refused, so that no run is stuck at its continue-as-new."""
    many = [f"{n} " + "\x01é" * 1999 for n in range(4)]
    lists = ("verified_findings", "decisions", "artifacts", "open_questions", "blockers")
    fill = [calls(("update_run_journal", {name: many})) for name in lists]
    looks = [calls(("look", {"n": n})) for n in range(20)]
    look = ScriptedTool("look", lambda arguments, _: f"view {arguments['n']}")
    async with world([*fill, *looks, FINISH], look, server=short_history_client, window=1_000_000, max_steps=99) as it:
        run = await it.start("count")
        assert (await result_of(run))["type"] == "agent.completed"
        journal = Journal.model_validate(await run.query("journal"))
        assert await it.failed_tasks(run) == 0
        assert (await run.describe()).run_id != run.first_execution_run_id
    assert [bool(getattr(journal, name)) for name in lists] == [True, False, False, False, False]
