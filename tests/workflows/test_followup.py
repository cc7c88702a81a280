"""Follow-ups on the real server: each task is resolved once, by what it waits for, and the work goes on once."""

from typing import Any

import pytest

from tests.workflows.conftest import MakeWorld
from tests.workflows.following import Following, followings


@pytest.fixture
def following(world: MakeWorld) -> Following:
    return followings(world)


async def test_a_reply_after_the_task_resolves_it_and_the_work_goes_on(following: Any) -> None:
    async with following() as here:
        run = await here.create(mention_user_id="A")
        await here.wait_for_reply(run)
        await here.until_task(run, "t1", "blocked")
        reply = here.reply("Friday at noon")
        await here.publish(reply)
        resolved = await run.result()
        assert resolved["type"] == "evt.workflow.resolved"
        assert resolved["headers"]["request_id"] == "discord:x:1"
        (request,) = await here.requests()
        assert request["request_id"] == f"{run.id}:1"
        state = await here.it.state(run)
        task = here.task_in(state)
        assert task["result"] == {
            "channelId": "dm-b",
            "replyMessageId": reply["data"]["messageId"],
            "replyUserId": "B",
            "replyUserName": "Bea",
            "text": "Friday at noon",
            "ts": 1_700_000_000_000,
            "raw": {"discord": {"replyToMessageId": here.message}},
        }
        assert task["resolvedBy"] == f"discord:dm-b:{reply['data']['messageId']}"
        assert state["state"] == "resolved"
        assert await here.it.failed_tasks(run) == 0
