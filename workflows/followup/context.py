"""A follow-up while a worker has it in memory: its state, and what is told of each change of it."""

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
from workflows.handlers import invalid, must_continue, read

KEPT_EVENTS = 50


class LiveFollowUp:
    def __init__(self, state: FollowUpState, *, is_new: bool) -> None:
        self.halt = Halt()
        self.state = state
        self._shown: TypedSearchAttributes = workflow.info().typed_search_attributes
        self._tell(view.happened(None, state, now()) if is_new else ())

    def become(self, new: FollowUpState) -> None:
        """The next state; whoever is to know of it is told."""
        if new != self.state:
            before, self.state = self.state, new
            self._tell(view.happened(before, new, now()))

    def ignore(self, signal: str, why: str) -> None:
        """What had no effect is told, in the log and in the state, and harms nothing."""
        workflow.logger.warning("%s ignored: %s", signal, why)
        notice = formatting.notice(signal, why)
        ignored = (*self.state.ignored, notice)[-followup.MOST_NOTED :]
        self.become(self.state.model_copy(update={"ignored": ignored}))

    def _tell(self, events: Sequence[LifecycleEvent]) -> None:
        """One log line each, which a replay does not repeat; the latest are kept."""
        for event in events:
            workflow.logger.info(event.type, extra={"event": event.model_dump(mode="json", exclude_none=True)})
        if events:
            kept = (*self.state.events, *(view.without_result(event) for event in events))
            self.state = self.state.model_copy(update={"events": kept[-KEPT_EVENTS:]})
        shown = search_attributes.of_follow_up(self.state)
        if changed := search_attributes.changes(self._shown, shown):
            workflow.upsert_search_attributes(changed)
        self._shown = shown
        workflow.set_current_details(view.details(self.state))


def begin(args: Sequence[Any]) -> LiveFollowUp:
    """The follow-up of a command, or what an earlier execution carried over. Raises ApplicationError InvalidInput."""
    if len(args) == 1 and isinstance(args[0], dict) and args[0].get("type") == "followup.continue":
        state = read(FollowUpState, args)
        must_continue()
        return LiveFollowUp(state, is_new=False)
    command, named = read(CreateCommand, args), workflow.info().workflow_id
    if named != ids.follow_up_workflow_id(command.data.workflow_id):
        raise invalid(f"follow-up {command.data.workflow_id} has to be started as wf:{command.data.workflow_id}")
    state = followup.opened(command, now(), workflow.info().first_execution_run_id)
    return LiveFollowUp(state, is_new=True)


def now() -> int:
    """Milliseconds since 1970."""
    return int(workflow.time() * 1000)
