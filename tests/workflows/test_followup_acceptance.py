"""The acceptance criteria of the source, by name (E10).

What needs the lane of the target session is shown by the request that is submitted to it; that the lane runs its
requests one at a time, in their order, is the lane's own promise.
"""

import pytest

from decisions.ids import conversation_workflow_id
from testkit.model_server import Reply, calls
from tests.workflows.conftest import MakeWorld, Run
from tests.workflows.following import Followed, Following, followings


@pytest.fixture
def following(world: MakeWorld) -> Following:
    return followings(world)


def create(here: Followed, session: str) -> Reply:
    target = {"session_id": session, "request_client": "discord", "mention_user_id": "A"}
    definition = {"summary": "A wants lunch with B on Friday; B was asked by DM.", "resumeTarget": target}
    return calls(("workflow_create", {"definition": definition}))


def wait(here: Followed, workflow_id: str, what: str) -> Reply:
    about = {"channelId": "dm-b", "messageId": f"{here.message}-{what}", "fromUserId": "B"}
    given = {"workflowId": workflow_id, "description": f"Wait for B to say {what}", **about}
    return calls(("workflow_wait_for_reply", given))


async def dm_b_then_update_x(here: Followed, *whats: str) -> Run:
    """An agent creates a follow-up, adds a task for each of `whats`, and says that it will come back to it."""

    def script(body: dict[str, object]) -> Reply:
        said = str(body["messages"])
        named = said.partition('"workflowId":"')[2].partition('"')[0]
        if not named:
            return create(here, here.session)
        left = [what for what in whats if f"say {what}" not in said]
        return wait(here, named, left[0]) if left else calls(("finish", {"outcome": "I will tell you."}))

    here.it.model._script = script
    turn = await here.it.start("ask B for lunch", conversation_id=f"dm-{here.session}")
    await turn.result()
    return await here.follow_up_of(turn)


async def say(here: Followed, what: str) -> None:
    await here.publish(here.reply(f"{what}: yes", to=f"{here.message}-{what}"))


async def test_agent_can_create_a_workflow_with_a_summary_and_multiple_described_tasks(following: Following) -> None:
    async with following() as here:
        run = await dm_b_then_update_x(here, "when", "where")
        state = await here.it.state(run)
        assert state["definition"]["summary"] == "A wants lunch with B on Friday; B was asked by DM."
        assert [task["description"] for task in state["tasks"]] == ["Wait for B to say when", "Wait for B to say where"]
        await say(here, "when")
        await say(here, "where")
        await run.result()


async def test_workflow_service_resolves_wait_for_reply_only_on_strict_replies(following: Following) -> None:
    async with following() as here:
        run = await dm_b_then_update_x(here, "when")
        task_id = (await here.it.state(run))["tasks"][0]["taskId"]
        for wrong in (here.reply("no reply", to=None), here.reply("elsewhere", to="m-0"), here.reply("C", userId="C")):
            await run.signal("task_resolved", {"taskId": task_id, "event": wrong})
        await say(here, "when")
        await run.result()
        assert here.task_in(await here.it.state(run), task_id)["result"]["text"] == "when: yes"


async def test_if_no_agent_is_running_for_the_resume_target_session_resume_still_runs(following: Following) -> None:
    """Nothing of the session is there when it resolves: the request brings its lane with it."""
    async with following() as here:
        run = await dm_b_then_update_x(here, "when")
        assert await here.requests() == []
        await say(here, "when")
        await run.result()
        assert [each["request_id"] for each in await here.requests()] == [f"{run.id}:1"]


async def test_if_another_request_is_running_resume_is_queued_fifo_and_runs_after(following: Following) -> None:
    """It goes behind what is in the lane, and asks to be queued there: neither to steer nor to interrupt."""
    async with following() as here:
        await here.it.client.start_workflow(
            "Conversation",
            {"conversation_id": here.session},
            id=conversation_workflow_id(here.session),
            task_queue=here.it.queue,
            start_signal="request",
            start_signal_args=[{"request_id": "discord:x:2", "goal": "something else"}],
        )
        run = await dm_b_then_update_x(here, "when")
        await say(here, "when")
        await run.result()
        first, second = await here.requests()
        assert (first["request_id"], second["request_id"]) == ("discord:x:2", f"{run.id}:1")
        assert second.get("when_busy", "queue") == "queue"


async def test_resume_uses_a_new_request_id_and_does_not_attempt_reply_threading(following: Following) -> None:
    async with following() as here:
        run = await dm_b_then_update_x(here, "when")
        await say(here, "when")
        await run.result()
        (request,) = await here.requests()
        assert request["request_id"] == f"{run.id}:1"
        assert not request["request_id"].startswith("discord:")
        assert request["request_id"] != request["origin"]["request_id"]
        assert request["request_client"] == "discord"
        assert "question_id" not in request


async def test_resume_prompt_includes_workflow_summary_and_task_description(following: Following) -> None:
    """And the reply with its author, and whom to mention: all that the agent needs to go on."""
    async with following() as here:
        run = await dm_b_then_update_x(here, "when", "where")
        await say(here, "when")
        await say(here, "where")
        await run.result()
        (request,) = await here.requests()
        system, user = request["messages"]
        assert (system["role"], user["role"]) == ("system", "user")
        for words in (
            "A wants lunch with B on Friday; B was asked by DM.",
            "Wait for B to say when",
            "when: yes",
            "Wait for B to say where",
            f"in session {here.session}, and mention user A",
        ):
            assert words in system["content"]
        assert user["content"].startswith("Bea (user B) replied in channel dm-b:\n\nwhere: yes")
