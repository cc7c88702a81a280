"""Drives a run over the decisions alone, from reply to reply."""

from dataclasses import dataclass, field
from typing import Any

from contracts.run.state import RunState
from contracts.tool import ToolOutcome
from decisions.builtin_tools import CONTROL_TOOLS, JOURNAL_TOOLS
from decisions.run import call_state, loop
from decisions.run.reply import take_turn
from decisions.run.transcript import Transcript, call_part, goal_part, note_part, reply_part

OK = ToolOutcome(result="fine")


@dataclass
class Player:
    """Drives a run as the workflow does; `outcomes` tells what each call brings."""

    state: RunState
    now: Any
    outcomes: dict[str, ToolOutcome] = field(default_factory=dict)
    transcript: Transcript = field(default_factory=Transcript)
    issued: list[int] = field(default_factory=list)
    endings: int = 0
    winds: int = 0

    def __post_init__(self) -> None:
        self.transcript.append(goal_part("see", {}))

    def turn(self, reply: Any) -> None:
        taken = take_turn(self.state, reply)
        self.state = taken.state
        if taken.keep:
            self.transcript.append(reply_part(reply))
        if taken.note:
            self.transcript.append(note_part(taken.note))

    def settle(self) -> loop.Move:
        """Makes calls until the model is to be asked, or the run has ended."""
        while True:
            move = loop.next_move(self.state, history_is_long=False)
            match move:
                case loop.Act(batch):
                    self._act(batch)
                case loop.CloseTurn():
                    for call in self.state.calls:
                        self.transcript.append(call_part(call))
                    self.state = loop.settle_turn(self.state).state
                case loop.FinalTurn():
                    self.state = loop.start_final_turn(self.state)
                    self.winds += 1
                case _:
                    self.endings += isinstance(move, loop.End)
                    return move

    def _act(self, batch: Any) -> None:
        before = self.state.pending
        self.state = call_state.issue_calls(self.state, batch, self.now)
        assert len(self.state.pending) == len(before) + sum(call.step is not None for call in batch)
        self.issued += [call.step for call in batch if call.step is not None]
        for call in batch:
            if call.tool in CONTROL_TOOLS:
                self.state = call_state.run_control_call(self.state, call)
            elif call.tool in JOURNAL_TOOLS:
                self.state = call_state.run_journal_call(self.state, call)
            else:
                self.state = call_state.settle_call(self.state, call, self.outcomes.get(call.tool, OK))
        assert self.state.pending == before
