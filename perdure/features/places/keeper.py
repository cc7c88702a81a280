"""Places as a worker takes and leaves them. Who gets none pauses itself on the server until it is its turn."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from temporalio import activity
from temporalio.client import (
    Client,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.effects.holding import HeldError, confirm_hold
from perdure.activities.project import Project
from perdure.activities.providers.rate_limit import RateLimitedError
from perdure.activities.temporal import own_workflow_id, start_entity
from perdure.contracts.agent import Agent
from perdure.contracts.failures import RunFailure
from perdure.contracts.people import Account
from perdure.features.places.contract import LeavePlace, PlaceAnswer, PlacesState, Seat, TakePlace
from perdure.features.places.rules import agent_key, format_taken, holder_name, places_id, tool_key

ANSWER_WITHIN = timedelta(seconds=5)
AWAY_PAUSE = timedelta(seconds=5)  # while the workflow of the places does not answer
_UNANSWERED = (
    RPCError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowQueryFailedError,
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlaceKeeper:
    """The places that a worker's runs and calls take. `tools` are the limits of tools by name."""

    client: Client
    task_queue: str
    tools: Mapping[str, int]

    async def enter_run(self, agent: Agent, account: Account | None) -> str:
        """Take a place for the run that begins, and return its key; "" if the agent has no limit. Raises HeldError."""
        if agent.max_running is None:
            return ""
        owner = account.owner if agent.per_owner and account is not None else None
        key = agent_key(agent.name, owner)
        await self.take_for_run(key, agent.max_running)
        return key

    async def take_for_run(self, key: str, most: int) -> None:
        """Take a place for the calling activity's run. Raises HeldError, and RateLimitedError if there is no answer."""
        workflow_id = own_workflow_id()
        await self._take(key, workflow_id, most, Seat(workflow_id=workflow_id))

    def place_for_call(self, tool: str, step: int) -> AbstractAsyncContextManager[None]:
        """Have a place for a call of the tool inside the block. Raises as `take_for_run`."""
        most = self.tools.get(tool)
        return nullcontext() if most is None else self._in_place(tool_key(tool), step, most)

    @asynccontextmanager
    async def _in_place(self, key: str, step: int, most: int) -> AsyncIterator[None]:
        seat = Seat(workflow_id=own_workflow_id(), activity_id=activity.info().activity_id)
        holder = f"{seat.workflow_id}#{step}"
        await self._take(key, holder, most, seat)
        try:
            yield
        finally:
            await self._leave(key, holder)

    async def _take(self, key: str, holder: str, most: int, seat: Seat) -> None:
        info = activity.info()
        if not info.is_local:  # a local one that is held is made again as a normal one, which then waits
            seat = seat.evolve(execution=info.workflow_run_id or "", paused=info.activity_id)
        asked = TakePlace(key=key, holder=holder, most=most, seat=seat, waits=not info.is_local)
        try:
            answer = await self._ask(asked)
        except _UNANSWERED as error:
            raise RateLimitedError(
                f"held back: the workflow of the places does not answer: {error}",
                type=RunFailure.rate_limited,
                next_retry_delay=AWAY_PAUSE,
                category=ApplicationErrorCategory.BENIGN,
            ) from None
        if not answer.is_granted:
            confirm_hold(partial(self._still_waits, key, holder))
            raise HeldError(holder_name(key), format_taken(key, answer.taken, most))

    async def _ask(self, asked: TakePlace) -> PlaceAnswer:
        try:
            return await self._update(asked)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        await start_places(self.client, self.task_queue)
        return await self._update(asked)

    async def _update(self, asked: TakePlace) -> PlaceAnswer:
        handle = self.client.get_workflow_handle(places_id(self.task_queue))
        answer: PlaceAnswer = await handle.execute_update(
            "take", asked, result_type=PlaceAnswer, rpc_timeout=ANSWER_WITHIN
        )
        return answer

    async def _still_waits(self, key: str, holder: str) -> bool:
        """Return whether the holder still waits: its turn may have come before it was paused."""
        try:
            state = await read_places(self.client, self.task_queue)
        except _UNANSWERED:
            return False  # it asks again
        return holder in state.waiting.get(key, {})

    async def _leave(self, key: str, holder: str) -> None:
        handle = self.client.get_workflow_handle(places_id(self.task_queue))
        try:
            await handle.signal("leave", LeavePlace(key=key, holder=holder))
        except RPCError as error:  # the check of those that have a place finds it
            _log.warning("a place of %s was not given back: %s", key, error)


async def read_places(client: Client, task_queue: str) -> PlacesState:
    """Return who has a place. Raises RPCError, WorkflowQueryFailedError."""
    handle = client.get_workflow_handle(places_id(task_queue))
    state: PlacesState = await handle.query("state", result_type=PlacesState, rpc_timeout=ANSWER_WITHIN)
    return state


async def start_places(client: Client, task_queue: str) -> None:
    """Start the entity, with the state of one that was terminated. Raises as `start_entity`."""
    summary = f"places of {task_queue}"
    await start_entity(client, "Places", places_id(task_queue), task_queue, PlacesState(), ANSWER_WITHIN, summary)


def open_places(client: Client, project: Project, task_queue: str) -> PlaceKeeper | None:
    """Return what takes a worker's places, if the project limits any."""
    tools = project.parts.get("places", {})
    if tools or any(agent.max_running for agent in project.agents.values()):
        return PlaceKeeper(client, task_queue, tools)
    return None
