"""What a person at a terminal sees of a run: lasting lines, and below them what is going on right now."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from contracts.context import Summary
from contracts.delegation import DelegationStatus
from contracts.journal import Journal
from contracts.run import QuestionView, RunStatus, RunView
from contracts.signals import HumanInput
from contracts.thrash import Rung
from contracts.tool import ToolOutcome
from contracts.turn import ModelTurn
from decisions.calls import text_of
from decisions.ids import call_digest
from decisions.narrate import call_line, cut
from perdure.client.happenings import (
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
from perdure.client.runs import Ended
from perdure.commands.area import Area
from perdure.commands.asking import Exact, can_ask, print_question, read_answer, read_line, what_is_possible
from perdure.commands.console import fitted, is_plain
from perdure.commands.progress import Progress, cost_told, joined, seconds_told, tokens_told
from perdure.commands.report import COLOURS

RUNGS = {
    Rung.nudge: "told to try something else",
    Rung.directive: "told to do something else, with a forced tool",
    Rung.ask: "a person is asked",
}
TRIED = {"plan": "the model", "reflect": "the model", "summarize": "the summary", "call_tool": "the call"}
LOOKS_EVERY = 0.1  # seconds between looks whether the live area says something new
PLAIN_WIDTH = 200  # characters of a preview where no screen limits it


class Screen:
    """Prints happenings as they come. What comes while a person is being asked is printed after that."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress()
        self._plain = is_plain(console)
        self._area = Area(console, partial(self.progress.lines, console))
        self._follows = False
        self._asks = False
        self._later: list[tuple[Happening, datetime | None]] = []
        self._calls: dict[str, Exact] = {}  # of the latest turn, by digest
        self._held = False
        self._said = ""
        self._own: HumanInput | None = None  # what was answered here: whoever typed it sees it

    @property
    def is_live(self) -> bool:
        return not self._plain

    def knows(self, view: RunView, journal: Journal | None) -> None:
        self.progress.knows(view, journal)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        if self._plain:
            yield
            return

        async def keep_up() -> None:
            while True:
                await asyncio.sleep(LOOKS_EVERY)
                self._area.draw()

        drawing, loop = asyncio.create_task(keep_up()), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        try:
            self._follows = True
            self._area.open()
            yield
        finally:
            self._follows = False
            loop.remove_signal_handler(signal.SIGTSTP)
            drawing.cancel()
            self._area.close()

    def _suspend(self) -> None:
        """Ctrl-Z gives the terminal back as it was; `fg` goes on here."""
        is_shown = not self._asks
        self._area.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        if is_shown:
            self._area.open()

    def show(self, happening: Happening, time: datetime | None = None) -> None:
        """`time` is when it happened, where history tells."""
        if self._asks:
            self._later.append((happening, time))
            return
        at, doing = self.progress.at(time), self.progress.doing
        match happening:
            case Started(goal) if goal:
                self._line("[bold]goal[/]  ", cut(goal, 1000))
            case Thinking(phase, turn):
                self._held = False
                doing["model"] = (f"{phase} · turn {turn}", at)
            case Thought():
                self.hears(happening, time)
                self._thought(happening)
            case Answered(answer):
                self._answered(answer)
            case Crowded() | Shortened() | Noticed() | Signalled() | Rotated():
                self._aside(happening, at)
            case Calling(call):
                self.progress.calls(call, at)
            case Called():
                self._called(happening)
            case Delegating() | Delegated():
                self._delegation(happening, at)
            case Failed(what, why):
                self.progress.fails(what)
                self._line(f"  [red]✗[/] {escape(cut(what, 100))}  ", cut(why, 300))
            case Retrying(what, attempt, why):
                self._line(f"  [yellow]↻[/] {escape(TRIED.get(what, what))}, attempt {attempt}: ", cut(why, 300))
            case Waiting(_, about, question):
                doing["waiting"] = (f"waiting for {about}", at)
                self._waiting(about, question)
            case Held(why):
                self._hold(why, at)
            case Live(text):
                self.progress.writes(text)
            case Resumed():
                doing.pop("waiting", None)
            case Started() | Over():
                doing.clear()

    def _line(self, markup: str, text: str = "", style: str = "") -> None:
        """One line; wrapped on a screen, whole elsewhere."""
        self.console.print(Text.from_markup(markup, emoji=False).append(text, style), soft_wrap=self._plain)

    def _block(self, text: str, indent: int = 2, style: str = "") -> None:
        """What may have many lines."""
        said = Text(text, style=style, overflow="fold")
        self.console.print(
            said if self._plain else Padding(said, (0, 0, 0, indent), expand=False), soft_wrap=self._plain
        )

    def begins(self, time: datetime | None) -> None:
        self.progress.at(time)

    def hears(self, thought: Thought, time: datetime | None) -> None:
        """Takes a turn into account without printing it."""
        self.progress.at(time)
        self.progress.thought(thought.turn, thought.reply)
        uses = [block for block in thought.reply.content if block.get("type") == "tool_use"]
        self._calls = {call_digest(use["name"], use["input"]): (use["name"], use["input"]) for use in uses}
        self._said = text_of(thought.reply.content)

    def tell_fallbacks(self, reply: ModelTurn) -> None:
        for each in reply.passed_over:
            self._line(f"  [yellow]↪[/] in place of {escape(cut(each.model, 60))}: ", cut(each.why, 300))

    def _thought(self, thought: Thought) -> None:
        reply = thought.reply
        facts = joined(
            f"turn {thought.turn}",
            tokens_told(reply.usage),
            cost_told(reply.cost_usd or 0.0),
            seconds_told(reply.duration_ms / 1000),
            cut(reply.model, 60),
        )
        told = f": {' '.join(self._said.split())}" if self._plain and self._said else ""
        self._line(f"[bold cyan]◆ {thought.phase}[/]  [dim]{escape(facts)}[/]", told)
        self.tell_fallbacks(reply)
        if self._said and not self._plain:
            self._block(self._said)

    def _aside(self, happening: Crowded | Shortened | Noticed | Signalled | Rotated, at: datetime) -> None:
        """What the run does about itself, or hears from outside."""
        match happening:
            case Crowded(full):
                self.progress.doing["model"] = ("making room", at)
                said = f"[yellow]![/] the context is full: about {full.tokens:,} of {full.window:,} tokens"
            case Shortened(summary):
                self.progress.spends(summary.usage, summary.cost_usd)
                self.progress.doing.clear()
                said = f"[yellow]![/] {_shortened(summary)}"
            case Noticed(event):
                said = _noticed(event)
            case Signalled(signal):
                said = f"[dim]signal {escape(cut(signal, 100))}[/]"
            case Rotated():
                said = "[dim]history was long: continued as new[/]"
        if said:
            self._line(f"  {said}")

    def _called(self, called: Called) -> None:
        call, outcome = called.call, called.outcome
        self.progress.called(call)
        again = f" · attempt {call.attempt}" if call.attempt > 1 else ""
        lost = " · after its worker was lost" if outcome.interrupted else ""
        facts = f"step {call.step} · {seconds_told(outcome.duration_ms / 1000)}{again}{lost}"
        mark, told = _mark(is_good=outcome.status == "ok"), call_line(call.tool, call.arguments or {})
        room = self.console.width
        if self._plain:
            self._line(f"  {mark} {escape(told)}  {facts}: ", _told(outcome, PLAIN_WIDTH))
            return
        self._line(f"  {mark} {escape(fitted(told, max(room - len(facts) - 7, 20)))}  [dim]{facts}[/]")
        if preview := _told(outcome, room - 5):
            self._block(preview, 4, "dim")

    def _delegation(self, happening: Delegating | Delegated, at: datetime) -> None:
        match happening:
            case Delegating(request):
                subtasks = _count(len(request.subtasks), "subtask")
                self.progress.steps = max(self.progress.steps, request.step)
                self.progress.doing = {"delegation": (f"{subtasks} · step {request.step}", at)}
                self._line(f"  [cyan]⇉[/] delegates {subtasks}  [dim]step {request.step}[/]")
                for each in request.subtasks:
                    after = f", after {', '.join(each.depends_on)}" if each.depends_on else ""
                    self._line("    ", f"{each.id} · {each.agent}{after}", "dim")
            case Delegated(state):
                self.progress.doing.clear()
                self._line(f"  {_mark(is_good=state.status is DelegationStatus.done)} delegation {state.status}")
                for subtask in state.subtasks:
                    width = PLAIN_WIDTH if self._plain else self.console.width - 5
                    self._line("    ", fitted(f"{subtask.id} {subtask.status}: {subtask.outcome}", width), "dim")

    def _hold(self, why: str, at: datetime) -> None:
        """A lasting line for the first of a turn; the live area tells how long it takes."""
        self.progress.doing["held"] = (why, at)
        if not self._held:
            self._held = True
            self._line("  [yellow]‖[/] ", cut(why, 300))

    def _waiting(self, about: str, question: QuestionView | None) -> None:
        if question is None:
            self._line("  [yellow]…[/] waiting for ", cut(about, 300))
        else:
            print_question(self.console, question, self._calls.get(question.call or ""))

    def says(self, answer: HumanInput) -> HumanInput:
        """An answer that is given here."""
        self._own = answer
        return answer

    def _answered(self, answer: HumanInput) -> None:
        """What a person has decided, or said, and who."""
        own, self._own = self._own, None
        if answer != own:
            said = ": ".join(filter(None, (answer.decision, answer.text)))
            self._line(f"  [yellow]←[/] {escape(cut(answer.by or 'a person', 60))}  ", cut(said, 300))

    @property
    def facts(self) -> str:
        """`2 steps · 3 turns · 12,345 (67% cached) → 1,234 tokens · USD 0.0123 · 42 s`."""
        of = self.progress
        counts = (_count(of.steps, "step"), _count(of.turns, "turn"))
        return joined(*counts, tokens_told(of.usage), cost_told(of.cost_usd), seconds_told(of.seconds))

    def end(self, end: Ended) -> None:
        """How it ended, and what it took."""
        colour = COLOURS.get(RunStatus(end.status), "white")
        self._line(f"[bold {colour}]■ {end.status}[/]  [dim]{self.facts}[/]")
        if end.event and end.event["type"] == "agent.completed":
            outcome = end.event["payload"]["outcome"]
            if outcome != self._said or self._plain:  # a reply without a call has just been shown
                self._block(outcome)
        elif end.event:
            payload = end.event["payload"]
            self._line(f"  [yellow]{escape(payload['reason'])}[/]: ", payload["detail"])
            self._block(payload["handoff"], style="dim")
        elif end.message:
            self._line(f"  [red]{end.kind}[/]: ", end.message)
            self._block(end.handoff, style="dim")

    async def ask(self, question: QuestionView) -> HumanInput | None:
        """The person's answer to what is shown already; None where nobody can be asked here, or they leave it open."""
        if not can_ask(self.console):
            return None
        self._asks, said = True, ""
        self._area.close()
        try:
            while not said.strip():
                self._line(f"  [dim]{what_is_possible(question)}[/]")
                line = await read_line()
                if line is None:
                    self.console.print()
                    return None
                said = line
            return self.says(read_answer(question, said))
        except asyncio.CancelledError:
            self.console.print()  # below the prompt that nobody needs any more
            raise
        finally:
            self._asks = False
            later, self._later = self._later, []
            for happening, time in later:
                self.show(happening, time)
            if self._follows:
                self._area.open()


