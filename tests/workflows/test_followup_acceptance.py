"""The acceptance criteria of the source, by name (E10).

The work goes on in a real lane of the target session.
"""

import asyncio
import re
from functools import partial
from typing import Any

import pytest

from perdure.contracts.agent import Agent
from perdure.decisions.ids import run_workflow_id, turn_run_id
from perdure.process.workflows import all_workflows
from perdure.testkit.model_server import Reply, calls, says
from tests.workflows.conftest import MakeWorld, Run
from tests.workflows.following import FollowUpWorld, MakeFollowUps, make_follow_ups
from tests.workflows.lane import query_view, say, until_idle, wait_for_question
from tests.workflows.script import texts


@pytest.fixture
def follow_ups(world: MakeWorld) -> MakeFollowUps:
    return partial(make_follow_ups(world), workflows=all_workflows())


def create(here: FollowUpWorld, session: str) -> Reply:
    target = {"session_id": session, "request_client": "discord", "mention_user_id": "A"}
    definition = {"summary": "A wants lunch with B on Friday; B was asked by DM.", "resumeTarget": target}
    return calls(("workflow_create", {"definition": definition}))


def wait(here: FollowUpWorld, workflow_id: str, what: str) -> Reply:
    about = {"channelId": "dm-b", "messageId": f"{here.message}-{what}", "fromUserId": "B"}
    given = {"workflowId": workflow_id, "description": f"Wait for B to say {what}", **about}
    return calls(("workflow_wait_for_reply", given))


async def dm_b_then_update_x(here: FollowUpWorld, *whats: str, **payload: Any) -> Run:
    """An agent creates a follow-up, adds a task for each of `whats`, and says that it will come back to it."""

    def script(body: dict[str, Any]) -> Reply:
        if "(This was waited for:" in texts(body)[-1]:
            return says("<@A> B has replied")
        if texts(body)[-1] == "something else":
            is_answered = body["messages"][-1]["content"][-1]["type"] == "tool_result"
            return says("that is done") if is_answered else calls(("ask_human", {"question": "what else?"}))
        said = str(body["messages"])
        named = said.partition('"workflowId":"')[2].partition('"')[0]
        if not named:
            return create(here, here.session)
        left = [what for what in whats if f"say {what}" not in said]
        return wait(here, named, left[0]) if left else calls(("finish", {"outcome": "I will tell you."}))

    here.it.model._script = script
    turn = await here.it.start("ask B for lunch", conversation_id=f"dm-{here.session}", **payload)
    await turn.result()
    return await here.follow_up_of(turn)


async def replies(here: FollowUpWorld, what: str) -> None:
    await here.publish(here.reply(f"{what}: yes", to=f"{here.message}-{what}"))


async def resolved(here: FollowUpWorld, run: Run, count: int) -> bool:
    tasks = (await here.it.state(run))["tasks"]
    return [task["state"] for task in tasks].count("resolved") == count


async def test_agent_can_create_a_workflow_with_a_summary_and_multiple_described_tasks(
    follow_ups: MakeFollowUps,
) -> None:
    async with follow_ups() as here:
        run = await dm_b_then_update_x(here, "when", "where")
        state = await here.it.state(run)
        assert state["definition"]["summary"] == "A wants lunch with B on Friday; B was asked by DM."
        assert [task["description"] for task in state["tasks"]] == ["Wait for B to say when", "Wait for B to say where"]
        await replies(here, "when")
        await replies(here, "where")
        await run.result()


