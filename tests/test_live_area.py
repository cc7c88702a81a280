"""What changes at the bottom of a terminal: it fits, shows what is going on, and leaves nothing behind."""

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.cells import cell_len

from perdure.client.run_events import (
    ActivityFailed,
    ModelCallStarted,
    ModelReplied,
    PartialText,
    RateLimitWait,
    RunEvent,
    RunStarted,
    ToolCallFinished,
    ToolCallStarted,
    WaitEnded,
    WaitStarted,
)
from perdure.contracts.run.turn import ModelTurn, SkippedModel, Usage
from perdure.contracts.tool import ToolCall, ToolOutcome
from perdure.terminal import progress
from perdure.terminal.console import SafeConsole, neutralize_controls
from perdure.terminal.run_view import RunScreen
from tests import picture
from tests.screen import Terminal, TerminalScreen

WIDTHS = (60, 80, 120, 200)
START = datetime(2026, 1, 1, tzinfo=UTC)
PLAN = "Frame: all is known.\n\nPlan:\n" + "\n".join(
    f"{n}. 日本語 the item {n} 👩‍👩‍👧 " + "and more " * 20 for n in range(1, 7)
)
EVIL = "red \x1b[31m, title \x1b]0;x\x07, C1 \x9b2J, back\u202ewards\u2066, \x00\x08\x7f\r end, half \ud800"
TICKS = ("update_run_journal", {"current_state": "[x] 1.\n[x] 2."})
NOTE = ToolCall(step=1, tool="note", tool_use_id="u", arguments={"text": EVIL})


class ScreenUnderTest:
    """A screen of so many columns, and what a person sees of it."""

    def __init__(self, columns: int, rows: int = 24) -> None:
        self.file = Terminal()
        self.console = SafeConsole(
            file=self.file,
            width=columns,
            height=rows,
            force_terminal=True,
            emoji=False,
            highlight=False,
            _environ={"TERM": "xterm-256color"},
        )
        self.screen = RunScreen(self.console)
        self.seen = TerminalScreen(columns)
        self._read = 0

    def look(self) -> list[str]:
        written = self.file.getvalue()
        self.seen.write(written[self._read :].replace("\n", "\r\n"))  # as the terminal's driver does
        self._read = len(written)
        return self.seen.lines

    async def show_events(self, *events: RunEvent) -> list[str]:
        for event in events:
            self.screen.show_event(replace(event, at=START))
        self.screen._area.draw()
        return self.look()


def model_reply(turn: int, text: str = "", *uses: tuple[str, dict[str, Any]], **more: Any) -> ModelReplied:
    blocks = [{"type": "tool_use", "id": "u", "name": name, "input": given} for name, given in uses]
    usage = Usage(input=100, output=10, cache_read=300)
    content = [{"type": "text", "text": text}, *blocks]
    reply = ModelTurn(
        content=content, stop_reason="x", model="m", usage=usage, duration_ms=1000, cost_usd=0.0123, **more
    )
    return ModelReplied("plan" if turn == 1 else "reflect", turn, reply)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "utc_now", lambda: START + timedelta(seconds=75))


@pytest.mark.parametrize("columns", WIDTHS)
async def test_the_area_shows_the_plan_the_open_calls_and_the_totals(columns: int) -> None:
    it = ScreenUnderTest(columns)
    async with it.screen.live_display():
        await it.show_events(RunStarted("all"), model_reply(1, PLAN, TICKS))
        lasting = len(it.seen.lines) - len(it.screen._area._drawn)
        note = NOTE.evolve(arguments={"text": "milk"})
        lines = await it.show_events(ModelCallStarted("reflect", 2), PartialText("so far " * 99), ToolCallStarted(note))
        area = lines[-len(it.screen._area._drawn) :]
        assert lasting
        assert len(area) <= 24 // 3
        assert all(cell_len(line) < columns for line in area)
        assert area[0].startswith("│ ")
        assert "  ✓ 2 日本語 the item 2" in "\n".join(area)
        assert "  · 3 日本語 the item 3" in "\n".join(area)
        assert re.search(r"plan  2 of 6 done, \d not shown", "\n".join(area))
        assert re.search(r"note milk · step 1 · 1:15 min$", area[-2])
        assert area[-1].startswith("step 1")
        assert "USD 0.0123" in area[-1]
        assert ("400 (75% cached) → 10 tokens" in area[-1]) == (columns > 60)
        assert not it.seen.hides_cursor  # it is back, whatever becomes of the process
    assert not any(line.startswith(("─", "│", "step", "plan", "  ·")) for line in it.look())
    assert not it.seen.hides_cursor


