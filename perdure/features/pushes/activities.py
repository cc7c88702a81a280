"""The activities of a push: `await_state`, whose retries are the wait, and `send_state`."""

from datetime import UTC, datetime
from typing import Self

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.activities.parts import WorkerParts
from perdure.activities.project import Project
from perdure.activities.temporal import QueryCache
from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.run_list import RunInfo, find_run
from perdure.client.runs import query_run_state, wait_for_run_end
from perdure.contracts.bounds import Backoff
from perdure.contracts.run.state import RunStatus
from perdure.features.pushes.contract import SeenState, StateDelivery, StateRequest
from perdure.features.pushes.rules import INPUT, WORKING, state_of_end, state_of_open
from perdure.features.pushes.sender import NOT_PUSHED, PushSender

PAUSES = Backoff(1, 30, factor=1.5)  # between looks at a run whose state stays


class Pushes:
    def __init__(self, client: Client, project: Project) -> None:
        self._client = client
        self._project = project
        self._queries = QueryCache()

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.client, parts.project)

    @activity.defn
    async def await_state(self, request: StateRequest) -> SeenState:
        """Return the state of the run, once it is another one. Fails until then: the retries are the wait."""
        try:
            run = await find_run(self._client, request.run_id)
        except (RunNotFoundError, RejectedError) as error:
            raise ApplicationError(str(error), type=NOT_PUSHED, non_retryable=True) from None
        found = await self._read(run)
        if found.key == request.seen:
            raise ApplicationError(
                f"{request.run_id} is still {found.state}",
                type="SameState",
                next_retry_delay=PAUSES.pause(activity.info().attempt),
                category=ApplicationErrorCategory.BENIGN,
            )
        return found

    async def _read(self, run: RunInfo) -> SeenState:
        if not run.is_open:
            end = await wait_for_run_end(self._client, run.run_id)
            at = run.execution.close_time or datetime.now(UTC)
            return SeenState(key="end", state=state_of_end(end.status, end.kind), at=at, is_last=True)
        held_by = run.held.by if run.held else ""
        state, asked = state_of_open(RunStatus(run.status), held_by), held_by
        if state == INPUT:
            view = await query_run_state(self._client, run.run_id, cache=self._queries)
            asked = ",".join(question.id for question in view.questions) if view else run.waiting_for
            state = state if asked else WORKING  # the answer has just come
        return SeenState(key=f"{state} {asked}".strip(), state=state, at=datetime.now(UTC))

    @activity.defn
    async def send_state(self, delivery: StateDelivery) -> None:
        """POST a state. Raises ApplicationError `NotPushed`."""
        sender: PushSender | None = self._project.parts.get("pushes")
        if sender is None:
            raise ApplicationError("this worker's perdure.toml has no secret_env in [push]", type=NOT_PUSHED)
        await sender.send(delivery)
