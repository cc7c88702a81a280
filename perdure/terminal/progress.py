"""How a run stands, as far as its happenings tell: counts for the last line, and what the live area shows."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from contracts.run.journal import Journal
from contracts.run.state import RunView
from contracts.run.turn import ModelTurn, Usage
from contracts.tool import ToolCall
from decisions.builtin_tools import APPEND_JOURNAL, UPDATE_JOURNAL
from decisions.run.calls import text_of
from decisions.run.journal import framing, kept
from decisions.text.formatting import call_line
from decisions.text.plan import done, items
from perdure.client.run_events import (
    Answered,
    Called,
    Calling,
    Crowded,
    Delegated,
    Delegating,
    Failed,
    Happening,
    Held,
    Live,
    Noticed,
    Over,
    Resumed,
    Retrying,
    Rotated,
    Shortened,
    Signalled,
    Started,
    Thinking,
    Thought,
    Waiting,
)
from perdure.terminal.console import fitted, harmless

MOST_TEXT = 6  # lines of the answer that is being written
RULED = 10  # lines from which there is room for one that sets them apart
MOST_AT_ONCE = 3  # things that run at the same time, each with a line
# Joiners and variants: terminals disagree how wide these make a character. Without them it is two, or two of one.
_JOINERS = re.compile("[\u200d\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
_SPINS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

Doing = tuple[str, datetime]  # what, and since when


@dataclass
class Progress:
    usage: Usage = field(default_factory=Usage)
    cost_usd: float | None = 0.0  # None once a model without a known price was used
    turns: int = 0
    steps: int = 0
    max_steps: int | None = None
    began: datetime | None = None
    latest: datetime | None = None
    plan: tuple[str, ...] = ()
    journal: Journal = field(default_factory=Journal)
    doing: dict[str, Doing] = field(default_factory=dict)
    text: str = ""  # of the answer that is being written

    def at(self, time: datetime | None) -> datetime:
        """Notes when something happened; what is not in history happens now."""
        if time is not None:
            self.began, self.latest = self.began or time, time
        return time or now()

    def knows(self, view: RunView, journal: Journal | None) -> None:
        """What only the run itself can tell; what it went on from is in the history of another."""
        self.max_steps = view.max_steps
        if view.origin and not self.plan:
            self.plan, self.journal = items(view.plan), journal or self.journal

    def takes(self, happening: Happening, time: datetime | None) -> None:
        """Takes into account what happened; `time` is when, where history tells."""
        at = self.at(time)
        match happening:
            case Thinking(phase, turn):
                self.doing["model"] = (f"{phase} · turn {turn}", at)
            case Thought(turn=turn, reply=reply):
                self._thought(turn, reply)
            case Crowded():
                self.doing["model"] = ("making room", at)
            case Shortened(summary):
                self._spends(summary.usage, summary.cost_usd)
                self.doing.clear()
            case Calling(call):
                self._calls(call, at)
            case Called(call):
                self.doing.pop(f"step {call.step}", None)
                self.steps = max(self.steps, call.step)
            case Delegating(request):
                self.steps = max(self.steps, request.step)
                subtasks = counted(len(request.subtasks), "subtask")
                self.doing = {"delegation": (f"{subtasks} · step {request.step}", at)}
            case Failed(what):
                self._fails(what)
            case Waiting(waiting_for=about):
                self.doing["waiting"] = (f"waiting for {about}", at)
            case Held(why):
                self.doing["held"] = (why, at)
            case Live(text):
                self._writes(text)
            case Resumed():
                self.doing.pop("waiting", None)
            case Delegated() | Started() | Over():
                self.doing.clear()
            case Noticed() | Signalled() | Answered() | Rotated() | Retrying():
                pass  # a lasting line alone

    def _thought(self, turn: int, reply: ModelTurn) -> None:
        self.turns, self.text = turn, ""
        self._spends(reply.usage, reply.cost_usd)
        text = text_of(reply.content)
        if turn == 1 and text:
            self.plan = items(framing(text).plan)
        for use in (block for block in reply.content if block.get("type") == "tool_use"):
            if use["name"] in (UPDATE_JOURNAL, APPEND_JOURNAL) and isinstance(use.get("input"), dict):
                self.journal, _ = kept(self.journal, use["name"], use["input"])
        self.doing.clear()

    @property
    def is_thinking(self) -> bool:
        return "model" in self.doing

    def _writes(self, text: str) -> None:
        """The answer so far; what is looked at beside history may come when history has all of it already."""
        self.doing.pop("held", None)
        self.text = text if self.is_thinking else ""

    def _spends(self, usage: Usage, cost_usd: float | None) -> None:
        self.usage += usage
        self.cost_usd = None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd

    def _calls(self, call: ToolCall, since: datetime) -> None:
        self.doing.pop("model", None)
        self.steps = max(self.steps, call.step)
        self.doing[f"step {call.step}"] = (f"{call_line(call.tool, call.arguments or {})} · step {call.step}", since)

    def _fails(self, what: str) -> None:
        """An activity, or `<tool> · step <n>`; calls beside it go on."""
        _, _, step = what.rpartition(" · ")
        for key in ("model", "held") if step not in self.doing else (step,):
            self.doing.pop(key, None)

    @property
    def seconds(self) -> float:
        return (self.latest - self.began).total_seconds() if self.latest and self.began else 0.0

    @property
    def facts(self) -> str:
        """`2 steps · 3 turns · 12,345 (67% cached) → 1,234 tokens · USD 0.0123 · 42 s`."""
        counts = (counted(self.steps, "step"), counted(self.turns, "turn"))
        return joined(*counts, tokens_told(self.usage), cost_told(self.cost_usd), seconds_told(self.seconds))

    def lines(self, console: Console, width: int, height: int) -> list[Text]:
        """For the live area: what the model writes, the plan, what runs now, and the figures."""
        running = self._running(width)[: max(min(MOST_AT_ONCE, height - 1), 0)]
        rule = [Text("─" * width, style="dim")] if height >= RULED else []
        room = height - 1 - len(running) - len(rule)
        written = self._written(console, width, min(MOST_TEXT, room))
        plan = self._plan(width, room - min(len(written), room // 2 + room % 2))
        written = written[max(len(written) - (room - len(plan)), 0) :]
        return [*rule, *written, *plan, *running, self._figures(width)]

    def _written(self, console: Console, width: int, most: int) -> list[Text]:
        if not self.text.strip() or most < 1:
            return []
        text = Text(harmless(_JOINERS.sub("", self.text.strip())))
        lines = text.wrap(console, max(width - 2, 1))
        return [Text.assemble(("│ ", "dim"), line) for line in lines[-most:]]

    def _plan(self, width: int, most: int) -> list[Text]:
        """As much of it as there is room for, from the last tick before the first item without one."""
        if len(self.plan) < 2 or most < 2:
            return []
        ticked = done(self.plan, self.journal)
        first = next((number for number in range(1, len(self.plan) + 1) if number not in ticked), len(self.plan))
        start = max(min(first - 2, len(self.plan) - (most - 1)), 0)
        shown = list(enumerate(self.plan, 1))[start : start + most - 1]
        told = f"plan  {len(ticked)} of {len(self.plan)} done" if ticked else f"plan  {len(self.plan)} items"
        left_out = len(self.plan) - len(shown)
        lines = [Text(f"{told}{f', {left_out} not shown' if left_out else ''}", style="dim")]
        for number, item in shown:
            mark, style = ("✓", "green") if number in ticked else ("·", "dim")
            lines.append(Text.assemble((f"  {mark} ", style), fitted(f"{number} {_JOINERS.sub('', item)}", width - 4)))
        return lines

    def _running(self, width: int) -> list[Text]:
        spin = _SPINS[int(now().timestamp() * 8) % len(_SPINS)]
        lines = []
        for what, since in list(self.doing.values())[-MOST_AT_ONCE:]:
            took = seconds_told((now() - since).total_seconds())
            told = fitted(_JOINERS.sub("", what), width - len(took) - 5)
            lines.append(Text.assemble((f"{spin} ", "cyan"), told, (f" · {took}", "dim")))
        return lines

    def _figures(self, width: int) -> Text:
        """All of it where there is room; else without what matters least."""
        step = f"step {self.steps} of {self.max_steps}" if self.max_steps else f"step {self.steps}"
        turn, tokens, cost = f"turn {self.turns}", tokens_told(self.usage), cost_told(self.cost_usd)
        since = seconds_told((now() - self.began).total_seconds()) if self.began else "0.0 s"
        ways = ((step, turn, tokens, cost, since), (step, tokens, cost, since), (step, cost, since), (step, since))
        told = [joined(*facts) for facts in ways]
        return Text(next((line for line in told if len(line) <= width), fitted(told[-1], width)), style="dim")


def now() -> datetime:
    return datetime.now(UTC)


def tokens_told(usage: Usage) -> str:
    """`12,345 (67% cached) → 1,234 tokens`."""
    taken = usage.total - usage.output
    cached = f" ({usage.cache_read * 100 // taken}% cached)" if usage.cache_read else ""
    about = "about " if usage.is_estimated else ""
    return f"{about}{taken:,}{cached} → {usage.output:,} tokens"


def cost_told(cost_usd: float | None) -> str:
    """Nothing where it was free."""
    return "USD unknown" if cost_usd is None else f"USD {cost_usd:.4f}" if cost_usd else ""


def seconds_told(seconds: float) -> str:
    """`0.3 s`, `42 s`, `3:05 min`, `2:03 h`: the longer, the rounder."""
    whole = int(max(seconds, 0))
    if whole < 10:
        return f"{max(seconds, 0):.1f} s"
    if whole < 60:
        return f"{whole} s"
    large, small, unit = (*divmod(whole, 60), "min") if whole < 3600 else (*divmod(whole // 60, 60), "h")
    return f"{large}:{small:02} {unit}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def joined(*facts: str) -> str:
    return " · ".join(fact for fact in facts if fact)
