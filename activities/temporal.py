"""Requests to the Temporal server, and the ids of the workflow that an activity works for."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel
from temporalio import activity
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import Priority, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from perdure.contracts.bounds import Backoff
from perdure.contracts.conversation import SubmitRequest, Submitted
from perdure.contracts.people import Sender, Work
from perdure.contracts.run.events import MIDDLE
from perdure.decisions.ids import conversation_workflow_id, digest, run_id_of_workflow
from perdure.decisions.people.terms import name_of
from perdure.decisions.text.formatting import escape_markdown, truncate

VISIBILITY_RATE = 5  # lists a second
FREE_VISIBILITY_CALLS = 10  # lists that need not wait
FUTURE_TIMEOUT = 0.05  # seconds; the future is done by then, or never will be
MAX_CACHED_ANSWERS = 1000
UNANSWERED_PAUSES = Backoff(2.0, 30.0)  # until a query that got no answer is sent again

# Requests to one lane in flight from this process. The server accepts ten updates of a workflow in flight, and may drop
# them all with the eleventh, after which all retry together. Two use a lane's full speed.
MAX_SUBMITS_IN_FLIGHT = 2
_lane_semaphores: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Semaphore] = WeakValueDictionary()

T = TypeVar("T")

WEIGHTS = (4.0, 2.0, 1.0, 0.5, 0.25)  # by priority
MAX_FAIRNESS_KEY = 64  # bytes


def own_workflow_id() -> str:
    return activity.info().workflow_id or ""


def own_run_id() -> str:
    return run_id_of_workflow(own_workflow_id())


async def cancel_own_workflow(client: Client, reason: str) -> None:
    """Cancel the activity's workflow on the server: only that ends it as Canceled."""
    handle = client.get_workflow_handle(own_workflow_id(), run_id=activity.info().workflow_run_id)
    # Temporal keeps this reason as plain text; if payloads are encrypted, only the signal carries it.
    await handle.cancel(reason=reason if client.data_converter.payload_codec is None else "")


class VisibilityPace:
    """Spaces lists: a namespace of Temporal Cloud allows 30 a second, for all of its processes."""

    def __init__(self) -> None:
        self._next = 0.0

    def reserve(self, limit: float = math.inf, lists: int = 1) -> float:
        """Reserve lists, and return the seconds until all may start: some are free, then `VISIBILITY_RATE` a second.

        Raises TimeoutError, and reserves none, if that is more than `limit`.
        """
        now = asyncio.get_running_loop().time()
        start = max(self._next, now - FREE_VISIBILITY_CALLS / VISIBILITY_RATE) + lists / VISIBILITY_RATE
        if start - now > limit:
            raise TimeoutError
        self._next = start
        return start - now

    async def wait(self) -> None:
        """Wait until the next list may start."""
        await asyncio.sleep(self.reserve())


