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
from workflows.cancellation import Halt
from workflows.handlers import invalid, must_continue, read, type_of_start

KEPT_EVENTS = 50


class LiveFollowUp:
    def __init__(self, state: FollowUpState, *, is_new: bool) -> None:
        self.cancellation = Halt()
        self.state = state
        self._shown: TypedSearchAttributes = workflow.info().typed_search_attributes
        self._tell(view.happened(None, state, now()) if is_new else ())

    def become(self, new: FollowUpState) -> None:
        """Set the next state, and report the change."""
        if new != self.state:
            before, self.state = self.state, new
            self._tell(view.happened(before, new, now()))

    def ignore(self, signal: str, reason: str) -> None:
        """Log a signal that had no effect, and note it in the state."""
        workflow.logger.warning("%s ignored: %s", signal, reason)
        notice = formatting.notice(signal, reason)
        ignored = (*self.state.ignored, notice)[-followup.MOST_NOTED :]
        self.become(self.state.model_copy(update={"ignored": ignored}))

    def _tell(self, events: Sequence[LifecycleEvent]) -> None:
        """Log each event, which a replay does not repeat, and keep the latest in the state."""
        for event in events:
            workflow.logger.info(event.type, extra={"event": event.model_dump(mode="json", exclude_none=True)})
        if events:
            stored = (*self.state.events, *(view.without_result(event) for event in events))
            self.state = self.state.model_copy(update={"events": stored[-KEPT_EVENTS:]})
        shown = search_attributes.of_follow_up(self.state)
        if changed := search_attributes.changes(self._shown, shown):
            workflow.upsert_search_attributes(changed)
        self._shown = shown
        workflow.set_current_details(view.details(self.state))


def begin(args: Sequence[Any]) -> LiveFollowUp:
    """Return the follow-up of a command or of an earlier execution. Raises ApplicationError `InvalidInput`."""
    if type_of_start(args) == "followup.continue":
        state = read(FollowUpState, args)
        must_continue()
        return LiveFollowUp(state, is_new=False)
    command, named = read(CreateCommand, args), workflow.info().workflow_id
    if named != ids.follow_up_workflow_id(command.data.workflow_id):
        raise invalid(f"follow-up {command.data.workflow_id} has to be started as wf:{command.data.workflow_id}")
    state = followup.opened(command, now(), workflow.info().first_execution_run_id)
    return LiveFollowUp(state, is_new=True)


def now() -> int:
    """Return the milliseconds since 1970."""
    return int(workflow.time() * 1000)
