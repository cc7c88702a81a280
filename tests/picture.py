"""`python -m tests.picture` draws docs/images/terminal.svg: a run half-way, as the code of today shows it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.terminal_theme import MONOKAI

from perdure import cli
from perdure.client.run_events import (
    ModelCallStarted,
    ModelReplied,
    PartialText,
    RunEvent,
    RunStarted,
    ToolCallFinished,
    WaitEnded,
    WaitStarted,
)
from perdure.contracts.run.signals import Decision, QuestionKind
from perdure.contracts.run.state import QuestionView
from perdure.contracts.run.turn import ModelTurn, SkippedModel, Usage
from perdure.contracts.tool import ToolCall, ToolOutcome
from perdure.decisions.ids import call_digest
from perdure.terminal import progress
from perdure.terminal.console import SafeConsole
from perdure.terminal.prompt import format_input_hint
from perdure.terminal.run_view import RunScreen
from tests.screen import Terminal

PICTURE = Path(cli.__file__).parents[1] / "docs" / "images" / "terminal.svg"
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


def turn(number: int, text: str, usage: Usage, *uses: tuple[str, dict[str, Any]], **more: Any) -> ModelReplied:
    content = [{"type": "text", "text": text}, *({"type": "tool_use", "name": n, "input": given} for n, given in uses)]
    reply = ModelTurn(
        content=content, stop_reason="tool_use", model=more.pop("model", MODEL), usage=usage, duration_ms=2300, **more
    )
    return ModelReplied("plan" if number == 1 else "reflect", number, reply)


def call(step: int, tool: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(step=step, tool=tool, tool_use_id=str(step), arguments=arguments)


def outcome(result: str, milliseconds: int) -> ToolOutcome:
    return ToolOutcome(result=result, duration_ms=milliseconds)


def happened() -> list[tuple[float, RunEvent]]:
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
    overloaded = (SkippedModel(model="claude-opus-4-5", why="overloaded (529)"),)
    return [
        (0, RunStarted(GOAL)),
        (2, turn(1, PLAN, Usage(input=412, cache_write=1890, output=118), ("orders", {}), cost_usd=0.0101)),
        (3, ToolCallFinished(orders, outcome("1 order: A-1731, 48.50 EUR, charged 09:12:03 and 09:12:41", 340))),
        (3, ToolCallFinished(ledger, outcome("ch_9f1 captured, ch_9f2 captured, no refund", 180))),
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
        (8, WaitStarted("waiting_on_human", "human: approve refund", (asks,))),
        (31, WaitEnded()),
        (33, ToolCallFinished(refund, outcome("refunded 48.50 EUR, re_771", 1240))),
        (34, ModelCallStarted("reflect", 3)),
        (
            37,
            PartialText(
                "The refund re_771 is made. What is left is the note: which order, which charge, and who approved"
            ),
        ),
    ]


def draw() -> str:
    """The picture, as SVG. It is the same each time."""
    console = SafeConsole(
        file=Terminal(), record=True, width=COLUMNS, height=ROWS, force_terminal=True, highlight=False, emoji=False,
        color_system="truecolor", _environ={"TERM": "xterm-256color"},
    )  # fmt: skip
    screen = RunScreen(console)
    console.print("[bold]run[/]   260105-5d1c77aa")
    for seconds, each in happened():
        screen.show_event(replace(each, at=START + timedelta(seconds=seconds)))
        if isinstance(each, WaitStarted) and each.questions:
            console.print(f"  [dim]{format_input_hint(each.questions[0])}[/]\n  answer> 1")
    screen.progress.max_steps = 20
    with patch.object(progress, "utc_now", lambda: START + timedelta(seconds=38)):
        for line in screen.progress.render_lines(console, COLUMNS - 1, ROWS // 3):
            console.print(line)
    return console.export_svg(title="perdure run", theme=MONOKAI, unique_id="perdure")


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
