"""A run in a worker's memory: its state, transcript and inbox, and how it runs activities. It decides nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic_core import to_json
from temporalio import workflow

from perdure.contracts.conversation import SteerRequest
from perdure.contracts.media import Attachments
from perdure.contracts.run.events import ResumePayload, ToolResultPayload
from perdure.contracts.run.state import Call, RunState, RunStatus, TurnClose
from perdure.contracts.run.transcript import Part, Segment
from perdure.contracts.tool import INLINE_ARGUMENTS, Effect, Holdable, ToolCall, ToolOutcome, ToolRoute
from perdure.decisions import ids
from perdure.decisions.run import call_state
from perdure.decisions.run.journal import forward_journal
from perdure.decisions.run.question import announcement_of
from perdure.decisions.run.resume import origin_of
from perdure.decisions.run.state import add_notice, keep_received
from perdure.decisions.run.transcript import Transcript, unanswered_kind
from perdure.decisions.text import formatting
from perdure.decisions.tool_requests import nonce_of
from perdure.decisions.tools import SEARCH_TOOLS
from perdure.workflows import search_attributes
from perdure.workflows.execution import FILES, Cancellation, Policy, execute_activity, execute_locally_first
from perdure.workflows.interceptors import share_transcript
from perdure.workflows.rotation import is_history_long

MAX_PENDING_MESSAGES = 256 * 1024  # bytes of pending steered messages that another execution begins with


class Inbox:
    def __init__(self) -> None:
        self.messages: list[SteerRequest] = []  # from the user
        self.results: dict[int, ToolOutcome] = {}  # from outside, by step
        self.checking = 0  # answers that are not recorded yet, as their changed arguments are checked
        self.is_open = True  # until the run's end is reported
        self._last: dict[int, ToolResultPayload] = {}  # the result that was applied last, by step
        self._paused: list[int] = []  # steps whose request has not been sent, or not again

    def put_result(self, result: ToolResultPayload, outcome: ToolOutcome) -> None:
        self._last[result.step] = result
        self.results[result.step] = outcome

    def is_new(self, result: ToolResultPayload) -> bool:
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

    def take_messages(self, count: int) -> list[SteerRequest]:
        messages, self.messages = self.messages[:count], self.messages[count:]
        return messages

    def holds_updates(self, state: RunState) -> bool:
        """Return whether something has arrived that another execution would not get."""
        results = any(pending.step in self.results for pending in state.pending)
        return results or self.checking > 0 or len(to_json(self.messages)) > MAX_PENDING_MESSAGES


MAX_INPUT_STATE = 1024 * 1024  # bytes of a state, half of what the server accepts as an input

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
        self._state = state
        self.origin = origin  # the run that this one resumes or forks
        self.after: tuple[str, ...] = ()  # the turns of its conversation before it, the latest first
        self.forget: tuple[str, ...] = ()  # turns that it leaves out of its conversation
        self.opening: tuple[Part, ...] = ()  # the parts that it adds to the conversation, until it has
        self.attachments: Attachments = ()  # of its start, until they are stored
        self.transcript = transcript
        self.segments = segments
        self.cancellation = Cancellation()
        self.handed_on: dict[int, Any] = {}  # large results by step, until they are artifacts
        self.returning = asyncio.Lock()  # to leave the run's place and to take one again
        self.asking = asyncio.Lock()  # for calls of one batch that each have a question
        self.effects = call_state.in_flight(state)  # tool uses that may be having their effect
        self.inbox = Inbox()
        self.announced = {announcement_of(question) for question in state.asked}  # to people
        self.at_work = 0  # calls of the batch that have not ended
        self.resting = 0  # of those, and of the run itself: waits for people or subtasks
        self.awaited = 0  # results from outside that the loop waits for
        self._shown = search_attributes.ShownAttributes()
        share_transcript(transcript)
        self.publish_details()

    @property
    def state(self) -> RunState:
        """The run's state. Each new one is the result of a function of `perdure.decisions.run`."""
        return self._state

    @state.setter
    def state(self, new: RunState) -> None:
        self._state = new.evolve(updated_at=workflow.now())

    async def execute(
        self, activity: Callable[[Any, Q], Awaitable[R]], request: Q, summary: str, policy: Policy = FILES
    ) -> R:
        """Run an activity that a cancel of the run stops. Raises ActivityError, and CancelledError of asyncio."""
        running = execute_activity(self.cancellation, activity, request, summary, policy)
        return _without_hold(await self.cancellation.cancellable(running))

    async def execute_locally(self, activity: Callable[[Any, Q], Awaitable[R]], request: Q, summary: str) -> R:
        """Run a repeatable activity on the run's own files, as a local one first, which a cancel of the run stops.

        Raises ActivityError, and CancelledError of asyncio.
        """
        running = execute_locally_first(self.cancellation, activity, request, summary)
        return _without_hold(await self.cancellation.cancellable(running))

    def adopt_transcript(self, state: RunState, transcript: Transcript, segments: tuple[Segment, ...]) -> None:
        """Continue from another run's state and conversation."""
        self.state, self.transcript, self.segments = state, transcript, segments
        self.effects = call_state.in_flight(state)
        share_transcript(transcript)
        self.publish_details()

    def inherit_from(self, state: RunState, transcript: Transcript, segments: tuple[Segment, ...]) -> None:
        """Take over another run, and keep the signals that this one has received."""
        self.adopt_transcript(keep_received(state, self.state), transcript, segments)

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
    def has_updates(self) -> bool:
        """True if something has arrived that another execution would not get."""
        return self.inbox.holds_updates(self.state)

    @property
    def should_move_wait(self) -> bool:
        """True if a wait should continue in another execution: the history is long, and nothing else is running."""
        return is_history_long() and len(self.state.pending) <= 1 and not self.has_updates

    def fits_input(self) -> bool:
        """Return whether an execution can begin with the state, which holds a turn's results until it is closed."""
        return len(to_json(self.state)) <= MAX_INPUT_STATE

    @property
    def archived_length(self) -> int:
        """The number of parts in the run's store."""
        return self.segments[-1].end if self.segments else 0

    def route_of(self, call: Call) -> ToolRoute:
        return next(route for route in self.state.tools if route.name == call.tool)

    def publish_details(self) -> None:
        """Update the Web UI's current details; called before each wait, so that they show it."""
        workflow.set_current_details(formatting.run_details(self.state))

    def set_status(self, status: RunStatus) -> None:
        """Change the status and the search attributes, which costs one event."""
        self.state = self.state.evolve(status=status)
        self._shown.update(lambda hides: search_attributes.of_run(self.state, is_confidential=hides))
        self.publish_details()

    def show_waits(self) -> None:
        """Show whether the run waits for a person, for a result from outside, or for nothing."""
        waits = RunStatus.waiting_on_tool if self.awaited else RunStatus.running
        self.set_status(RunStatus.waiting_on_human if self.state.question else waits)

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
        self.state = add_notice(self.state, formatting.format_signal_notice(signal, reason))
        self.publish_details()

    @contextmanager
    def offering_result(self, step: int, outcome: ToolOutcome) -> Iterator[None]:
        """Let the query `result` return the outcome."""
        self.handed_on[step] = outcome.result
        try:
            yield
        finally:
            del self.handed_on[step]