def _mark(*, is_good: bool) -> str:
    return "[green]✓[/]" if is_good else "[red]✗[/]"


def _noticed(event: dict[str, Any]) -> str:
    """A full context is told by what is done about it."""
    if event["event"] == "refused":
        step = f"  [dim]step {event['step']}[/]" if event["step"] else ""
        return f"[red]✗[/] {escape(cut(event['call'], 100))}{step}  {event['kind']}: {escape(cut(event['error'], 300))}"
    if event.get("ladder") == "thrash":
        return f"[yellow]![/] goes in circles: {RUNGS[event['stage']]}"
    return "" if "ladder" in event else "[yellow]![/] the time is used up: one last turn"


def _shortened(summary: Summary) -> str:
    if not summary.tail:
        return "there was nothing to summarise"
    messages = f"{summary.before_messages} → {summary.after_messages} messages"
    tokens = f"about {summary.before_tokens:,} → {summary.after_tokens:,} tokens"
    how = f"summarised by {summary.model}" if summary.model else "cut down without a summary"
    return escape(f"{messages}, {tokens}: {how}")


def _told(outcome: ToolOutcome, width: int) -> str:
    """What a call brought, in a line of so many columns; of an error more, as it says what is wrong."""
    if outcome.error:
        return f"{outcome.error.kind}: {cut(outcome.error.message, 300)}"
    if isinstance(outcome.result, dict) and "artifact_path" in outcome.result:
        return fitted(f"{outcome.result.get('bytes', 0):,} bytes in {outcome.result['artifact_path']}", width)
    text = outcome.result if isinstance(outcome.result, str) else json.dumps(outcome.result, ensure_ascii=False)
    line = fitted(text, width)
    if not line.endswith("…"):
        return line
    size = f"  ({len(text):,} characters)"
    return fitted(text, max(width - len(size), 10)) + size


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