@pytest.mark.parametrize("rows", [1, 3, 6, 12, 60])
async def test_the_area_takes_at_most_a_third_of_the_screen(rows: int) -> None:
    it = ScreenUnderTest(80, rows)
    async with it.screen.live_display():
        await it.show_events(model_reply(1, PLAN), ModelCallStarted("reflect", 2), PartialText("words " * 200))
        assert 1 <= len(it.screen._area._drawn) <= max(rows // 3, 1)
        assert it.screen._area._drawn[0].plain.startswith("─") == (rows == 60)
        assert it.look()[-1].startswith("step 0")


@pytest.mark.parametrize("columns", WIDTHS)
async def test_lasting_lines_come_above_the_area_which_leaves_nothing_behind(columns: int) -> None:
    it = ScreenUnderTest(columns)
    lasting: list[str] = []
    async with it.screen.live_display():
        for turn in range(1, 6):
            await it.show_events(
                ModelCallStarted("plan", turn),
                PartialText("word " * 30 * turn),
                model_reply(turn, "said"),
                ToolCallStarted(NOTE),
            )
            lasting += [f"◆ {'plan' if turn == 1 else 'reflect'}", "  said"]
    said = " ".join(" ".join(it.look()).split())
    assert re.sub(r" turn.*?· m ", " ", f"{said} ") == "".join(f"{' '.join(line.split())} " for line in lasting)


@pytest.mark.parametrize("narrower", [100, 79, 60])
async def test_a_window_that_becomes_narrower_leaves_no_remains(narrower: int) -> None:
    it = ScreenUnderTest(120)
    async with it.screen.live_display():
        await it.show_events(
            RunStarted("all"), model_reply(1, PLAN), ModelCallStarted("reflect", 2), PartialText("words " * 200)
        )
        it.look()
        it.seen.narrow_to(narrower)
        it.console.width = narrower
        lines = await it.show_events()
        assert len([line for line in lines if line.startswith("step ")]) == 1
        assert len([line for line in lines if line.startswith("plan ")]) == 1
    assert not [line for line in it.look() if line.startswith(("─", "│", "step", "plan", "  ·"))]


async def test_nothing_is_written_while_nothing_changes() -> None:
    it = ScreenUnderTest(80)
    async with it.screen.live_display():
        await it.show_events(RunStarted("all"), model_reply(1, PLAN))
        before = it.file.getvalue()
        for _ in range(3):
            await asyncio.sleep(0)
            it.screen._area.draw()
        assert it.file.getvalue() == before


@pytest.mark.parametrize("columns", WIDTHS)
async def test_no_code_of_a_model_or_tool_reaches_the_terminal(columns: int) -> None:
    it = ScreenUnderTest(columns)
    failed = ToolOutcome.model_validate({"status": "error", "error": {"kind": "fault", "message": EVIL}})
    async with it.screen.live_display():
        lines = await it.show_events(
            RunStarted(EVIL),
            ModelCallStarted("plan", 1),
            PartialText(EVIL),
            model_reply(1, f"1. {EVIL}\n2. {EVIL}", passed_over=(SkippedModel(model=EVIL, why=EVIL),)),
            RateLimitWait(EVIL),
            ToolCallStarted(NOTE),
            ToolCallFinished(NOTE, ToolOutcome(result=EVIL)),
            ToolCallFinished(NOTE, failed),
            WaitStarted("waiting_on_tool", EVIL),
            ModelCallStarted("reflect", 2),
            PartialText(EVIL),
        )  # the screen fails at each code that is not ours, and at each character that is not shown
    assert "␛[31m" in "\n".join(lines)
    assert "\u202e" not in it.file.getvalue()


def test_printable_text_stays_unchanged() -> None:
    assert neutralize_controls("Grüße, 日本語 👩‍👩‍👧\n\tעברית") == "Grüße, 日本語 👩‍👩‍👧\n\tעברית"
    assert neutralize_controls(EVIL).isprintable() is False  # rich drops what is left: bell, backspace, carriage return
    assert len(neutralize_controls(EVIL)) == len(EVIL)


def test_invisible_characters_are_replaced_in_the_terminal() -> None:
    hidden = "\u200b\U000e0041\u115f\u034f\u2062\ufff9\ue000\u0378\u202e"
    assert neutralize_controls(f"pay{hidden}\t9\u00a0€") == f"pay{chr(0xFFFD) * len(hidden)}\t9\u00a0€"


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, None])
async def test_without_a_terminal_each_event_is_one_line(environ: dict[str, str] | None) -> None:
    file = Terminal() if environ else StringIO()
    console = SafeConsole(file=file, width=80, force_terminal=bool(environ), emoji=False, _environ=environ or {})
    screen = RunScreen(console)
    shown: list[RunEvent] = [
        RunStarted("all\nof it"),
        ModelCallStarted("plan", 1),
        PartialText("fir"),
        model_reply(1, PLAN, TICKS),
        ToolCallStarted(NOTE),
        ToolCallFinished(NOTE, ToolOutcome(result="x\n" * 500)),
        WaitStarted("waiting_on_tool", "a result"),
    ]
    async with screen.live_display():
        for event in shown:
            before = len(file.getvalue().splitlines())
            screen.show_event(event)
            lines = 0 if isinstance(event, ModelCallStarted | PartialText | ToolCallStarted) else 1
            assert len(file.getvalue().splitlines()) - before == lines
    assert "\x1b" not in file.getvalue()


