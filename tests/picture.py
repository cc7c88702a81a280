"""`python -m tests.picture` draws docs/images/terminal.svg: a run half-way, as the code of today shows it."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.terminal_theme import MONOKAI

import cli
from contracts.run.question import QuestionKind
from contracts.run.signals import Decision
from contracts.run.state import QuestionView
from contracts.run.turn import ModelTurn, PassedOver, Usage
from contracts.tool import ToolCall, ToolOutcome
from decisions.ids import call_digest
from perdure.client.run_events import Called, Happening, Live, Resumed, Started, Thinking, Thought, Waiting
from perdure.terminal import progress
from perdure.terminal.console import SafeConsole
from perdure.terminal.prompt import what_is_possible
from perdure.terminal.run_view import Screen

PICTURE = Path(cli.__file__).parent / "docs" / "images" / "terminal.svg"
COLUMNS, ROWS = 100, 36
START = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
GOAL = "Refund the orders of Friday's outage that were charged twice, and write down what was done."
PLAN = """\
Frame: every order that was charged twice is refunded once, and a note tells which.

Plan:
1. Find Friday's orders with two charges.
2. Check each against the ledger of payments.
3. Refund the second charge.
4. Write the note."""
REFUND = {"order": "A-1731", "charge": "ch_9f2", "amount_eur": 48.5, "reason": "charged twice in Friday's outage"}
MODEL = "claude-sonnet-4-5"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def turn(number: int, text: str, usage: Usage, *uses: tuple[str, dict[str, Any]], **more: Any) -> Thought:
    content = [{"type": "text", "text": text}, *({"type": "tool_use", "name": n, "input": given} for n, given in uses)]
    reply = ModelTurn(
        content=content, stop_reason="tool_use", model=more.pop("model", MODEL), usage=usage, duration_ms=2300, **more
    )
    return Thought("plan" if number == 1 else "reflect", number, reply)


def call(step: int, tool: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(step=step, tool=tool, tool_use_id=str(step), arguments=arguments)


def outcome(result: str, milliseconds: int) -> ToolOutcome:
    return ToolOutcome(result=result, duration_ms=milliseconds)


def happened() -> list[tuple[float, Happening]]:
    """Seconds after the start, and what happened then."""
    orders, ledger = call(1, "orders", {"query": "day:2026-01-02 charges:2"}), call(2, "ledger", {"order": "A-1731"})
    refund = call(3, "refund", REFUND)
    asks = QuestionView(
        id="q1",
        kind=QuestionKind.approval,
        text="",
        options=(Decision.approve, Decision.approve_tool, Decision.deny),
        call=call_digest("refund", REFUND),
    )
    found = ("update_run_journal", {"current_state": "[x] 1. one order, A-1731\n[x] 2. the ledger has both charges"})
    overloaded = (PassedOver(model="claude-opus-4-5", why="overloaded (529)"),)
    return [
        (0, Started(GOAL)),
        (2, turn(1, PLAN, Usage(input=412, cache_write=1890, output=118), ("orders", {}), cost_usd=0.0101)),
        (3, Called(orders, outcome("1 order: A-1731, 48.50 EUR, charged 09:12:03 and 09:12:41", 340))),
        (3, Called(ledger, outcome("ch_9f1 captured, ch_9f2 captured, no refund", 180))),
        (
            7,
            turn(
                2,
                "Both charges of A-1731 went through, so the second one is to be refunded.",
                Usage(input=655, cache_read=1890, output=96),
                found,
                ("refund", REFUND),
                cost_usd=0.004,
                passed_over=overloaded,
            ),
        ),
        (8, Waiting("waiting_on_human", "human: approve refund", asks)),
        (31, Resumed()),
        (33, Called(refund, outcome("refunded 48.50 EUR, re_771", 1240))),
        (34, Thinking("reflect", 3)),
        (37, Live("The refund re_771 is made. What is left is the note: which order, which charge, and who approved")),
    ]


def draw() -> str:
    """The picture, as SVG. It is the same each time."""
    console = SafeConsole(
        file=Terminal(), record=True, width=COLUMNS, height=ROWS, force_terminal=True, highlight=False, emoji=False,
        color_system="truecolor", _environ={"TERM": "xterm-256color"},
    )  # fmt: skip
    screen = Screen(console)
    console.print("[bold]run[/]   260105-5d1c77aa")
    for seconds, each in happened():
        screen.show(each, START + timedelta(seconds=seconds))
        if isinstance(each, Waiting) and each.question:
            console.print(f"  [dim]{what_is_possible(each.question)}[/]\n  answer> 1")
    screen.progress.max_steps = 20
    with patch.object(progress, "now", lambda: START + timedelta(seconds=38)):
        for line in screen.progress.lines(console, COLUMNS - 1, ROWS // 3):
            console.print(line)
    return console.export_svg(title="perdure run", theme=MONOKAI, unique_id="perdure")


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
