"""What a person at a terminal sees of a run, and how they answer its questions."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from rich.console import Console
from rich.live import Live as LiveLine
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from commands.report import COLOURS
from contracts.context import Summary
from contracts.delegation import DelegationStatus
from contracts.run import QuestionView, RunStatus
from contracts.signals import Decision, HumanInput
from contracts.thrash import Rung
from contracts.tool import ToolOutcome
from contracts.turn import Usage
from decisions.calls import text_of
from decisions.narrate import call_line, cut
from decisions.question import TEXTUAL
from runs import Ended
from watch import (
    Called,
    Calling,
    Crowded,
    Delegated,
    Delegating,
    Failed,
    Happening,
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

RUNGS = {
    Rung.nudge: "told to try something else",
    Rung.directive: "told to do something else, with a forced tool",
    Rung.ask: "a person is asked",
}


class Screen:
    """Prints happenings as they come; on a real terminal the last line shows what is going on right now."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.usage = Usage()
        self.turns = 0
        self.steps = 0
        self.artifacts: list[str] = []
        self._began = time.monotonic()
        self._line: LiveLine | None = None
        self._doing = ""
        self._said = ""

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        if not self.console.is_terminal:
            yield
            return
        with LiveLine(get_renderable=self._status, console=self.console, refresh_per_second=8, transient=True) as line:
            self._line = line
            try:
                yield
            finally:
                self._line = None

    def show(self, happening: Happening) -> None:
        match happening:
            case Started(goal) if goal:
                self.console.print(f"[bold]goal[/]  {escape(cut(goal, 1000))}")
            case Thinking(phase, turn):
                self._doing = f"{phase} · turn {turn}"
            case Thought():
                self._thought(happening)
            case Crowded() | Shortened() | Noticed() | Signalled() | Rotated():
                self._aside(happening)
            case Calling(call):
                self._doing = f"{call_line(call.tool, call.arguments or {})} · step {call.step}"
            case Called(call, outcome):
                self._called(happening)
                self.artifacts += [a for a in outcome.artifacts if a not in self.artifacts]
                self.steps = max(self.steps, call.step)
            case Delegating() | Delegated():
                self._delegation(happening)
            case Failed(what, why):
                self.console.print(f"  [red]✗[/] {escape(what)}  {escape(cut(why, 300))}")
            case Retrying(what, attempt, why):
                self.console.print(f"  [yellow]↻[/] {what}, attempt {attempt}: {escape(why)}")
            case Waiting(_, about, _):
                self._doing = f"waiting for {about}"
                self.console.print(f"  [yellow]…[/] waiting for {escape(about)}")
            case Live(text):
                room = max(self.console.width - 50, 20)
                self._doing = f"{self._doing.split(' │ ')[0]} │ …{' '.join(text.split())[-room:]}"
            case Started() | Resumed() | Over():
                self._doing = ""

    def _thought(self, thought: Thought) -> None:
        self.turns, self.usage = thought.turn, self.usage + thought.reply.usage
        usage = thought.reply.usage
        cached = f" ({usage.cache_read:,} cached)" if usage.cache_read else ""
        took = f"{usage.input + usage.cache_read + usage.cache_write:,}{cached} → {usage.output:,} tokens"
        facts = f"turn {thought.turn} · {took} · {thought.reply.duration_ms / 1000:.1f} s"
        self.console.print(f"[bold cyan]◆ {thought.phase}[/]  [dim]{facts} · {escape(thought.reply.model)}[/]")
        for each in thought.reply.passed_over:
            self.console.print(f"  [yellow]↪[/] in place of {escape(each.model)}: {escape(cut(each.why, 300))}")
        self._said = text_of(thought.reply.content)
        if self._said:
            self.console.print(Padding(Text(self._said), (0, 0, 0, 2), expand=False))

    def _aside(self, happening: Crowded | Shortened | Noticed | Signalled | Rotated) -> None:
        """What the run does about itself, or hears from outside."""
        match happening:
            case Crowded(full):
                self._doing = "making room"
                said = f"[yellow]![/] the context is full: about {full.tokens:,} of {full.window:,} tokens"
            case Shortened(summary):
                self.usage += summary.usage
                said = f"[yellow]![/] {_shortened(summary)}"
            case Noticed(event):
                said = _noticed(event)
            case Signalled(signal):
                said = f"[dim]signal {escape(signal)}[/]"
            case Rotated():
                said = "[dim]history was long: continued as new[/]"
        if said:
            self.console.print(f"  {said}")

    def _called(self, called: Called) -> None:
        call, outcome = called.call, called.outcome
        mark = "[green]✓[/]" if outcome.status == "ok" else "[red]✗[/]"
        facts = f"[dim]step {call.step} · {outcome.duration_ms / 1000:.1f} s[/]"
        self.console.print(f"  {mark} {escape(call_line(call.tool, call.arguments or {}))}  {facts}")
        self.console.print(f"    [dim]{escape(_told(outcome, self.console.width - 30))}[/]")

    def _delegation(self, happening: Delegating | Delegated) -> None:
        match happening:
            case Delegating(request):
                self.steps, subtasks = max(self.steps, request.step), _count(len(request.subtasks), "subtask")
                self._doing = f"{subtasks} · step {request.step}"
                self.console.print(f"  [cyan]⇉[/] delegates {subtasks}  [dim]step {request.step}[/]")
                for each in request.subtasks:
                    after = f", after {', '.join(each.depends_on)}" if each.depends_on else ""
                    self.console.print(f"    [dim]{escape(each.id)} · {escape(each.agent)}{escape(after)}[/]")
            case Delegated(state):
                mark = "[green]✓[/]" if state.status is DelegationStatus.done else "[red]✗[/]"
                self.console.print(f"  {mark} delegation {state.status}")
                for subtask in state.subtasks:
                    told = cut(subtask.outcome, self.console.width - 40)
                    self.console.print(f"    [dim]{escape(subtask.id)} {subtask.status}: {escape(told)}[/]")

    def _status(self) -> Text:
        spent = f"{time.monotonic() - self._began:5.1f} s"
        tokens = self.usage.input + self.usage.cache_read + self.usage.output
        line = f"⏳ {spent} · {tokens:,} tokens · {self._doing or 'working'}"
        return Text(cut(line, self.console.width - 2), style="dim")

    def end(self, end: Ended, seconds: float) -> None:
        colour = COLOURS.get(RunStatus(end.status), "white")
        tokens = f"{self.usage.input + self.usage.cache_read + self.usage.cache_write:,} → {self.usage.output:,} tokens"
        counts = f"{_count(self.steps, 'step')} · {_count(self.turns, 'turn')}"
        facts = f"{counts} · {tokens} · {seconds:.1f} s"
        self.console.print(f"[bold {colour}]■ {end.status}[/]  [dim]{facts}[/]")
        if end.event and end.event["type"] == "agent.completed":
            outcome = end.event["payload"]["outcome"]
            if outcome != self._said:  # a reply without a call is the outcome, and has just been shown
                self.console.print(Padding(Text(outcome), (0, 0, 0, 2), expand=False))
        elif end.event:
            payload = end.event["payload"]
            self.console.print(f"  [yellow]{payload['reason']}[/]: {escape(payload['detail'])}")
            self.console.print(Padding(Text(payload["handoff"], style="dim"), (0, 0, 0, 2), expand=False))
        elif end.message:
            self.console.print(f"  [red]{end.kind}[/]: {escape(end.message)}")
            self.console.print(Padding(Text(end.handoff, style="dim"), (0, 0, 0, 2), expand=False))

    async def ask(self, question: QuestionView) -> HumanInput | None:
        """The person's answer; None where nobody can be asked here, or they gave none."""
        self.console.print(f"[bold yellow]? {escape(question.text)}[/]")
        if not (sys.stdin.isatty() and self.console.is_terminal):
            return None
        if question.options:
            self.console.print(
                "  " + "   ".join(f"[bold]{n}[/] {escape(o)}" for n, o in enumerate(question.options, 1))
            )
        line = self._line
        if line:
            line.stop()
        try:
            said = await _read_line("  answer> ")
        finally:
            if line:
                line.start()
        return read_answer(question, said) if said.strip() else None


