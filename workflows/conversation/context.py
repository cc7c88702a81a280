"""A lane while a worker has it in memory: its state, what has come for its turn, and the turn that it watches.

Handlers judge what arrives and keep it here; the loop finds it here. Nothing is decided in this module.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from temporalio import workflow

from contracts.conversation import MAX_ID_LENGTH, ConversationStart, Ended, LaneState
from decisions import ids
from decisions.conversation import lane, rules, view
from workflows.cancellation import Halt
from workflows.handlers import invalid, read, read_optional


class LiveLane:
    def __init__(self, state: LaneState, *, goes_on: bool) -> None:
        self.goes_on = goes_on  # from an earlier execution, which knew of every turn
        self.halt = Halt()
        self.errands: deque[lane.Errand] = deque()
        self.turn: asyncio.Task[Ended] | None = None
        self.turn_is_told_to_stop = False
        self.starting: str | None = None  # the run whose start the server has not confirmed
        self.become(state)

    def become(self, state: LaneState) -> None:
        """The next state, which the Web UI's current details tell."""
        self.state = state
        workflow.set_current_details(view.details(state))

    def next_move(self) -> rules.Move:
        facts = rules.Facts(
            errand=self.errands[0] if self.errands else None,
            turn_is_over=self.turn is not None and self.turn.done(),
            turn_is_told_to_stop=self.turn_is_told_to_stop,
            cancelled=self.halt.reason,
            history_is_long=workflow.info().is_continue_as_new_suggested(),
        )
        return rules.next_move(self.state, facts)

    @property
    def is_due(self) -> bool:
        return not isinstance(self.next_move(), rules.Wait)

    def is_about_to_begin(self, run_id: str) -> bool:
        """Whether this request becomes the turn now, and its run may not be there yet."""
        return self.starting == run_id or (self.halt.reason is None and lane.is_next(self.state, run_id))

    @property
    def active_id(self) -> str | None:
        """The run that is the turn."""
        return self.state.active.queued.run_id if self.state.active else None

    def running(self) -> str:
        """The run that is the turn. Raises ApplicationError `InvalidInput` where none is."""
        if (run_id := self.active_id) is None:
            raise invalid("no turn runs")
        return run_id

    def close_turn(self) -> None:
        if self.turn is None:
            raise AssertionError("no turn is watched")
        over, self.turn = self.turn.result(), None
        self.become(lane.ended(self.state, over.end, over.said, workflow.now()))

    def ignore(self, signal: str, why: str) -> None:
        """What had no effect is counted and told, in the log and in the state, and harms nothing."""
        workflow.logger.warning("%s ignored: %s", signal, why)
        self.become(lane.refused(self.state, f"{signal}: {why}"))


def begin(args: Sequence[Any]) -> LiveLane:
    """A new lane, or what an earlier execution carried over. Raises ApplicationError `InvalidInput`."""
    if len(args) == 1 and isinstance(args[0], dict) and args[0].get("type") == "conversation.continue":
        return LiveLane(read(LaneState, args), goes_on=True)
    own = workflow.info().workflow_id
    named = ids.conversation_id_of(own)
    if not 0 < len(named) <= MAX_ID_LENGTH or own != ids.conversation_workflow_id(named):
        raise invalid(f"the workflow id is conversation:<id>, and the id has 1 to {MAX_ID_LENGTH} characters")
    start = read_optional(ConversationStart, args)
    if start.conversation_id not in (None, named):
        raise invalid(f"conversation_id: this is the conversation {named!r}")
    return LiveLane(LaneState(conversation_id=named, closes=start.closes), goes_on=False)
