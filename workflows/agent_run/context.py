"""A run in a worker's memory: its state, transcript and inbox, and how it runs activities. It decides nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic_core import to_json
from temporalio import workflow

from contracts.media import Attachments
from contracts.run.events import ResumePayload
from contracts.run.state import Call, RunState, RunStatus, TurnClose
from contracts.run.transcript import Part, Segment
from contracts.tool import Effect, ToolOutcome, ToolRoute
from decisions import ids
from decisions.conversation.omission import unanswered_kind
from decisions.run import call_state
from decisions.run.journal import forward_journal
from decisions.run.state import add_notice, keep_received
from decisions.run.transcript import Transcript
from decisions.text import formatting
from workflows import search_attributes
from workflows.agent_run.inbox import Inbox
from workflows.cancellation import Cancellation
from workflows.execution import execute_activity, execute_locally_first
from workflows.interceptors import share_transcript
from workflows.policies import FILES, Policy

MAX_CARRIED_STATE = 1024 * 1024  # bytes of a state, half of what the server accepts as an input

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
        self.asking = asyncio.Lock()  # for calls of one batch that each have a question
        self.effects = call_state.in_flight(state)  # tool uses that may be having their effect
        self.inbox = Inbox()
        self.announced = {(question.id, question.group) for question in state.asked}  # to people
        self.awaited = 0  # results from outside that the loop waits for
        self._shown = search_attributes.ShownAttributes()
        share_transcript(transcript)
        self.publish_details()

    @property
    def state(self) -> RunState:
        """The run's state. Each new one is the result of a function of `decisions.run`."""
        return self._state

    @state.setter
    def state(self, new: RunState) -> None:
        self._state = new.model_copy(update={"updated_at": workflow.now()})

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
    def is_history_long(self) -> bool:
        """True if the server suggests continue-as-new."""
        return workflow.info().is_continue_as_new_suggested()

    @property
    def has_updates(self) -> bool:
        """True if something has arrived that another execution would not get."""
        return self.inbox.holds_updates(self.state)

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

    def publish_details(self) -> None:
        """Update the Web UI's current details; called before each wait, so that they show it."""
        workflow.set_current_details(formatting.run_details(self.state))

    def set_status(self, status: RunStatus) -> None:
        """Change the status and the search attributes, which costs one event."""
        self.state = self.state.model_copy(update={"status": status})
        self._shown.update(search_attributes.of_run(self.state))
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
