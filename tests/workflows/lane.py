"""Conversations: requests, their runs and what their lanes show."""

from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.service import RPCError

from perdure.activities.storage.store import LocalStore, LocalStores
from perdure.client import lanes
from perdure.contracts.conversation import LaneView, SubmitRequest, Submitted
from perdure.decisions import ids
from perdure.testkit.model_server import Reply, says
from tests.workflows.conftest import Run, World
from tests.workflows.script import texts


def new_id() -> str:
    return f"chat-{uuid4().hex[:8]}"


async def say(it: World, conversation: str, goal: str, request_id: str = "", **fields: Any) -> Submitted:
    request = SubmitRequest.model_validate({"request_id": request_id or uuid4().hex[:8], "goal": goal, **fields})
    submitted = await lanes.submit_with_retry(it.client, it.queue, conversation, request)
    it.started.append(ids.conversation_workflow_id(conversation))
    it.started.append(ids.run_workflow_id(submitted.run_id))
    return submitted


async def wait_for_run(it: World, submitted: Submitted) -> Run:
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


async def wait_for_question(it: World, submitted: Submitted) -> dict[str, Any]:
    """The question of a request's run, once it asks."""
    question: dict[str, Any] = (await it.until_state(await wait_for_run(it, submitted), question=True))["question"]
    return question


def run_of(it: World, submitted: Submitted) -> Run:
    return it.client.get_workflow_handle(ids.run_workflow_id(submitted.run_id))


def lane_of(it: World, conversation: str) -> Run:
    return it.client.get_workflow_handle(ids.conversation_workflow_id(conversation))


async def query_view(it: World, conversation: str) -> LaneView:
    """A worker of a busy machine may answer a query too late. Then there is no view, and it is asked again."""
    views: list[LaneView] = []

    async def is_answered() -> bool:
        view = await lanes.query_lane(it.client, conversation)
        views.extend([view] if view else [])
        return view is not None

    await it.until(is_answered)
    return views[-1]


async def until_idle(it: World, conversation: str, turns: int) -> LaneView:
    """Until so many requests have ended, and nothing runs or waits."""

    async def is_idle() -> bool:
        view = await query_view(it, conversation)
        return view.active is None and view.queued == 0 and view.accepted >= turns

    await it.until(is_idle)
    return await query_view(it, conversation)


def turn_ends(view: LaneView) -> list[tuple[str, str]]:
    return [(turn.asked, str(turn.end)) for turn in view.recent]


def echo(body: dict[str, Any]) -> Reply:
    """Answers what was said last."""
    return says(f"you said: {texts(body)[-1]}")


async def wait_until_held(it: World, run: Run) -> str:
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