def read_answer(question: QuestionView, said: str) -> HumanInput:
    """A typed line as an answer: an option's number or name, or a text; for a decision, the words after it are text."""
    word, _, rest = said.strip().partition(" ")
    if word.isdigit() and 0 < int(word) <= len(question.options):
        word = question.options[int(word) - 1]
    if question.kind in TEXTUAL:
        return HumanInput(question_id=question.id, text=said.strip() if rest else word)
    with suppress(ValueError):
        decision, text = Decision(word), rest.strip() or None
        return HumanInput(question_id=question.id, call=question.call, decision=decision, text=text)
    return HumanInput(question_id=question.id, text=said)


async def _read_line(prompt: str) -> str:
    """A line of standard input; given up without a trace when the task is cancelled."""
    sys.stdout.write(prompt)
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[str] = loop.create_future()

    def take() -> None:
        if not ready.done():
            ready.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin.fileno(), take)
    try:
        return await ready
    finally:
        loop.remove_reader(sys.stdin.fileno())


def _noticed(event: dict[str, Any]) -> str:
    """A full context is told by what is done about it."""
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
    if outcome.error:
        return f"{outcome.error.kind}: {cut(outcome.error.message, 300)}"
    if isinstance(outcome.result, dict) and "artifact_path" in outcome.result:
        return f"{outcome.result.get('bytes', 0):,} bytes in {outcome.result['artifact_path']}"
    text = outcome.result if isinstance(outcome.result, str) else json.dumps(outcome.result, ensure_ascii=False)
    return f"{cut(text, width)}  ({len(text):,} characters)" if len(text) > width else cut(text, width)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
