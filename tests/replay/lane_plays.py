"""What people and programs do to conversations in the scenarios."""

from pathlib import Path
from typing import Any

from perdure.activities.storage.workspace import folder_name
from perdure.activities.temporal import submit_to_lane
from perdure.contracts.conversation import SubmitRequest
from perdure.decisions import ids
from perdure.testkit.model_server import Reply, calls, says
from tests.timeline import timeline
from tests.workflows.conftest import Run, World
from tests.workflows.lane import lane_of, new_id, query_view, say, until_idle, wait_for_question, wait_for_run
from tests.workflows.script import texts


def asks_or_says(body: dict[str, Any]) -> Reply:
    """Asks a person if the request says so, and answers everything else."""
    is_answered = body["messages"][-1]["content"][-1]["type"] == "tool_result"
    if texts(body)[-1].startswith("ask") and not is_answered:
        return calls(("ask_human", {"question": "Which one?"}))
    return says("done")


async def a_lane(it: World) -> Run:
    """With a turn that asks, and one that waits."""
    chat = new_id()
    await wait_for_question(it, await say(it, chat, "ask", "a"))
    await say(it, chat, "then this", "b")
    lane: Run = lane_of(it, chat)
    return lane


async def everything_is_said_to_it(it: World, lane: Run) -> None:
    chat = lane.id.removeprefix("conversation:")
    await say(it, chat, "then this", "b")
    for name in ("request", "drop", "cancel_turn", "human_input", "steered", "no_such_signal"):
        await lane.signal(name, {"no": "such field"})
    await lane.signal("request", {"request_id": "c", "goal": "by signal"})
    await lane.signal("drop", {"request_id": "c"})
    await say(it, chat, "to no question", "d", question_id="q9")
    await say(it, chat, "and another thing", "e", when_busy="steer")
    await lane.signal("human_input", {"text": "this one"})
    view = await until_idle(it, chat, 5)
    await lane.execute_update("forget", {"run_id": view.recent[-1].run_id})
    await wait_for_question(it, await say(it, chat, "ask again", "f"))
    hasty = await say(it, chat, "ask me first", "g", when_busy="interrupt")
    question = await wait_for_question(it, hasty)
    await say(it, chat, "that one", "h", question_id=question["id"])
    await until_idle(it, chat, 8)
    await wait_for_question(it, await say(it, chat, "ask at last", "i"))
    await lane.signal("request", {"request_id": "j", "goal": "never"})
    await lane.cancel()


async def it_rotates(it: World, lane: Run) -> None:
    """With the turn open that asks."""
    chat = lane.id.removeprefix("conversation:")
    for number in range(30):
        await say(it, chat, f"number {number}")
    await lane.signal("human_input", {"text": "this one"})
    await until_idle(it, chat, 32)
    await lane.cancel()


async def a_turn(it: World) -> Run:
    """The second of its conversation, which asks."""
    chat = new_id()
    await say(it, chat, "hello")
    await until_idle(it, chat, 1)
    run: Run = await wait_for_run(it, await say(it, chat, "ask"))
    return run


def _record_before(it: World, chat: str) -> Path:
    """What the first turn has left to the conversation."""
    return next((it.project.workspaces / folder_name(ids.conversation_workflow_id(chat))).rglob("turn-*.json"))


async def a_turn_that_cannot_read(it: World) -> Run:
    """What the turn before it has left cannot be read for a while."""
    chat = new_id()
    await say(it, chat, "hello")
    await until_idle(it, chat, 1)
    record = _record_before(it, chat)
    record.rename(record.with_suffix(".kept"))
    record.write_text("half a rec")
    run: Run = await wait_for_run(it, await say(it, chat, "and then?"))
    return run


async def it_can_read_again(it: World, run: Run) -> None:
    async def is_in_sight() -> bool:
        return "join_conversation" in await timeline(run)

    await it.until(is_in_sight)
    chat = str((await it.client.get_workflow_handle(run.id).describe()).parent_id).removeprefix("conversation:")
    record = _record_before(it, chat)
    record.with_suffix(".kept").replace(record)
    await until_idle(it, chat, 2)


async def it_is_steered(it: World, run: Run) -> None:
    await it.until_state(run, question=True)
    chat = str((await it.client.get_workflow_handle(run.id).describe()).parent_id).removeprefix("conversation:")
    await run.signal("steer", {"no": "such field"})
    await say(it, chat, "and this", when_busy="steer")
    await run.execute_update("answer", {"text": "that"})
    await until_idle(it, chat, 3)
    assert (await query_view(it, chat)).refused == 0


CHOICES = ({"name": "sales", "options": ["a.csv", "b.csv"]},)


async def a_turn_that_chooses(it: World) -> Run:
    """Of a lane that closes after it."""
    chat = new_id()
    request = SubmitRequest.model_validate({"request_id": "a", "goal": "sum", "choices": CHOICES})
    submitted = await submit_to_lane(it.client, it.queue, chat, request, closes=True, shares_as="plan")
    run: Run = await wait_for_run(it, submitted)
    return run


async def its_choice_is_made(it: World, run: Run) -> None:
    await it.until_state(run, question=True)
    await run.signal("human_input", {"text": "c.csv"})
    await run.execute_update("answer", {"text": "b.csv"})


async def a_closing_lane(it: World) -> Run:
    """Of that turn."""
    run = await a_turn_that_chooses(it)
    return it.client.get_workflow_handle(str((await run.describe()).parent_id))


async def a_choice_is_made(it: World, lane: Run) -> None:
    view = await query_view(it, lane.id.removeprefix("conversation:"))
    assert view.active is not None
    await its_choice_is_made(it, it.client.get_workflow_handle(f"run:{view.active.run_id}"))
