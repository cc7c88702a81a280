"""The activity `read_and_reflect`: the reads of a turn, and the model call after them."""

import asyncio
from collections.abc import Sequence

from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.effects.attempts import Attempt, heartbeating
from perdure.activities.model.transcript_cache import TranscriptCache
from perdure.activities.model.turn import Turns
from perdure.activities.project import Project
from perdure.activities.telemetry.metrics import observed
from perdure.activities.telemetry.trace import write_trace
from perdure.activities.temporal import own_run_id
from perdure.activities.tools.call import ToolCalls
from perdure.contracts.failures import HELD, WORKER_SHUTDOWN
from perdure.contracts.run.turn import (
    READS_TIME,
    ContextFull,
    FusedRead,
    FusedTurn,
    FusedTurnRequest,
    ModelTurn,
    TurnRequest,
)
from perdure.contracts.tool import RETRY_DELAYS, ToolOutcome
from perdure.decisions.run.transcript import Transcript, result_part

MAX_SHARED_RESULTS = 512 * 1024  # bytes of results that leave room for a reply in the same payload
MAX_REASON = 500  # characters

Outcomes = list[ToolOutcome | None]


class FusedTurns:
    def __init__(self, tools: ToolCalls, turns: Turns, transcripts: TranscriptCache, project: Project) -> None:
        self._tools = tools
        self._turns = turns
        self._transcripts = transcripts
        self._project = project

    @activity.defn
    async def read_and_reflect(self, request: FusedTurnRequest) -> FusedTurn:
        """Make the reads, and run the next turn if each of them has its outcome.

        A failure of the model, and a cancel, leave a result without a reply: the run calls the model as usual.
        """
        write_trace(self._project.workspace(own_run_id()), *request.turn.trace)
        # Before the results are fed: the run does not have them yet, so only the rest can come from it.
        await self._transcripts.read_current(request.turn.length, request.turn.head)
        outcomes, is_cut = await self._make_reads(request.reads)
        results = [outcome for outcome in outcomes if outcome is not None]
        if is_cut or len(results) < len(outcomes) or any(outcome.unfinished for outcome in results):
            return FusedTurn(outcomes=tuple(outcomes), reason="a read is not made", interrupted=_is_stopping())
        if reason := _reason_not_to_ask(results, request.time_left_ms):
            return FusedTurn(outcomes=tuple(outcomes), reason=reason)
        conversation = Transcript(request.turn.length, request.turn.head)
        for read, outcome in zip(request.reads, results, strict=True):
            conversation.append(result_part(read.tool_use_id, read.tool, read.step, outcome))
        reply, reason = await self._ask_model(
            request.turn.evolve(length=conversation.length, head=conversation.head, trace=())
        )
        was_stopped = reply is None and _is_stopping()
        return FusedTurn(
            outcomes=tuple(outcomes), head=conversation.head, reply=reply, reason=reason, interrupted=was_stopped
        )

    async def _make_reads(self, reads: Sequence[FusedRead]) -> tuple[Outcomes, bool]:
        """Return the outcomes of the reads that came to their end, and whether a cancel ended the others."""
        tasks = [asyncio.create_task(self._read_until_settled(read)) for read in reads]
        is_cut = False

        def progress() -> dict[str, list[int]]:
            return {
                "reads": [read.step for read in reads],
                "done": [r.step for r, t in zip(reads, tasks, strict=True) if t.done()],
            }

        async with heartbeating(progress):
            try:
                await asyncio.wait(tasks, timeout=READS_TIME.total_seconds())
            except asyncio.CancelledError:
                is_cut = True
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        return [None if isinstance(end, BaseException) else end for end in ends], is_cut

    async def _read_until_settled(self, read: FusedRead) -> ToolOutcome | None:
        """Make a read, again after a transient failure (B1).

        Return None if a person must decide first, or the worker stops: the run makes the read by itself then.
        """
        for attempt, delay in enumerate((*RETRY_DELAYS, None), start=1):
            try:
                outcome = await observed("call_tool", read, self._tools.run_attempt(read, attempt, read.timeout))
            except ApplicationError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - as Temporal retries an activity that raises anything
                failure = ApplicationError(str(error), type=type(error).__name__)
            else:
                return None if outcome.error is not None and outcome.error.definition is not None else outcome
            if failure.type in (WORKER_SHUTDOWN, HELD):
                return None
            if failure.non_retryable or delay is None:
                break
            requested = failure.next_retry_delay
            await asyncio.sleep(delay if requested is None else requested.total_seconds())
        return await self._tools.settle_failure(read, failure)

    async def _ask_model(self, turn: TurnRequest) -> tuple[ModelTurn | ContextFull | None, str]:
        """Return the reply, or the reason why there is none."""
        attempt = Attempt(1, 0, spent=READS_TIME.total_seconds())  # the activity's timeout has room for the reads
        try:
            return await observed("reflect", turn, self._turns.run_turn(turn, "reflect", attempt)), ""
        except asyncio.CancelledError:
            return None, "cancelled"
        except Exception as error:  # noqa: BLE001 - whatever it is, the usual call of the model reports it
            return None, self._project.secrets.redact(str(error))[:MAX_REASON]


def _reason_not_to_ask(results: Sequence[ToolOutcome], time_left_ms: int) -> str:
    if sum(outcome.duration_ms for outcome in results) >= time_left_ms:
        return "the time of the run is used up"
    if sum(len(to_json(outcome)) for outcome in results) > MAX_SHARED_RESULTS:
        return "the results are large"
    return ""


def _is_stopping() -> bool:
    """Return whether the worker stops, which cancels its activities."""
    details = activity.cancellation_details()
    return details is not None and details.worker_shutdown
