"""Calls that their servers have made tasks, as a run follows them: looks, answers and cancels, one request an attempt.

A look that finds nothing new fails with the pause before the next one, so it adds no event to the history.
"""

from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.activities.effects.attempts import heartbeating, this_attempt
from perdure.activities.tools.call import ToolCalls
from perdure.activities.tools.interface import TaskReply, TaskTool, TaskVerb
from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import Effect, ServerTask, ToolCall, ToolOutcome, Unfinished, error_outcome
from perdure.decisions.text.formatting import format_task, truncate
from perdure.decisions.unfinished import SENDABLE, is_given_up, pause_before_check

SEEN = "seen"  # heartbeat key: the task as it was last seen
MOST_SECONDS = 30  # before an answer is sent again
MAX_CANCELS = 8  # requests to cancel a task that does not end


class ServerTasks:
    """Raises ApplicationError, whose message says what is known of the task, to be tried again."""

    def __init__(self, calls: ToolCalls) -> None:
        self._calls = calls

    @activity.defn
    async def check_task(self, call: ToolCall) -> ToolOutcome:
        """Return the outcome of a task that has ended, or `unfinished` with what it asks people.

        A task that is lost is in doubt, never failed.
        """
        task, left = _last_seen(call), _left_of(call)
        view = await self._request(call, task, TaskVerb.check)
        seen = view.task or task
        if outcome := await self._end_of(call, seen, view):
            return outcome
        if view.inputs:
            return await self._calls.settle(call, ToolOutcome(unfinished=left.evolve(task=seen, inputs=view.inputs)))
        if is_given_up(seen, datetime.now(UTC)):
            return await self._lose(call, seen, view.why or "its time is over")
        raise _try_again(seen, view.why, pause_before_check(seen, datetime.now(UTC)))

    @activity.defn
    async def update_task(self, call: ToolCall) -> None:
        """Send what people have answered. If the server refuses it, the next look shows what the task needs."""
        task = _last_seen(call)
        if not any(answer["action"] in SENDABLE for answer in _left_of(call).answers.values()):
            return
        view = await self._request(call, task, TaskVerb.answer)
        if view.why and not is_given_up(task, datetime.now(UTC)):
            raise _try_again(task, view.why, timedelta(seconds=min(activity.info().attempt, MOST_SECONDS)))

    @activity.defn
    async def cancel_task(self, call: ToolCall) -> ToolOutcome:
        """Cancel the task, and return how it ended: it may complete all the same."""
        task, attempt = _last_seen(call), activity.info().attempt
        await self._request(call, task, TaskVerb.cancel)
        view = await self._request(call, task, TaskVerb.check)
        seen = view.task or task
        if outcome := await self._end_of(call, seen, view):
            return outcome
        if attempt >= MAX_CANCELS or is_given_up(seen, datetime.now(UTC)):
            return await self._lose(call, seen, view.why or "it does not end, although it was cancelled")
        raise _try_again(seen, view.why or "cancelled", timedelta(seconds=attempt / 2))

    async def _end_of(self, call: ToolCall, seen: ServerTask, view: TaskReply) -> ToolOutcome | None:
        """Return the outcome of a task that has ended or is lost."""
        if view.lost:
            return await self._lose(call, seen, view.lost)
        return None if view.outcome is None else await self._calls.settle(call, view.outcome)

    async def _request(self, call: ToolCall, task: ServerTask, verb: TaskVerb) -> TaskReply:
        """Send one request. Raises HeldError while people are asked to log in."""
        tool = self._calls.tool_of(call)
        if not isinstance(tool, TaskTool):
            reason = f"this worker's project has no tool {call.tool!r} whose calls become tasks"
            raise _try_again(task, reason, timedelta(seconds=MOST_SECONDS))
        beat = {**this_attempt().beat_details, SEEN: task.model_dump(mode="json")}
        async with heartbeating(lambda: beat):
            return await tool.request_task(verb, task, self._calls.context_of(call))

    async def _lose(self, call: ToolCall, task: ServerTask, why: str) -> ToolOutcome:
        """Return the outcome of a task of which nothing more can be known. Of a `once` call, a person decides."""
        said = "; ".join(filter(None, [task.message, why]))
        lost = task.evolve(message=truncate(said, 500))
        is_once = call.effect is Effect.once
        happened = "; it only reads" if call.effect is Effect.read else "; it may have happened"
        outcome = error_outcome(ToolFault.in_doubt, f"{format_task(lost)}{happened}", retryable=not is_once)
        left = _left_of(call).evolve(task=lost, inputs=()) if is_once else None
        return await self._calls.settle(call, outcome.evolve(unfinished=left))


def _left_of(call: ToolCall) -> Unfinished:
    if call.unfinished is None:
        raise AssertionError("only a call that goes on is followed")
    return call.unfinished


def _last_seen(call: ToolCall) -> ServerTask:
    """Return the task as the run knows it, or as an earlier attempt has seen it."""
    task = _left_of(call).task
    if task is None:
        raise AssertionError("only a call that became a task is followed")
    beat = activity.info().heartbeat_details
    seen = beat[0].get(SEEN) if beat and isinstance(beat[0], dict) else None
    return ServerTask.model_validate(seen) if seen else task


def _try_again(task: ServerTask, why: str, pause: timedelta) -> ApplicationError:
    """Return the failure of an attempt. The next one knows when the task was last seen."""
    activity.heartbeat({**this_attempt().beat_details, SEEN: task.model_dump(mode="json")})
    return ApplicationError(
        "; ".join(filter(None, [format_task(task), why])),
        type="TaskNotEnded",
        next_retry_delay=pause,
        category=ApplicationErrorCategory.BENIGN,
    )
