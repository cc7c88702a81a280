"""A lane in a worker's memory: its state, what has arrived for its turn, and the turn that it watches.

Handlers judge what arrives and store it here for the loop. This module decides nothing.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from temporalio import workflow

from contracts.conversation import MAX_ID_LENGTH, ConversationStart, Ended, LaneState
from decisions import ids
from decisions.conversation import lane, rules, view
from workflows.cancellation import Cancellation
from workflows.handlers import invalid_input, read_argument, read_optional_argument, start_type
from workflows.rotation import Rotation
from workflows.search_attributes import ShownAttributes


class LaneContext:
    def __init__(self, state: LaneState, *, goes_on: bool) -> None:
        self.goes_on = goes_on  # from an earlier execution, which knew every turn
        self.cancellation = Cancellation()
        self.rotation = Rotation()
        self.errands: deque[lane.LaneErrand] = deque()
        self.turn: asyncio.Task[Ended] | None = None
        self.turn_is_told_to_stop = False
        self.ending: str | None = None  # the run that has signalled its end last
        self.attributes = ShownAttributes()
        self.starting: str | None = None  # the run whose start the server has not confirmed
        self.set_state(state)

    def set_state(self, state: LaneState) -> None:
        """Set the next state, and show it in the Web UI's current details."""
        self.state = state
        workflow.set_current_details(view.lane_details(state))

    def next_move(self) -> rules.LaneMove:
        facts = rules.LaneFacts(
            errand=self.errands[0] if self.errands else None,
            turn_is_over=self.turn is not None and self.turn.done(),
            turn_is_told_to_stop=self.turn_is_told_to_stop,
            cancelled=self.cancellation.reason,
            history_is_long=workflow.info().is_continue_as_new_suggested(),
            leaves_build=self.rotation.leaves_build,
        )
        return rules.next_lane_move(self.state, facts)

    @property
    def is_due(self) -> bool:
        return self.rotation.is_undecided or not isinstance(self.next_move(), rules.AwaitEvent)

    def is_about_to_begin(self, run_id: str) -> bool:
        """Return whether this request becomes the turn now, and its run may not have started yet."""
        stays = self.cancellation.reason is None and not self.rotation.leaves_build
        return self.starting == run_id or (stays and lane.is_next(self.state, run_id))

    @property
    def active_id(self) -> str | None:
        return self.state.active.queued.run_id if self.state.active else None

    def running_id(self) -> str:
        """Return the run that is the turn. Raises ApplicationError `InvalidInput` if no turn runs."""
        if (run_id := self.active_id) is None:
            raise invalid_input("no turn runs")
        return run_id

    def close_turn(self) -> None:
        if self.turn is None:
            raise AssertionError("no turn is watched")
        over, self.turn = self.turn.result(), None
        self.set_state(lane.end_turn(self.state, over.end, over.said, workflow.now()))


def begin_lane(args: Sequence[Any]) -> LaneContext:
    """Return a new lane, or that of an earlier execution. Raises ApplicationError `InvalidInput`."""
    if start_type(args) == "conversation.continue":
        return LaneContext(read_argument(LaneState, args), goes_on=True)
    own = workflow.info().workflow_id
    named = ids.conversation_id_of(own)
    if not 0 < len(named) <= MAX_ID_LENGTH or own != ids.conversation_workflow_id(named):
        raise invalid_input(f"the workflow id is conversation:<id>, and the id has 1 to {MAX_ID_LENGTH} characters")
    start = read_optional_argument(ConversationStart, args)
    if start.conversation_id not in (None, named):
        raise invalid_input(f"conversation_id: this is the conversation {named!r}")
    return LaneContext(LaneState(conversation_id=named, closes=start.closes), goes_on=False)