async def test_the_area_works_without_colours() -> None:
    it = ScreenUnderTest(80)
    it.console.no_color = True
    async with it.screen.live_display():
        await it.show_events(
            RunStarted("all"),
            ToolCallStarted(NOTE),
            ToolCallFinished(NOTE, ToolOutcome(result="x")),
            ModelCallStarted("plan", 1),
        )
        assert it.look()[-1].startswith("step 1")
    assert not re.search(r"\x1b\[[0-9;]*[34][0-7]m", it.file.getvalue())


async def test_a_hold_is_a_lasting_line_once_a_turn() -> None:
    it = ScreenUnderTest(100)
    held = [RateLimitWait(f"held back by the rate limit of anthropic, {seconds} s") for seconds in (3, 2, 1)]
    async with it.screen.live_display():
        lines = await it.show_events(ModelCallStarted("plan", 1), *held)
        assert re.search("held back.* 1 s · 1:15 min$", lines[-2])
        lines = await it.show_events(PartialText("so far"))
        assert [line for line in lines if "held back" in line] == [lines[0]]
    assert len([line for line in it.look() if "held back" in line]) == 1


def test_the_picture_in_the_docs_is_current() -> None:
    assert picture.PICTURE.read_text(encoding="utf-8") == picture.draw(), "draw it anew: python -m tests.picture"


async def test_an_answer_that_history_has_already_is_not_shown_as_one_that_is_being_written() -> None:
    it = ScreenUnderTest(80)
    async with it.screen.live_display():
        lines = await it.show_events(ModelCallStarted("plan", 1), model_reply(1, "said"), PartialText("sai"))
        assert not any(line.startswith("│") for line in lines)


async def test_other_open_calls_stay_visible() -> None:
    it = ScreenUnderTest(80)
    others = [NOTE.evolve(step=step, arguments={}) for step in (2, 3)]
    asks = WaitStarted("waiting_on_human", "human: approve charge")
    async with it.screen.live_display():
        await it.show_events(
            ModelCallStarted("plan", 1), model_reply(1), *(ToolCallStarted(call) for call in (NOTE, *others))
        )
        lines = await it.show_events(
            asks, WaitEnded(), ActivityFailed("note · step 3", "gone"), ToolCallFinished(NOTE, ToolOutcome(result="x"))
        )
        assert re.search("note · step 2 · 1:15 min$", lines[-2])
        assert not re.search("step 1 ·|step 3 ·|waiting", lines[-2] + lines[-3])
