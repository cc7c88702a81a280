"""A follow-up in a worker's memory: its state, and the events that report each change of it."""

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import TypedSearchAttributes

from contracts.followup import CreateCommand, FollowUpState, LifecycleEvent
from decisions import ids
from decisions.followup import state as followup
from decisions.followup import view
from decisions.text import formatting
from workflows import search_attributes
from workflows.cancellation import Cancellation
from workflows.handlers import invalid_input, read_argument, require_continue_as_new, start_type

MAX_EVENTS_SHOWN = 50


class FollowUpContext:
    def __init__(self, state: FollowUpState, *, is_new: bool) -> None:
        self.cancellation = Cancellation()
        self.state = state
        self._shown: TypedSearchAttributes = workflow.info().typed_search_attributes
        self._report_events(view.lifecycle_events(None, state, now_ms()) if is_new else ())

    def set_state(self, new: FollowUpState) -> None:
        """Set the next state, and report the change."""
        if new != self.state:
            before, self.state = self.state, new
            self._report_events(view.lifecycle_events(before, new, now_ms()))

    def ignore(self, signal: str, reason: str) -> None:
        """Log a signal that had no effect, and note it in the state."""
        workflow.logger.warning("%s ignored: %s", signal, reason)
        notice = formatting.format_signal_notice(signal, reason)
        ignored = (*self.state.ignored, notice)[-followup.MAX_NOTED :]
        self.set_state(self.state.model_copy(update={"ignored": ignored}))

    def _report_events(self, events: Sequence[LifecycleEvent]) -> None:
        """Log each event, which a replay does not repeat, and keep the latest in the state."""
        for event in events:
            workflow.logger.info(event.type, extra={"event": event.model_dump(mode="json", exclude_none=True)})
        if events:
            stored = (*self.state.events, *(view.without_result(event) for event in events))
            self.state = self.state.model_copy(update={"events": stored[-MAX_EVENTS_SHOWN:]})
        shown = search_attributes.of_follow_up(self.state)
        if changed := search_attributes.updates_between(self._shown, shown):
            workflow.upsert_search_attributes(changed)
        self._shown = shown
        workflow.set_current_details(view.format_follow_up_details(self.state))


def begin_follow_up(args: Sequence[Any]) -> FollowUpContext:
    """Return the follow-up of a command or of an earlier execution. Raises ApplicationError `InvalidInput`."""
    if start_type(args) == "followup.continue":
        state = read_argument(FollowUpState, args)
        require_continue_as_new()
        return FollowUpContext(state, is_new=False)
    command, named = read_argument(CreateCommand, args), workflow.info().workflow_id
    if named != ids.follow_up_workflow_id(command.data.workflow_id):
        raise invalid_input(f"follow-up {command.data.workflow_id} has to be started as wf:{command.data.workflow_id}")
    state = followup.open_follow_up(command, now_ms(), workflow.info().first_execution_run_id)
    return FollowUpContext(state, is_new=True)


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return int(workflow.time() * 1000)