def _without_hold(result: R) -> R:
    """Return a result without its hold, which is for readers of the history: a run that was held goes on as others."""
    return result.evolve(hold=None) if isinstance(result, Holdable) and result.hold else result


def call_request(run: RunContext, call: Call) -> ToolCall:
    """Return the input of an activity that makes or follows a call."""
    large = len(to_json(call.arguments)) > INLINE_ARGUMENTS and call.changed_by is None
    origin = origin_of(run.state, call.step or 0)
    needs_schemas = call.tool == SEARCH_TOOLS or run.route_of(call).is_searched
    return ToolCall(
        step=call.step or 0,
        tool=call.tool,
        tool_use_id=call.tool_use_id,
        arguments=None if large else call.arguments,
        effect=call.effect,
        attempt=call.generation,
        length=run.transcript.length if large else 0,
        head=run.transcript.head if large else "",
        owner=origin.run_id if origin else None,
        execution=(origin or run.state).execution if call.effect is Effect.once else None,
        key_id=(origin or run.state).key_id or None,
        approval=call.approval,
        accepts=call.accepts or run.state.accepted.get(call.tool),
        nonce=nonce_of(run.state, call),
        changed_by=call.changed_by,
        definition=run.state.definition if needs_schemas else None,
        unfinished=call.unfinished,
    )
