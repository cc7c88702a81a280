"""What tests of conversations say and look at."""

from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.service import RPCError

from activities.storage.store import LocalStore, LocalStores
from contracts.conversation import LaneView, SubmitRequest, Submitted
from decisions import ids
from perdure.client import lanes
from perdure.testkit.model_server import Reply, says


def new_id() -> str:
    return f"chat-{uuid4().hex[:8]}"


async def say(it: Any, conversation: str, goal: str, request_id: str = "", **fields: Any) -> Submitted:
    request = SubmitRequest.model_validate({"request_id": request_id or uuid4().hex[:8], "goal": goal, **fields})
    submitted = await lanes.submit_with_retry(it.client, it.queue, conversation, request)
    it.started.append(ids.conversation_workflow_id(conversation))
    it.started.append(ids.run_workflow_id(submitted.run_id))
    return submitted


async def begun(it: Any, submitted: Submitted) -> Any:
    """The run of a request, once its lane has started it."""
    run = run_of(it, submitted)

    async def is_there() -> bool:
        try:
            await run.describe()
        except RPCError:
            return False
        return True

    await it.until(is_there)
    return run


async def asking(it: Any, submitted: Submitted) -> dict[str, Any]:
    """The question of a request's run, once it asks."""
    question: dict[str, Any] = (await it.until_state(await begun(it, submitted), question=True))["question"]
    return question


def run_of(it: Any, submitted: Submitted) -> Any:
    return it.client.get_workflow_handle(ids.run_workflow_id(submitted.run_id))


def lane_of(it: Any, conversation: str) -> Any:
    return it.client.get_workflow_handle(ids.conversation_workflow_id(conversation))


async def look(it: Any, conversation: str) -> LaneView:
    view = await lanes.query_lane(it.client, conversation)
    assert view is not None
    return view


async def until_idle(it: Any, conversation: str, turns: int) -> LaneView:
    """Until so many requests have ended, and nothing runs or waits."""

    async def is_idle() -> bool:
        view = await look(it, conversation)
        return view.active is None and view.queued == 0 and view.accepted >= turns

    await it.until(is_idle)
    return await look(it, conversation)


def ends(view: LaneView) -> list[tuple[str, str]]:
    return [(turn.asked, str(turn.end)) for turn in view.recent]


def texts(body: dict[str, Any]) -> list[str]:
    """What is said in a request to the model, by both sides."""
    return [b["text"] for m in body["messages"] for b in m["content"] if b["type"] == "text"]


def echo(body: dict[str, Any]) -> Reply:
    """Answers what was said last."""
    return says(f"you said: {texts(body)[-1]}")


async def held_by(it: Any, run: Any) -> str:
    """Why the run's activity waits for a file, once it does."""

    async def reasons() -> list[str]:
        pending = (await run.describe()).raw_description.pending_activities
        failures = [await it.client.data_converter.decode_failure(each.last_failure) for each in pending]
        return [str(failure) for failure in failures if getattr(failure, "type", "") == "StoredFileChangedError"]

    async def is_held() -> bool:
        return bool(await reasons())

    await it.until(is_held)
    return (await reasons())[0]


def store_of(tmp_path: Path, chat: str) -> LocalStore:
    return LocalStores(tmp_path).of(ids.conversation_workflow_id(chat))
