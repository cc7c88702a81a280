"""A run's question at the terminal: shown whole, and what a person types becomes the answer they meant."""

import asyncio
import codecs
import os
import re
import sys
import termios
from contextlib import suppress

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from contracts.run.question import QuestionKind
from contracts.run.signals import Decision, HumanInput
from contracts.run.state import QuestionView
from decisions.run.question import DIRECTED, TEXTUAL, TITLES
from decisions.text.formatting import cut
from decisions.text.visible_text import render_visible
from perdure.terminal.console import is_plain

MEANS: dict[str, str] = {
    Decision.approve: "make this call, once",
    Decision.approve_tool: "this tool, for the rest of the run",
    Decision.deny: "no; words after it are told to the agent",
    Decision.run_again: "make the call again",
    Decision.use_result: "it has happened; its result is the words after it",
    Decision.give_up: "neither; the agent is told that it may have happened",
    Decision.use_new: "go on with the definition of now",
    Decision.keep_old: "go on with the one that the run began with",
    Decision.proceed: "go on",
    Decision.stop: "end the run",
}
PROMPT = "  answer> "


def print_question(console: Console, question: QuestionView) -> None:
    """Print the question whole, introduced by its kind: its own words may imitate another one."""
    if is_plain(console):
        console.print(Text(_format_line(question)), soft_wrap=True)
        return
    head, body = _split(question)
    console.print(Text.assemble(("? ", "bold yellow"), (head, "bold yellow")))
    if body:
        console.print(Padding(Text(body, overflow="fold"), (0, 0, 0, 4), expand=False))
    if question.expires_at:
        console.print(f"    [dim]open until {question.expires_at:%Y-%m-%d %H:%M:%S} UTC[/]")
    widest = max((len(option) for option in question.options), default=0)
    for number, option in enumerate(question.options, 1):
        label = f"{number} " if _numbered(question) else "- "
        means = "" if question.kind in TEXTUAL else f"{' ' * (widest - len(option))}  {MEANS.get(option, '')}"
        shown = cut(option, 500)
        console.print(Padding(Text.assemble((label, "bold"), shown, (means, "dim")), (0, 0, 0, 2), expand=False))


def _split(question: QuestionView) -> tuple[str, str]:
    """The kind and the first line, and what follows: for an approval, the arguments."""
    head, _, body = render_visible(question.text).partition("\n")
    return f"{TITLES[QuestionKind(question.kind)]}: {head}", body.strip("\n")


def _format_line(question: QuestionView) -> str:
    head, body = _split(question)
    options = f" · {', '.join(cut(option, 500) for option in question.options)}" if question.options else ""
    line = re.sub(r"\s*\n\s*", " ", body)  # blanks inside a line are the question's own
    return f"? {head} {line}".rstrip() + options


def what_is_possible(question: QuestionView) -> str:
    count, numbered = len(question.options), _numbered(question)
    choice = (f"a number from 1 to {count}" if count > 1 else "1") if numbered else "one of them as it stands"
    own_words = question.kind == QuestionKind.question or question.kind in DIRECTED
    ways = [*([choice] if count else []), *(["your own words"] if own_words else [])]
    return f"type {' or '.join(ways)}; Ctrl-D leaves the question open"


def _numbered(question: QuestionView) -> bool:
    """Options that are numbers themselves have none: a 2 would mean two things."""
    return not any(re.fullmatch(r"\s*\d+\s*", option) for option in question.options)


def read_answer(question: QuestionView, said: str) -> HumanInput:
    """A typed line as an answer: an option's number or name, or a text; for a decision, the words after it are text."""
    word, _, rest = said.strip().partition(" ")
    if _numbered(question) and word.isdecimal() and 0 < int(word) <= len(question.options):
        word = question.options[int(word) - 1]
    if question.kind in TEXTUAL:
        return HumanInput(question_id=question.id, text=said.strip() if rest else word)
    with suppress(ValueError):
        decision, text = Decision(word.lower()), rest.strip() or None
        return HumanInput(question_id=question.id, call=question.call, decision=decision, text=text)
    return HumanInput(question_id=question.id, text=said)


async def read_line(prompt: str = PROMPT) -> str | None:
    """A line that is typed from now on; None at Ctrl-D. Given up without a trace when the task is cancelled.

    What was typed before anything was asked is thrown away: it was no answer.
    """
    keyboard = sys.stdin.fileno()
    with suppress(termios.error):
        termios.tcflush(keyboard, termios.TCIFLUSH)
    sys.stdout.write(prompt)
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[str | None] = loop.create_future()
    decoder, typed = codecs.getincrementaldecoder("utf-8")(errors="replace"), [""]

    def take() -> None:
        try:
            data = os.read(keyboard, 65536)
        except OSError:  # the terminal is gone
            data = b""
        typed[0] += decoder.decode(data)
        if not ready.done() and (not data or "\n" in typed[0]):
            ready.set_result(typed[0].partition("\n")[0] if data else None)

    loop.add_reader(keyboard, take)
    try:
        return await ready
    finally:
        loop.remove_reader(keyboard)


def can_ask(console: Console) -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and console.is_terminal
