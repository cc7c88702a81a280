"""What goes wrong around a lane: it never wedges, never runs two turns, and never forgets what was said (B8)."""

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.activities.conversation import Conversations
from perdure.activities.temporal import submit_to_lane
from perdure.client import lanes
from perdure.contracts.conversation import SubmitRequest
from perdure.testkit.model_server import Reply, calls, says
from perdure.workflows.conversation import Conversation
from perdure.workflows.execution import ANSWERING_TURNS
from perdure.workflows.handlers import UnknownWorkflow
from tests.replay.altered import Unguarded
from tests.waiting import PATIENCE
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.lane import (
    echo,
    lane_of,
    new_id,
    query_view,
    run_of,
    say,
    turn_ends,
    until_idle,
    wait_for_question,
    wait_for_run,
)
from tests.workflows.script import texts

ASK = calls(("ask_human", {"question": "which one?"}))


def asks_if_long(body: dict[str, Any]) -> Reply:
    return ASK if texts(body)[-1] == "long" else echo(body)


@pytest.mark.parametrize("end", ["cancel", "terminate"])
async def test_a_turn_that_is_stopped_before_it_knows_the_conversation_leaves_it_whole(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    chat, reading = new_id(), asyncio.Event()
    latest = Conversations._latest_record

    async def first_hangs(*args: Any) -> Any:
        if not reading.is_set():
            reading.set()
            await asyncio.sleep(60)
        return await latest(*args)

    async with world(echo) as it:
        await say(it, chat, "my name is Ada")
        await until_idle(it, chat, 1)
        monkeypatch.setattr(Conversations, Conversations._latest_record.__name__, first_hangs)
        run = await wait_for_run(it, await say(it, chat, "hm"))
        await reading.wait()
        await (run.signal("cancel") if end == "cancel" else run.terminate("gone"))
        await say(it, chat, "who am I?")
        view = await until_idle(it, chat, 3)
        last = it.model.requests[-1]
    assert [end for _, end in turn_ends(view)] == ["completed", "cancelled", "completed"]
    said = ["my name is Ada", "you said: my name is Ada"]
    assert texts(last) == [*said, *(["hm"] if end == "cancel" else []), "who am I?"]


async def test_an_old_request_that_comes_again_does_not_turn_the_conversation_back(world: MakeWorld) -> None:
    chat = new_id()
    async with world(echo) as it:
        await say(it, chat, "one", "r1")
        await say(it, chat, "two", "r2")
        await until_idle(it, chat, 2)
        await lane_of(it, chat).terminate("by an operator")  # the next one knows neither request
        await say(it, chat, "one", "r1")
        await say(it, chat, "three", "r3")
        await until_idle(it, chat, 2)
        last = it.model.requests[-1]
    assert texts(last) == ["one", "you said: one", "two", "you said: two", "three"]


async def test_a_restarted_lane_waits_for_the_open_turn(world: MakeWorld) -> None:
    chat = f"it's \\ {new_id()}"
    async with world(asks_if_long) as it:
        first = await say(it, chat, "long")
        question = await wait_for_question(it, first)
        await it.until_listed(f"WorkflowId = 'run:{first.run_id}'")
        await lane_of(it, chat).terminate("by an operator")
        second = await say(it, chat, "next")
        await it.until(lambda: is_active(it, chat, first.run_id))
        assert len(it.model.requests) == 1
        assert (await say(it, chat, "hurry", when_busy="steer")).run_id == first.run_id
        await say(it, chat, "the red one", question_id=question["id"])
        view = await until_idle(it, chat, 3)
        assert (await run_of(it, second).describe()).status is WorkflowExecutionStatus.COMPLETED
    assert sorted(turn_ends(view)) == sorted(
        [("hurry", "steered"), ("the red one", "answered"), ("long", "completed"), ("next", "completed")]
    )


async def test_an_answer_to_a_turn_that_is_wedged_counts_once_it_goes_on(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its question, where a lane puts what answers nothing, it would wait for itself."""
    monkeypatch.setitem(ANSWERING_TURNS, "start_to_close_timeout", timedelta(seconds=2))
    chat = new_id()
    async with world([ASK, says("the red one it is"), says("and on")], works=False) as it:
        async with it.worker():
            first = await say(it, chat, "long")
            question = await wait_for_question(it, first)
        run = run_of(it, first)
        async with it.worker(workflows=(Unguarded, Conversation, UnknownWorkflow)):
            answered = await say(it, chat, "the red one", question_id=question["id"])
            await say(it, chat, "next")

            async def is_answered() -> bool:
                return bool((await query_view(it, chat)).recent)

            await it.until(is_answered)
            view = await query_view(it, chat)
            assert await it.failed_tasks(run) > 0
        async with it.worker():
            event = await asyncio.wait_for(run.result(), 60)
            assert turn_ends(await until_idle(it, chat, 3))[1:] == [("long", "completed"), ("next", "completed")]
            await it.replay()
    assert answered.run_id == first.run_id
    assert [(turn.asked, turn.end, turn.said) for turn in view.recent] == [
        ("the red one", "answered", f"run {first.run_id}, when it goes on")
    ]
    assert [each.asked for each in view.waiting] == ["next"]
    assert event["payload"]["outcome"] == "the red one it is"


async def is_active(it: World, chat: str, run_id: str) -> bool:
    active = (await query_view(it, chat)).active
    return active is not None and active.run_id == run_id


async def test_a_request_that_the_server_refuses_leaves_no_traceback_in_the_log(client: Client) -> None:
    """The SDK keeps the error once more, for somebody who asks for the workflow's handle."""
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, answered: complaints.append(answered))
    with pytest.raises(RPCError):
        await submit_to_lane(client, "nobody", "x" * 2000, SubmitRequest(request_id="r", goal="hm"))
    gc.collect()
    assert complaints == []


async def test_a_turn_of_which_all_is_as_large_as_it_may_be_comes_to_its_end(world: MakeWorld) -> None:
    findings = {"verified_findings": ["f" * 3900 for _ in range(16)]}
    outcome = "\u3042" * 349_000  # three bytes each
    script = [calls(("update_run_journal", findings)), calls(("finish", {"outcome": outcome}))]
    async with world(script, window=10_000_000) as it:
        run = await wait_for_run(it, await say(it, new_id(), "\u3042" * 159_000))
        event = await asyncio.wait_for(run.result(), 60)
    assert event["payload"]["outcome"] == outcome


async def test_a_caller_whose_request_no_worker_takes_can_be_cancelled(client: Client) -> None:
    speaking = asyncio.create_task(
        lanes.submit_with_retry(client, "nobody", new_id(), SubmitRequest(request_id="r", goal="hm"))
    )
    await asyncio.sleep(0.5)  # on its way, or waiting for a worker: either may be cut off
    speaking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(speaking, PATIENCE)
