"""The progress of a run, from its events: the figures of the last line, and the contents of the live area."""

import os
import re
import sys
import termios
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.control import Control
from rich.segment import ControlType, Segment
from rich.text import Text

from perdure.client import run_events
from perdure.client.run_events import RunEvent
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.state import RunView
from perdure.contracts.run.turn import Acceptance, ModelTurn, PolicyReview, Summary, Usage
from perdure.contracts.tool import ToolCall
from perdure.decisions.run.journal import parse_framing, run_journal_tool
from perdure.decisions.run.state import add_unpriced
from perdure.decisions.run.transcript import join_text_blocks
from perdure.decisions.text.formatting import call_line, format_unknown_cost, plan_items, ticked_items
from perdure.decisions.tools import APPEND_JOURNAL, UPDATE_JOURNAL, unwrap_use
from perdure.terminal.console import fit_line, neutralize_controls

MAX_TEXT_LINES = 6  # lines of the answer in progress
MIN_RULED_HEIGHT = 10  # minimum height with room for a rule
MAX_ACTIVITY_LINES = 3  # lines for concurrent activities
# Joiners and variants: terminals disagree about the width of the combined character, so they are removed.
_JOINERS = re.compile("[\u200d\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
_SPINS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

Doing = tuple[str, datetime]  # a description, and the start


@dataclass
class Progress:
    usage: Usage = field(default_factory=Usage)
    cost_usd: float = 0.0  # of the models with a known price
    unpriced: dict[str, int] = field(default_factory=dict)  # tokens of the others, by model
    turns: int = 0
    steps: int = 0
    max_steps: int | None = None
    began: datetime | None = None
    latest: datetime | None = None
    plan: tuple[str, ...] = ()
    journal: Journal = field(default_factory=Journal)
    doing: dict[str, Doing] = field(default_factory=dict)
    text: str = ""  # the answer in progress

    def note_time(self, time: datetime | None) -> datetime:
        """Record the time of an event; an event that is not in the history happens now."""
        if time is not None:
            self.began, self.latest = self.began or time, time
        return time or utc_now()

    def apply_state(self, view: RunView, journal: Journal | None) -> None:
        """Take over state that only the run has; the plan of a resumed run is in another run's history."""
        self.max_steps = view.max_steps
        if view.origin and not self.plan:
            self.plan, self.journal = plan_items(view.plan), journal or self.journal

    def apply_event(self, event: RunEvent) -> None:
        at = self.note_time(event.at)
        match event:
            case run_events.ModelCallStarted(phase, turn):
                self.doing = {"model": (f"{phase} · turn {turn}", at)}
            case run_events.ModelReplied(turn=turn, reply=reply):
                self._end_model_call(turn, reply)
            case run_events.CallsReviewed(reviews):
                for review in reviews:
                    self._add_usage(review)
            case run_events.ContextFilled():
                self.doing["model"] = ("making room", at)
            case run_events.ContextCompacted(used) | run_events.OutcomeChecked(used):
                self._add_usage(used)
                self.doing.clear()
            case run_events.ToolCallStarted(call):
                self._start_call(call, at)
            case run_events.ToolCallFinished(call):
                self.doing.pop(f"step {call.step}", None)
                self.steps = max(self.steps, call.step)
            case run_events.FeatureEvent():
                self.steps = max(self.steps, event.step)
                self.doing.pop(event.activity, None)
                if event.doing:
                    self.doing[event.activity] = (event.doing, at)
            case run_events.ActivityFailed(activity):
                self._end_activity(activity)
            case run_events.WaitStarted(waiting_for=about):
                self.doing["waiting"] = (f"waiting for {about}", at)
            case run_events.HoldEnded() | run_events.RunHeld() | run_events.PartialText():
                self._apply_live(event, at)
            case run_events.ToolCallWaiting(text):
                self.doing["waiting"] = (text, at)
            case run_events.WaitEnded():
                self.doing.pop("waiting", None)
            case run_events.RunStarted() | run_events.RunEnded():
                self.doing.clear()
            case (
                run_events.NoticeAdded()
                | run_events.SignalReceived()
                | run_events.AnswerReceived()
                | run_events.AnswerRejected()
                | run_events.QuestionClosed()
                | run_events.ToolCallRefused()
                | run_events.ToolResultReceived()
                | run_events.ContinuedAsNew()
                | run_events.ActivityRetrying()
                | run_events.UnreadableEvent()
            ):
                pass  # it has only a permanent line

    def _apply_live(
        self, event: run_events.HoldEnded | run_events.RunHeld | run_events.PartialText, at: datetime
    ) -> None:
        match event:
            case run_events.HoldEnded():
                self.doing.pop("paused", None)
            case run_events.RunHeld(why=reason):
                self.doing["paused"] = (f"held: {reason}", at)
            case run_events.RateLimitWait(reason):
                self.doing["held"] = (reason, at)
            case run_events.BatchWait(text) if self.is_thinking:
                self.doing["model"] = (text, self.doing["model"][1])
            case run_events.PartialText(text):
                self._show_partial_text(text)

    def _end_model_call(self, turn: int, reply: ModelTurn) -> None:
        self.turns, self.text = turn, ""
        self._add_usage(reply)
        text = join_text_blocks(reply.content)
        if turn == 1 and text:
            self.plan = plan_items(parse_framing(text).plan)
        for use in (unwrap_use(block) for block in reply.content if block.get("type") == "tool_use"):
            if use["name"] in (UPDATE_JOURNAL, APPEND_JOURNAL) and isinstance(use.get("input"), dict):
                self.journal, _ = run_journal_tool(self.journal, use["name"], use["input"])
        self.doing.clear()

    @property
    def is_thinking(self) -> bool:
        return "model" in self.doing

    def _show_partial_text(self, text: str) -> None:
        """Show the answer in progress. It is polled, so it can arrive after the history has the whole answer."""
        self.doing.pop("held", None)
        self.text = text if self.is_thinking else ""

    def _add_usage(self, reply: ModelTurn | Summary | Acceptance | PolicyReview) -> None:
        self.usage += reply.usage
        if reply.cost_usd is None:
            self.unpriced = add_unpriced(self.unpriced, reply)
        else:
            self.cost_usd += reply.cost_usd

    def _start_call(self, call: ToolCall, since: datetime) -> None:
        self.doing.pop("model", None)
        self.steps = max(self.steps, call.step)
        self.doing[f"step {call.step}"] = (f"{call_line(call.tool, call.arguments or {})} · step {call.step}", since)

    def _end_activity(self, activity: str) -> None:
        """End an activity, or the call `<tool> · step <n>`; concurrent calls stay."""
        _, _, step = activity.rpartition(" · ")
        for key in ("model", "held") if step not in self.doing else (step,):
            self.doing.pop(key, None)

    @property
    def seconds(self) -> float:
        return (self.latest - self.began).total_seconds() if self.latest and self.began else 0.0

    @property
    def _cost(self) -> str:
        return format_unknown_cost(self.cost_usd, self.unpriced) if self.unpriced else format_cost(self.cost_usd)

    @property
    def facts(self) -> str:
        """The figures: `2 steps · 3 turns · 12,345 (67% cached) → 1,234 tokens · USD 0.0123 · 42 s`."""
        counts = (format_count(self.steps, "step"), format_count(self.turns, "turn"))
        return join_facts(*counts, format_tokens(self.usage), self._cost, format_seconds(self.seconds))

    def render_lines(self, console: Console, width: int, height: int) -> list[Text]:
        """Return the lines of the live area: the answer in progress, the plan, current activities, and the figures."""
        running = self._activity_lines(width)[: max(min(MAX_ACTIVITY_LINES, height - 1), 0)]
        rule = [Text("─" * width, style="dim")] if height >= MIN_RULED_HEIGHT else []
        room = height - 1 - len(running) - len(rule)
        text = self._text_lines(console, width, min(MAX_TEXT_LINES, room))
        plan = self._plan_lines(width, room - min(len(text), room // 2 + room % 2))
        text = text[max(len(text) - (room - len(plan)), 0) :]
        return [*rule, *text, *plan, *running, self._figures_line(width)]

    def _text_lines(self, console: Console, width: int, limit: int) -> list[Text]:
        if not self.text.strip() or limit < 1:
            return []
        text = Text(neutralize_controls(_JOINERS.sub("", self.text.strip())))
        lines = text.wrap(console, max(width - 2, 1))
        return [Text.assemble(("│ ", "dim"), line) for line in lines[-limit:]]

    def _plan_lines(self, width: int, limit: int) -> list[Text]:
        """Return as much of the plan as fits, from the item before the first open one."""
        if len(self.plan) < 2 or limit < 2:
            return []
        ticked = ticked_items(self.plan, self.journal)
        first = next((number for number in range(1, len(self.plan) + 1) if number not in ticked), len(self.plan))
        start = max(min(first - 2, len(self.plan) - (limit - 1)), 0)
        shown = list(enumerate(self.plan, 1))[start : start + limit - 1]
        head = f"plan  {len(ticked)} of {len(self.plan)} done" if ticked else f"plan  {len(self.plan)} items"
        hidden = len(self.plan) - len(shown)
        lines = [Text(f"{head}{f', {hidden} not shown' if hidden else ''}", style="dim")]
        for number, item in shown:
            mark, style = ("✓", "green") if number in ticked else ("·", "dim")
            lines.append(
                Text.assemble((f"  {mark} ", style), fit_line(f"{number} {_JOINERS.sub('', item)}", width - 4))
            )
        return lines

    def _activity_lines(self, width: int) -> list[Text]:
        spin = _SPINS[int(utc_now().timestamp() * 8) % len(_SPINS)]
        lines = []
        for activity, since in list(self.doing.values())[-MAX_ACTIVITY_LINES:]:
            elapsed = format_seconds((utc_now() - since).total_seconds())
            line = fit_line(_JOINERS.sub("", activity), width - len(elapsed) - 5)
            lines.append(Text.assemble((f"{spin} ", "cyan"), line, (f" · {elapsed}", "dim")))
        return lines

    def _figures_line(self, width: int) -> Text:
        """Return all figures, or the most important ones that fit."""
        step = f"step {self.steps} of {self.max_steps}" if self.max_steps else f"step {self.steps}"
        cost = format_cost(self.cost_usd)
        if self.unpriced:
            cost = f"{cost} and more" if cost else "USD unknown"
        turn, tokens = f"turn {self.turns}", format_tokens(self.usage)
        since = format_seconds((utc_now() - self.began).total_seconds()) if self.began else "0.0 s"
        choices = ((step, turn, tokens, cost, since), (step, tokens, cost, since), (step, cost, since), (step, since))
        lines = [join_facts(*facts) for facts in choices]
        return Text(next((line for line in lines if len(line) <= width), fit_line(lines[-1], width)), style="dim")


def utc_now() -> datetime:
    return datetime.now(UTC)


def format_tokens(usage: Usage) -> str:
    """Format token counts, and the web searches: `12,345 (67% cached) → 1,234 tokens, 2 web searches`."""
    read = usage.total - usage.output
    cached = f" ({usage.cache_read * 100 // read}% cached)" if usage.cache_read else ""
    about = "about " if usage.is_estimated else ""
    return f"{about}{read:,}{cached} → {usage.output:,} tokens{format_searches(usage)}"


def format_searches(usage: Usage) -> str:
    return "" if not usage.searches else f", {usage.searches} web search{'es' if usage.searches > 1 else ''}"


def format_cost(cost_usd: float) -> str:
    """Format a cost; the text is empty if it is zero."""
    return f"USD {cost_usd:.4f}" if cost_usd else ""


def format_seconds(seconds: float) -> str:
    """Format a duration: `0.3 s`, `42 s`, `3:05 min`, `2:03 h`."""
    whole = int(max(seconds, 0))
    if whole < 10:
        return f"{max(seconds, 0):.1f} s"
    if whole < 60:
        return f"{whole} s"
    large, small, unit = (*divmod(whole, 60), "min") if whole < 3600 else (*divmod(whole // 60, 60), "h")
    return f"{large}:{small:02} {unit}"


def format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def join_facts(*facts: str) -> str:
    return " · ".join(fact for fact in facts if fact)


AreaContent = Callable[[int, int], list[Text]]  # returns the status lines for a maximum width and height
HEIGHT_SHARE = 3  # the area takes at most a third of the screen's height
_ECHO = 3  # index of the local modes in the attributes of termios
# Synchronized output with a hidden cursor; terminals ignore codes that they do not know.
_BEGIN, _END = "\x1b[?2026h\x1b[?25l", "\x1b[?25h\x1b[?2026l"


class LiveArea(RenderHook):
    """A live area that redraws in one write, and only after a change. Keyboard echo is off, as typed text would break
    up the lines.
    """

    def __init__(self, console: Console, lines: AreaContent) -> None:
        self._console = console
        self._lines = lines
        self._drawn: list[Text] = []
        self._width = 0  # of the screen at the last drawing
        self._modes: list[Any] | None = None  # terminal attributes to restore
        self._is_open = False

    def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._disable_echo()
            self._console.push_render_hook(self)
            self.draw()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._console.control(*self._erase_codes())
            self._console.pop_render_hook()
            self._drawn = []
            self._restore_terminal()

    def draw(self) -> None:
        if self._is_open and (self._current_lines() != self._drawn or self._screen_width() != self._width):
            with self._console:
                self._console.print(Control())  # the render hook draws

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_control_of(_BEGIN), *self._erase_codes(), *renderables, self] if self._is_open else renderables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        self._drawn, self._width = self._current_lines(), self._screen_width()
        for number, line in enumerate(self._drawn):
            yield from line.render(console, end="\n" if number < len(self._drawn) - 1 else "")
        yield _control_of(_END).segment

    def _current_lines(self) -> list[Text]:
        width, height = self._screen_width() - 1, max(self._console.height // HEIGHT_SHARE, 1)
        lines = self._lines(width, height)[-height:]
        for line in lines:
            line.plain = neutralize_controls(line.plain)
            line.truncate(width, overflow="ellipsis")
        return lines

    def _screen_width(self) -> int:
        """Return the screen's real width: COLUMNS may exceed it, and a wrapped line cannot be erased."""
        with suppress(OSError, ValueError):
            return min(self._console.width, os.get_terminal_size(self._console.file.fileno()).columns or sys.maxsize)
        return self._console.width

    def _erase_codes(self) -> list[Control]:
        rows = self._used_rows()
        up = [Control((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))] * (rows - 1)
        return [Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)), *up] if rows else []

    def _used_rows(self) -> int:
        """Return the number of rows in use: most terminals wrap existing lines when they become narrower."""
        columns = self._screen_width()
        if columns >= self._width or "XTERM_VERSION" in os.environ:
            return len(self._drawn)
        return sum(max(ceil(line.cell_len / columns), 1) for line in self._drawn)

    def _disable_echo(self) -> None:
        with suppress(OSError, ValueError, termios.error, AttributeError):
            keyboard = sys.stdin.fileno()
            if os.tcgetpgrp(keyboard) == os.getpgrp():  # in the background this would stop the process
                self._modes = termios.tcgetattr(keyboard)
                modes = termios.tcgetattr(keyboard)
                modes[_ECHO] &= ~termios.ECHO
                termios.tcsetattr(keyboard, termios.TCSADRAIN, modes)

    def _restore_terminal(self) -> None:
        if self._modes is not None:
            with suppress(OSError, ValueError, termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._modes)
            self._modes = None


def _control_of(text: str) -> Control:
    control = Control()
    control.segment = Segment(text, None, [(ControlType.HOME,)])  # any control code: only the text is written
    return control
