"""The verdicts of the reflect prompt, one by one: what each makes of the run, its files, its timeline and its end."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import httpx

from perdure.process.project import build_project
from perdure.settings import load_settings
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.timeline import timeline
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import result_of, trace_events

FIRST = calls(("look", {"n": 1}), text="Frame: the cause is named.\nPlan: 1. look 2. look closer")
FINISH = calls(("finish", {"outcome": "the cause is named", "artifacts": ["artifacts/cause.md"]}), text="Seen: done.")
PROMPTS = ("loop", "plan", "reflect")


def look() -> ScriptedTool:
    return ScriptedTool("look", lambda arguments, _: f"result {arguments['n']}")


async def assert_timeline(it: World, run: Run, *names: str) -> None:
    """Check the activities, of which fused reads make two one."""
    text = " ".join(names)
    fused = text.replace("call_tool reflect", "read_and_reflect")
    assert await timeline(run) == (fused if it.project.fuse_reads else text).split()


def file(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def phases(folder: Path) -> list[str]:
    return [line["event"] for line in trace_events(folder, "plan", "reflect")]


async def test_continue_makes_the_next_calls(world: MakeWorld, tmp_path: Path) -> None:
    on = calls(("look", {"n": 2}), text="Known: it is not 1. Missing: the cause.")
    async with world([FIRST, on, FINISH], look()) as it:
        run = await it.start("find the cause", run_id=it.queue)
        event = await result_of(run)
        state = await it.state(run)
        await assert_timeline(
            it, run, "open_run", "plan", "call_tool", "reflect", "call_tool", "reflect", "close_segment"
        )
    assert (state["status"], state["step"], state["turns"], state["reframes"]) == ("completed", 2, 3, 0)
    assert (event["type"], event["payload"]["steps_taken"]) == ("agent.completed", 2)
    folder = tmp_path / it.queue
    assert phases(folder) == ["plan", "reflect", "reflect"]
    assert file(folder, "plan.md") == "# Plan\n\n1. look 2. look closer\n"
    assert file(folder, "context.md").startswith("# Goal\n\nfind the cause\n")
    assert file(folder, "context.md").endswith("# Frame\n\nthe cause is named.\n")


async def test_done_ends_completed_with_its_files(world: MakeWorld, tmp_path: Path) -> None:
    async with world([FIRST, FINISH], look()) as it:
        run = await it.start("find the cause", run_id=it.queue)
        event = await result_of(run)
        state = await it.state(run)
        await assert_timeline(it, run, "open_run", "plan", "call_tool", "reflect", "close_segment")
    assert event["type"] == "agent.completed"
    assert (event["payload"]["outcome"], event["payload"]["artifacts"]) == (
        "the cause is named",
        ["artifacts/cause.md"],
    )
    assert (state["status"], state["pending"], state["resumable"]) == ("completed", [], False)
    assert "## Current state\n\nSeen: done." in file(tmp_path / it.queue, "memory.md")


async def test_reframe_restates_the_task_and_goes_on(world: MakeWorld, tmp_path: Path) -> None:
    """The frame is the journal's objective from then on; the plan and frame of the first turn stay on record."""
    anew = calls(("reframe", {"frame": "name the culprit", "reason": "no cause to be seen"}), text="It cannot work so.")
    async with world([FIRST, anew, calls(("look", {"n": 2})), FINISH], look()) as it:
        run = await it.start("find the cause", run_id=it.queue)
        assert (await result_of(run))["type"] == "agent.completed"
        state = await it.state(run)
        journal = await run.query("journal")
        assert any(
            id_ == "toolu_1_0" and text.startswith("reframed (1 of 2). Go on") for id_, text in await it.results(run)
        )
        names = ("open_run", "plan", "call_tool", "reflect", "reflect", "call_tool", "reflect", "close_segment")
        await assert_timeline(it, run, *names)
    assert (state["reframes"], state["step"], state["turns"]) == (1, 2, 4)
    assert journal["objective"] == "name the culprit"
    folder = tmp_path / it.queue
    assert "name the culprit" in file(folder, "memory.md")
    assert "the cause is named" in file(folder, "context.md")
    assert file(folder, "plan.md") == "# Plan\n\n1. look 2. look closer\n"


async def test_escalate_gives_the_task_back_with_what_a_person_needs(world: MakeWorld, tmp_path: Path) -> None:
    back = calls(
        ("escalate", {"reason": "the archive is locked; somebody has to open it"}), text="Known: it is locked."
    )
    async with world([FIRST, back], look()) as it:
        run = await it.start("find the cause", run_id=it.queue)
        event = await result_of(run)
        state = await it.state(run)
        await assert_timeline(it, run, "open_run", "plan", "call_tool", "reflect", "close_segment")
    assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", "asked")
    assert event["payload"]["detail"] == "the archive is locked; somebody has to open it"
    assert "State: Known: it is locked." in event["payload"]["handoff"]
    assert "Blocker: the archive is locked" in event["payload"]["handoff"]
    assert state["status"] == "escalated"
    assert phases(tmp_path / it.queue) == ["plan", "reflect"]


async def test_ask_human_waits_for_a_person_and_the_answer_is_its_result(world: MakeWorld, tmp_path: Path) -> None:
    ask = calls(("ask_human", {"question": "Which archive?", "options": ["north", "south"]}), text="Two archives.")
    async with world([FIRST, ask, FINISH], look()) as it:
        run = await it.start("find the cause", run_id=it.queue)
        state = await it.until_state(run, question=True)
        assert (state["status"], state["question"]["kind"]) == ("waiting_on_human", "question")
        assert (state["question"]["text"], state["question"]["options"]) == ("Which archive?", ["north", "south"])
        await assert_timeline(it, run, "open_run", "plan", "call_tool", "reflect")
        await run.execute_update("answer", {"text": "north"})
        assert (await result_of(run))["type"] == "agent.completed"
        assert ("toolu_1_0", "north") in await it.results(run)
        assert (await it.state(run))["step"] == 2
        await assert_timeline(it, run, "open_run", "plan", "call_tool", "reflect", "reflect", "close_segment")
    assert phases(tmp_path / it.queue) == ["plan", "reflect", "reflect"]


def prompt(name: str) -> str:
    return files("perdure.activities").joinpath(f"prompts/{name}.md").read_text(encoding="utf-8")


def test_the_prompts_are_short_and_name_every_verdict() -> None:
    assert sum(len(prompt(name)) for name in PROMPTS) < 2_500
    for verdict in ("continue", "reframe", "done", "escalate", "ask_human"):
        assert verdict in prompt("reflect")


async def test_a_worker_sends_these_prompts_and_the_same_in_every_turn(world: MakeWorld, tmp_path: Path) -> None:
    async with httpx.AsyncClient() as http:
        project = build_project(load_settings({}, tmp_path), http)
    tool = look()
    agents = {"default": project.agents["default"].evolve(tools=("look",))}
    async with world([FIRST, FINISH], tool, works=False) as it:
        it.project = replace(project, agents=agents, tools={"look": tool}, model="scripted", workspaces=tmp_path)
        async with it.worker():
            await result_of(await it.start("find the cause"))
        plan, reflect = it.model.requests
    system = "\n".join(prompt(name) for name in PROMPTS)
    assert plan["system"][0]["text"].startswith(system.strip())
    assert plan["system"] == reflect["system"]