class IgnoreMissing(AbstractContextManager[None, bool]):
    """Ignores the error that the server does not know the workflow."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        return isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND


async def update_with_start(client: Client, name: str, body: Any, start: dict[str, Any], result_type: type[T]) -> T:
    """Send an update, and start the workflow if needed. `start` holds the arguments of WithStartWorkflowOperation.

    Raises WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError, RPCError.
    """
    operation: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(**start)
    try:
        answer: T = await client.execute_update_with_start_workflow(
            name, body, start_workflow_operation=operation, result_type=result_type
        )
    except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
        # The SDK also keeps the error in a future; if that is never awaited, asyncio logs it with a traceback.
        with suppress(TimeoutError):
            async with asyncio.timeout(FUTURE_TIMEOUT):
                await asyncio.gather(operation.workflow_handle(), return_exceptions=True)
        _must_not_be_cancelled()
        raise
    return answer


async def start_entity(  # noqa: PLR0913 - what a start takes
    client: Client,
    kind: str,
    workflow_id: str,
    task_queue: str,
    state: BaseModel,
    within: timedelta,
    summary: str,
    memo: dict[str, str] | None = None,
) -> None:
    """Start the workflow, unless it runs. The successor of one that was terminated or failed takes over its state.

    `state` is that of the first one. `memo` has fields of the state for readers of lists, by their names there.

    Raises RPCError, and WorkflowQueryFailedError if the state cannot be read.
    """
    handle = client.get_workflow_handle(workflow_id)
    try:
        described = await handle.describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
    else:
        if described.status is WorkflowExecutionStatus.RUNNING:
            return
        closed = client.get_workflow_handle(workflow_id, run_id=described.run_id)
        state = await closed.query("state", result_type=type(state), rpc_timeout=within)
    shown: dict[str, Any] = {name: getattr(state, field) for name, field in (memo or {}).items()}
    await client.start_workflow(
        kind,
        state,
        id=workflow_id,
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        memo=shown or None,
        static_summary=summary,
        rpc_timeout=within,
    )


def fair_priority(owner: str, priority: int = MIDDLE) -> Priority:
    """Return the priority of a workflow and of all that it begins: owners share the workers, by weight.

    `priority` is 1 (the most) to 5.
    """
    key = owner.encode(errors="replace")
    whose = owner if len(key) <= MAX_FAIRNESS_KEY else digest(key, 16)
    return Priority(fairness_key=whose or None, fairness_weight=WEIGHTS[priority - 1])


def owner_of(sender: Sender | None, work: Work | None) -> str:
    """Return whose work a start or request is: of a run's own, the owner of that run's; empty if unknown."""
    return work.account.owner if work and work.account else name_of(sender)


async def submit_to_lane(  # noqa: PLR0913 - the last two define how a lane is opened
    client: Client,
    task_queue: str,
    conversation_id: str,
    request: SubmitRequest,
    *,
    closes: bool = False,
    shares_as: str | None = None,
) -> Submitted:
    """Submit a request to a lane, and open the lane if needed: with `closes`, one that closes when it is idle.

    Workers are shared evenly between owners of lanes, who open them with a request; `shares_as` names another group.

    Raises WorkflowUpdateFailedError with the lane's reason, and RPCError. After most RPC errors the request may have
    been accepted; it can be sent again, since the lane recognizes its id.
    """
    start = {
        "workflow": "Conversation",
        "arg": {"conversation_id": conversation_id, **({"closes": True} if closes else {})},
        "id": conversation_workflow_id(conversation_id),
        "task_queue": task_queue,
        "priority": fair_priority(shares_as or owner_of(request.sender, request.work)),
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
        "static_summary": escape_markdown(truncate(conversation_id, 200)),
    }
    body = request.model_dump(mode="json", exclude_defaults=True)
    lane = (asyncio.get_running_loop(), conversation_id)
    async with _lane_semaphores.setdefault(lane, asyncio.Semaphore(MAX_SUBMITS_IN_FLIGHT)):
        return await update_with_start(client, "submit", body, start, Submitted)


async def await_update(update: Awaitable[T], seconds: float) -> T:
    """Await an update's answer. Raises TimeoutError after `seconds`, and the update's own errors."""
    try:
        async with asyncio.timeout(seconds):
            try:
                return await update
            except WorkflowUpdateRPCTimeoutOrCancelledError:
                _must_not_be_cancelled()
                raise TimeoutError from None  # the server's timeout was shorter
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


def _must_not_be_cancelled() -> None:
    """Raise CancelledError if the caller is being cancelled: the SDK raises the same error for that and a deadline."""
    if (caller := asyncio.current_task()) is not None and caller.cancelling():
        raise asyncio.CancelledError from None


@dataclass(frozen=True)
class _CachedAnswer:
    """The answer of a query, or its error. `at` is the execution and the length of its history."""

    at: tuple[str | None, int]
    value: Any = None
    error: RPCError | WorkflowQueryFailedError | None = None
    until: float = math.inf  # by the monotonic clock
    failures: int = 0  # in a row, if this is an error


class QueryCache:
    """Reuses the answer of a query until the history of its workflow grows.

    Temporal bills each query, but not the description that holds the length of the history.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], _CachedAnswer] = {}

    async def read(self, handle: WorkflowHandle[Any, Any], query: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the stored answer, or that of `ask`. Raises the errors of the description and of `ask`."""
        described, key = await handle.describe(), (handle.id, query)
        at = (described.run_id, described.history_length)
        answer = self._answers.get(key)
        if answer is None or answer.at != at or answer.until < time.monotonic():
            failures = answer.failures if answer and answer.at == at else 0
            answer = await _ask_once(at, ask, failures)
        self._answers.pop(key, None)
        self._answers[key] = answer  # the latest are last
        if len(self._answers) > MAX_CACHED_ANSWERS:
            del self._answers[next(iter(self._answers))]
        if answer.error is not None:
            raise answer.error
        value: T = answer.value
        return value


async def _ask_once(at: tuple[str | None, int], ask: Callable[[], Awaitable[Any]], failures: int) -> _CachedAnswer:
    """Return the answer, or its error, which counts for a pause: a worker may be busy, or there is none."""
    try:
        return _CachedAnswer(at, await ask())
    except (RPCError, WorkflowQueryFailedError) as error:
        until = time.monotonic() + UNANSWERED_PAUSES.seconds(failures + 1)
        return _CachedAnswer(at, error=error, until=until, failures=failures + 1)