async def test_workflow_service_resolves_wait_for_reply_only_on_strict_replies(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await dm_b_then_update_x(here, "when")
        task_id = (await here.it.state(run))["tasks"][0]["taskId"]
        for wrong in (here.reply("no reply", to=None), here.reply("elsewhere", to="m-0"), here.reply("C", userId="C")):
            await run.signal("task_resolved", {"taskId": task_id, "event": wrong})
        await replies(here, "when")
        await run.result()
        assert here.task_in(await here.it.state(run), task_id)["result"]["text"] == "when: yes"


async def resumed(here: FollowUpWorld, run: Run) -> Run:
    """The turn in which the work goes on, once it has ended."""
    await asyncio.wait_for(run.result(), 20)
    await until_idle(here.it, here.session, 1)
    turn = run_workflow_id(turn_run_id(here.session, f"{run.id}:1"))
    here.it.started += [turn, f"conversation:{here.session}"]
    found: Run = here.it.client.get_workflow_handle(turn)
    return found


async def test_if_no_agent_is_running_for_the_resume_target_session_resume_still_runs(
    follow_ups: MakeFollowUps,
) -> None:
    """Nothing of the session is there when it resolves: the request brings its lane with it."""
    async with follow_ups() as here:
        run = await dm_b_then_update_x(here, "when")
        await replies(here, "when")
        event = await (await resumed(here, run)).result()
    assert (event["type"], event["payload"]["outcome"]) == ("agent.completed", "<@A> B has replied")


async def test_the_agent_that_made_the_follow_up_goes_on_with_it(follow_ups: MakeFollowUps) -> None:
    async with follow_ups(
        agents=[Agent(name="secretary", prompt="I keep the calendar.", tools=(), follow_ups=("*",))]
    ) as here:
        run = await dm_b_then_update_x(here, "when", agent="secretary")
        await replies(here, "when")
        state = await here.it.state(await resumed(here, run))
    assert state["agent"] == "secretary"


async def test_if_another_request_is_running_resume_is_queued_fifo_and_runs_after(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await dm_b_then_update_x(here, "when")
        other = await say(here.it, here.session, "something else", "discord:x:2")
        question = await wait_for_question(here.it, other)
        await replies(here, "when")
        await asyncio.wait_for(run.result(), 20)
        waiting = (await query_view(here.it, here.session)).waiting
        assert [each.request_id for each in waiting] == [f"{run.id}:1"]
        await say(here.it, here.session, "nothing", question_id=question["id"])
        turn = await resumed(here, run)
        first, second = (
            await here.it.client.get_workflow_handle(f"run:{other.run_id}").describe(),
            await turn.describe(),
        )
    assert first.close_time is not None
    assert first.close_time <= second.start_time


async def test_resume_uses_a_new_request_id_and_does_not_attempt_reply_threading(follow_ups: MakeFollowUps) -> None:
    async with follow_ups() as here:
        run = await dm_b_then_update_x(here, "when")
        await replies(here, "when")
        turn = await resumed(here, run)
        started = await anext(turn.fetch_history_events())
        (start_event,) = await here.it.client.data_converter.decode(
            started.workflow_execution_started_event_attributes.input.payloads
        )
    headers = start_event["headers"]
    assert headers["request_id"] == f"{run.id}:1"
    assert not re.match(r"discord:", headers["request_id"])  # only such an id is threaded onto
    assert headers["request_id"] != start_event["raw"]["workflow"]["origin"]["request_id"]
    assert (headers["session_id"], headers["request_client"]) == (here.session, "discord")


async def test_resume_prompt_includes_workflow_summary_and_task_description(follow_ups: MakeFollowUps) -> None:
    """And the reply with its author, and whom to mention: all that the agent needs to go on."""
    async with follow_ups() as here:
        run = await dm_b_then_update_x(here, "when", "where")
        await replies(here, "when")
        await here.it.until(lambda: resolved(here, run, 1))  # two events at once may come in either order
        await replies(here, "where")
        await resumed(here, run)
        asked = here.it.model.requests[-1]
    assert f'in session "{here.session}", and mention user "A"' in asked["system"][-1]["text"]
    prompt = texts(asked)[-1]
    for words in (
        "> A wants lunch with B on Friday; B was asked by DM.",
        "Wait for B to say when",
        "when: yes",
        "Wait for B to say where",
    ):
        assert words in prompt
        assert words not in str(asked["system"])
    assert prompt.startswith("This came:\n> Bea (user B) replied in channel dm-b:\n> \n> where: yes\n\n")


@pytest.mark.parametrize(("max_steps", "expected"), [(7, [(2, 7), (2, 5), (2, 3), (1, 1)]), (2, [(2, 2), (0, 0)])])
async def test_a_chain_of_follow_ups_ends_with_the_budget_of_the_run_that_began_it(
    follow_ups: MakeFollowUps, max_steps: int, expected: list[tuple[int, int]]
) -> None:
    """Each run asks for another one at once: without a common budget that never ends."""

    def script(body: dict[str, Any]) -> Reply:
        block = body["messages"][-1]["content"][-1]
        if block["type"] != "tool_result":
            return calls(("workflow_create", {"definition": {"summary": "go on"}}))
        made = block["content"].partition('"workflowId":"')[2].partition('"')[0]
        if block.get("is_error") or "taskId" in block["content"] or not made:
            return says("that is all for now")
        task = {"workflowId": made, "kind": "wait", "description": "a moment", "input": {"delayMs": 1}}
        return calls(("workflow_task_create", task))

    async with follow_ups(max_steps=max_steps) as here:
        here.it.model._script = script
        await say(here.it, here.session, "go on", "r1")
        await here.it.until(lambda: has_ended(here, len(expected)))
        lane = await query_view(here.it, here.session)
        steps = [await steps_of(here, turn.run_id) for turn in lane.recent]
    assert steps == expected


async def has_ended(here: FollowUpWorld, turns: int) -> bool:
    lane = await query_view(here.it, here.session)
    return len(lane.recent) == turns and lane.active is None and not lane.queued


async def steps_of(here: FollowUpWorld, run_id: str) -> tuple[int, int]:
    view = await here.it.state(here.it.client.get_workflow_handle(f"run:{run_id}"))
    return view["step"], view["max_steps"]
