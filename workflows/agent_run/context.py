"""A run in a worker's memory: its state and transcript, and what has arrived from outside.

Handlers judge what arrives and store it here for the loop. This module decides nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic_core import to_json
from temporalio import workflow
from temporalio.common import TypedSearchAttributes

from contracts.conversation import SteerRequest
from contracts.failures import Escalation
from contracts.run.events import ResumePayload, ToolResultEvent, ToolResultPayload
from contracts.run.signals import HumanInput
from contracts.run.state import Call, RunState, RunStatus, TurnClose
from contracts.run.transcript import Part, Segment
from contracts.tool import Effect, ToolOutcome, ToolRoute
from decisions import ids
from decisions.conversation.omission import unanswered_kind
from decisions.run import call_state, tool_results
from decisions.run import outcome as endings
from decisions.run.journal import forward_journal
from decisions.run.question import answer_rejection
from decisions.run.tool_results import ESCALATES, ResultVerdict, outcome_of_result
from decisions.run.transcript import Transcript
from decisions.signature import SignedQuestion, signature_error
from decisions.text import formatting
from workflows import search_attributes
from workflows.cancellation import Cancellation
from workflows.execution import execute_activity, execute_locally_first
from workflows.policies import FILES, Policy
from workflows.sharing import share_transcript

MAX_CARRIED_STATE = 1024 * 1024  # bytes of a state, half of what the server accepts as an input
MAX_STEERED_IDS = 100  # request ids of steered messages, by which a repeated one is recognized
MAX_PENDING_MESSAGES = 256 * 1024  # bytes of pending steered messages that another execution begins with
MAX_IGNORED_NOTICES = 20  # ignored signals in the state

Q = TypeVar("Q")
R = TypeVar("R")


class RunContext:
    def __init__(
        self,
        state: RunState,
        transcript: Transcript,
        segments: tuple[Segment, ...],
        origin: ResumePayload | None = None,
    ) -> None:
        self.state = state
        self.origin = origin  # the run that this one resumes or forks
        self.after: tuple[str, ...] = ()  # the turns of its conversation before it, the latest first
        self.forget: tuple[str, ...] = ()  # turns that it leaves out of its conversation
        self.opening: tuple[Part, ...] = ()  # the parts that it adds to the conversation, until it has
        self.transcript = transcript
        self.segments = segments
        self.cancellation = Cancellation()
        self.handed_on: dict[int, Any] = {}  # large results by step, until they are artifacts
        self.asking = asyncio.Lock()  # for calls of one batch that each have a question
        self.effects = call_state.in_flight(state)  # tool uses that may be having their effect
        self.said: list[SteerRequest] = []  # by its user, and not in the conversation yet
        self.results: dict[int, ToolOutcome] = {}  # from outside, by step
        self.answer: HumanInput | None = None
        self.awaited = 0  # results from outside that the loop waits for
        self._hears = True  # until its ending is reported
        self._last: dict[int, ToolResultPayload] = {}  # the result that was applied last, by step
        self._paused: list[int] = []  # steps whose request has not been sent, or not again
        self._shown: TypedSearchAttributes = workflow.info().typed_search_attributes
        share_transcript(transcript)
        self.publish_details()

    async def execute(
        self, activity: Callable[[Any, Q], Awaitable[R]], request: Q, summary: str, policy: Policy = FILES
    ) -> R:
        """Run an activity that a cancel of the run stops. Raises ActivityError, and CancelledError of asyncio."""
        return await self.cancellation.cancellable(
            execute_activity(self.cancellation, activity, request, summary, policy)
        )

    async def execute_locally(self, activity: Callable[[Any, Q], Awaitable[R]], request: Q, summary: str) -> R:
        """Do the same with a repeatable activity on the run's own files, as a local activity first."""
        running = execute_locally_first(self.cancellation, activity, request, summary)
        return await self.cancellation.cancellable(running)

    def adopt_transcript(self, state: RunState, transcript: Transcript, segments: tuple[Segment, ...]) -> None:
        """Continue from another run's state and conversation."""
        self.state, self.transcript, self.segments = state, transcript, segments
        self.effects = call_state.in_flight(state)
        share_transcript(transcript)
        self.publish_details()

    def inherit_from(self, state: RunState, transcript: Transcript, segments: tuple[Segment, ...]) -> None:
        """Take over another run, and keep the signals that this one has received."""
        own = self.state
        changes = {
            "steered": (*state.steered, *own.steered)[-MAX_STEERED_IDS:],
            "ignored": (*state.ignored, *own.ignored)[-MAX_IGNORED_NOTICES:],
            "ending": own.ending,
            "sender": own.sender,
        }
        self.adopt_transcript(state.model_copy(update=changes), transcript, segments)

    @property
    def needs_conversation(self) -> bool:
        """True if it is a turn of a conversation that it has not read yet."""
        return self.state.is_turn and bool(self.opening)

    @property
    def turn_to_close(self) -> TurnClose | None:
        """The turn that it leaves to its conversation, if it is a turn and has read the conversation."""
        state = self.state
        if not state.is_turn or self.needs_conversation:
            return None
        before = next((segment for segment in self.segments if segment.owner), None)
        owner = ids.conversation_workflow_id(state.conversation_id or "")
        return TurnClose(
            owner=owner, before=before, journal=forward_journal(state.journal), unanswered=unanswered_kind(state)
        )

    @property
    def is_history_long(self) -> bool:
        """True if the server suggests continue-as-new."""
        return workflow.info().is_continue_as_new_suggested()

    @property
    def has_updates(self) -> bool:
        """True if something has arrived that another execution would not get."""
        results = any(pending.step in self.results for pending in self.state.pending)
        return results or self.answer is not None or len(to_json(self.said)) > MAX_PENDING_MESSAGES

    @property
    def should_move_wait(self) -> bool:
        """True if a wait should continue in another execution: the history is long, and nothing else is running."""
        return self.is_history_long and len(self.state.pending) <= 1 and not self.has_updates

    def fits_input(self) -> bool:
        """Return whether an execution can begin with the state, which holds a turn's results until it is closed."""
        return len(to_json(self.state)) <= MAX_CARRIED_STATE

    @property
    def archived_length(self) -> int:
        """The number of parts in the run's store."""
        return self.segments[-1].end if self.segments else 0

    def route_of(self, call: Call) -> ToolRoute:
        return next(route for route in self.state.tools if route.name == call.tool)

    def update(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update={**changes, "updated_at": workflow.now()})

    def publish_details(self) -> None:
        """Update the Web UI's current details; called before each wait, so that they show it."""
        workflow.set_current_details(formatting.run_details(self.state))

    def set_status(self, status: RunStatus, **changes: Any) -> None:
        """Change the status and the search attributes, which costs one event."""
        self.update(status=status, **changes)
        new = search_attributes.of_run(self.state)
        if changed := search_attributes.updates_between(self._shown, new):
            workflow.upsert_search_attributes(changed)
        self._shown = new
        self.publish_details()

    def mark_in_flight(self, call: Call) -> None:
        """Record that the call may happen from now on, if it changes anything."""
        if call.effect is not Effect.read and call.tool_use_id not in self.effects:
            self.effects.append(call.tool_use_id)

    def clear_in_flight(self, call: Call) -> None:
        """Record that the outcome of the call is known."""
        if call.tool_use_id in self.effects:
            self.effects.remove(call.tool_use_id)

    def ignore(self, signal: str, reason: str) -> None:
        """Log a signal that had no effect, and note it in the state."""
        workflow.logger.warning("%s ignored: %s", signal, reason)
        notice = formatting.format_signal_notice(signal, reason)
        self.update(ignored=(*self.state.ignored, notice)[-MAX_IGNORED_NOTICES:])
        self.publish_details()

    def receive_message(self, message: SteerRequest) -> None:
        """Store a message of the user for the next model call, once per request id."""
        if message.request_id in self.state.steered:
            self.ignore("steer", f"{formatting.truncate(message.request_id, 80)} was said before")
            return
        if not self._hears:
            self._reject_message(message)
            return
        self.said.append(message)
        self.update(steered=(*self.state.steered, message.request_id)[-MAX_STEERED_IDS:])

    def stop_receiving(self) -> None:
        """Report the messages that came too late for a model call: no message is lost silently."""
        self._hears = False
        for message in self.said:
            self._reject_message(message)

    def _reject_message(self, message: SteerRequest) -> None:
        request_id = formatting.truncate(message.request_id, 80)
        self.ignore("steer", f"{request_id}: the run ended before a model call could take it in")

    def take_result(self, event: ToolResultEvent) -> None:
        """Apply a `tool_result` from outside, judged in the order of A5."""
        result = event.payload
        verdict = self._judge_result(result)
        if verdict is ResultVerdict.accepted:
            self._last[result.step] = result
            self.state = tool_results.record_result(self.state, result)
            self.results[result.step] = outcome_of_result(result)
        elif verdict in ESCALATES:
            reason = Escalation(verdict.value)
            detail = f"a result came for step {result.step}, tool {formatting.truncate(result.tool, 80)}"
            self.state = endings.escalate_run(self.state, reason, detail)
            self.cancellation.request(detail)
        else:
            self.ignore("tool_result", tool_results.format_result_notice(verdict, self.state, result))

    def judge_update(self, event: ToolResultEvent) -> ResultVerdict:
        """Return the verdict on a result that arrives by update, which the run takes only if it is accepted."""
        return tool_results.judge_update_result(self.state, event, self._judge_result(event.payload))

    def _judge_result(self, result: ToolResultPayload) -> ResultVerdict:
        is_halted = self.cancellation.reason is not None
        return tool_results.judge_result(self.state, result, is_halted=is_halted, is_new=self._is_new_result(result))

    def _is_new_result(self, result: ToolResultPayload) -> bool:
        """Return False for an event that is delivered again: it is not the result of the next attempt."""
        is_repeated = result.completed_at is not None and self._last.get(result.step) == result
        return result.step not in self.results and result.step not in self._paused and not is_repeated

    @contextmanager
    def pausing_results(self, step: int) -> Iterator[None]:
        """Accept no result of the step: its request has not been sent, or not again."""
        self._paused.append(step)
        try:
            yield
        finally:
            self._paused.remove(step)

    @contextmanager
    def offering_result(self, step: int, outcome: ToolOutcome) -> Iterator[None]:
        """Let the query `result` return the outcome."""
        self.handed_on[step] = outcome.result
        try:
            yield
        finally:
            del self.handed_on[step]

    def rejection_reason(self, answer: HumanInput) -> str | None:
        """Return the reason why the answer does not fit the open question, if it does not."""
        is_open = self.answer is None and self.cancellation.reason is None
        question = self.state.question if is_open else None
        reason = answer_rejection(question, answer, expired=self.state.expired, now=workflow.now())
        if reason is not None or question is None:
            return reason
        asked = SignedQuestion(self.state.run_id, self.state.execution, question.id, question.call)
        return signature_error(self.state.answer_keys, asked, answer)
