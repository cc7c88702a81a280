"""States, calls and replies of a run with the tools look, peek (reads), save (keyed), charge (once), vote (outside)
and guarded (approved by a person). The facts a decision does not look at have defaults.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from perdure.contracts.run.state import Call, Ending, RunState
from perdure.contracts.run.turn import ModelTurn, Usage
from perdure.contracts.tool import Approval, Effect, ToolKind, ToolOutcome, ToolRoute
from perdure.decisions.run import call_state, loop
from perdure.decisions.run.reply import take_turn
from perdure.decisions.run.transcript import Transcript, call_part, goal_part, note_part, reply_part
from perdure.decisions.tools import STATE_TOOLS, routes
from tests.drawn import running

NOW = datetime(2026, 2, 16, 12, tzinfo=UTC)
OK = ToolOutcome(result="fine")


def new_route(name: str, effect: Effect = Effect.read, **fields: Any) -> ToolRoute:
    fields = {"kind": ToolKind.native, "timeout": timedelta(seconds=30), **fields}
    return ToolRoute(name=name, effect=effect, **fields)


TOOLS = (
    *routes(),
    new_route("look"),
    new_route("peek"),
    new_route("save", Effect.keyed),
    new_route("charge", Effect.once),
    new_route("vote", kind=ToolKind.signal),
    new_route("guarded", approval=Approval.always),
)
new_state = partial(running, TOOLS)


def new_turn(
    text: str = "", *uses: tuple[str, Any], stop: str | None = None, prefix: str = "u", **fields: Any
) -> ModelTurn:
    """A reply: `new_turn("text", ("look", {}), …)`. Its tool uses are `u0`, `u1`, …, or begin with `prefix`."""
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [
        {"type": "tool_use", "id": f"{prefix}{number}", "name": name, "input": arguments}
        for number, (name, arguments) in enumerate(uses)
    ]
    base = {"model": "m", "usage": Usage(input=1, output=1), "duration_ms": 5}
    return ModelTurn(content=content, stop_reason=stop or ("tool_use" if uses else "end_turn"), **{**base, **fields})


def new_call(tool: str = "look", step: int | None = 1, **fields: Any) -> Call:
    route = next(route for route in TOOLS if route.name == tool)
    base = {"tool_use_id": f"use-{step}", "kind": route.kind, "effect": route.effect, "arguments": {}}
    return Call(tool=tool, step=step, **{**base, **fields})


@dataclass
class Player:
    """Drives a run over the decisions alone, from reply to reply. `outcomes` has the result of each tool."""

    state: RunState
    outcomes: dict[str, ToolOutcome] = field(default_factory=dict)
    transcript: Transcript = field(default_factory=Transcript)
    issued: list[int] = field(default_factory=list)
    ends: list[Ending] = field(default_factory=list)
    final_turns: int = 0

    def __post_init__(self) -> None:
        self.transcript.append(goal_part("see", {}))

    @property
    def ending(self) -> Ending:
        ending = self.ends[-1] if self.ends else self.state.ending
        assert ending is not None
        return ending

    def reply(self, turn: ModelTurn) -> None:
        taken = take_turn(self.state, turn)
        self.state = taken.state
        if taken.keep:
            self.transcript.append(reply_part(turn))
        if taken.note:
            self.transcript.append(note_part(taken.note))

    def settle(self) -> loop.Move:
        """Makes calls until the model is to be asked, or the run has ended."""
        while True:
            move = loop.next_move(self.state, history_is_long=False)
            match move:
                case loop.Act(batch):
                    self._make_calls(batch)
                case loop.CloseTurn():
                    for call in self.state.calls:
                        self.transcript.append(call_part(call))
                    self.state = loop.settle_turn(self.state).state
                case loop.FinalTurn():
                    self.state = loop.start_final_turn(self.state)
                    self.final_turns += 1
                case loop.End(ending):
                    self.ends.append(ending)
                    return move
                case _:
                    return move

    def play(self, text: str, *uses: tuple[str, Any], **fields: Any) -> loop.Move:
        """Takes a reply, whose tool uses have ids of their own, and makes its calls."""
        self.reply(new_turn(text, *uses, **{"prefix": f"t{self.state.turns}-", **fields}))
        return self.settle()

    def _make_calls(self, batch: tuple[Call, ...]) -> None:
        before = self.state.pending
        self.state = call_state.issue_calls(self.state, batch, NOW)
        assert len(self.state.pending) == len(before) + sum(call.step is not None for call in batch)
        self.issued += [call.step for call in batch if call.step is not None]
        for call in batch:
            outcome = self.outcomes.get(call.tool, OK)
            if call.tool in STATE_TOOLS:
                self.state, outcome = call_state.apply_state_tool(self.state, call)
            self.state = call_state.settle_call(self.state, call, outcome)
        assert self.state.pending == before


def new_player(**fields: Any) -> Player:
    return Player(new_state(**fields))
