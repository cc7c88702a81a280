"""Questions of a run at the terminal: printing a question, and parsing the answer that a person types."""

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
from decisions.text.formatting import truncate
from decisions.text.visible_text import render_visible
from perdure.terminal.console import is_plain_output

DECISION_HELP: dict[str, str] = {
    Decision.approve: "make this call, once",
    Decision.approve_tool: "this tool, for the rest of the run",
    Decision.deny: "no; any text after it goes to the agent",
    Decision.run_again: "make the call again",
    Decision.use_result: "it was made; its result is the text after it",
    Decision.give_up: "neither; the agent learns that it may have been made",
    Decision.use_new: "continue with the current definition",
    Decision.keep_old: "continue with the definition from the start",
    Decision.proceed: "continue",
    Decision.stop: "end the run",
}


def print_question(console: Console, question: QuestionView) -> None:
    """Print the whole question after its kind, as its text may imitate another kind."""
    if is_plain_output(console):
        console.print(Text(_format_line(question)), soft_wrap=True)
        return
    head, body = _split_question(question)
    console.print(Text.assemble(("? ", "bold yellow"), (head, "bold yellow")))
    if body:
        console.print(Padding(Text(body, overflow="fold"), (0, 0, 0, 4), expand=False))
    if question.expires_at:
        console.print(f"    [dim]open until {question.expires_at:%Y-%m-%d %H:%M:%S} UTC[/]")
    widest = max((len(option) for option in question.options), default=0)
    for number, option in enumerate(question.options, 1):
        label = f"{number} " if _is_numbered(question) else "- "
        means = "" if question.kind in TEXTUAL else f"{' ' * (widest - len(option))}  {DECISION_HELP.get(option, '')}"
        shown = truncate(option, 500)
        console.print(Padding(Text.assemble((label, "bold"), shown, (means, "dim")), (0, 0, 0, 2), expand=False))


def _split_question(question: QuestionView) -> tuple[str, str]:
    """Return the kind with the first line, and the rest: the arguments of a call to approve."""
    head, _, body = render_visible(question.text).partition("\n")
    return f"{TITLES[QuestionKind(question.kind)]}: {head}", body.strip("\n")


def _format_line(question: QuestionView) -> str:
    head, body = _split_question(question)
    options = f" · {', '.join(truncate(option, 500) for option in question.options)}" if question.options else ""
    line = re.sub(r"\s*\n\s*", " ", body)  # other spaces belong to the question
    return f"? {head} {line}".rstrip() + options


def format_input_hint(question: QuestionView) -> str:
    count, numbered = len(question.options), _is_numbered(question)
    choice = (f"a number from 1 to {count}" if count > 1 else "1") if numbered else "an option as shown"
    own_words = question.kind == QuestionKind.question or question.kind in DIRECTED
    ways = [*([choice] if count else []), *(["your own words"] if own_words else [])]
    return f"type {' or '.join(ways)}; Ctrl-D leaves the question open"


def _is_numbered(question: QuestionView) -> bool:
    """Return whether options are numbered; not if one is itself a number, as a typed 2 would be ambiguous."""
    return not any(re.fullmatch(r"\s*\d+\s*", option) for option in question.options)


def parse_answer(question: QuestionView, line: str) -> HumanInput:
    """Parse a typed line: an option's number or name, a text, or a decision and its text."""
    word, _, rest = line.strip().partition(" ")
    if _is_numbered(question) and word.isdecimal() and 0 < int(word) <= len(question.options):
        word = question.options[int(word) - 1]
    if question.kind in TEXTUAL:
        return HumanInput(question_id=question.id, text=line.strip() if rest else word)
    with suppress(ValueError):
        decision, text = Decision(word.lower()), rest.strip() or None
        return HumanInput(question_id=question.id, call=question.call, decision=decision, text=text)
    return HumanInput(question_id=question.id, text=line)


async def read_line() -> str | None:
    """Read a line from the terminal; None at Ctrl-D.

    Input typed before the prompt is discarded. A cancelled read has no side effects.
    """
    keyboard = sys.stdin.fileno()
    with suppress(termios.error):
        termios.tcflush(keyboard, termios.TCIFLUSH)
    sys.stdout.write("  answer> ")
    sys.stdout.flush()
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[str | None] = loop.create_future()
    decoder, typed = codecs.getincrementaldecoder("utf-8")(errors="replace"), [""]

    def take() -> None:
        try:
            data = os.read(keyboard, 65536)
        except OSError:  # the terminal was closed
            data = b""
        typed[0] += decoder.decode(data)
        if not ready.done() and (not data or "\n" in typed[0]):
            ready.set_result(typed[0].partition("\n")[0] if data else None)

    loop.add_reader(keyboard, take)
    try:
        return await ready
    finally:
        loop.remove_reader(keyboard)


def is_person() -> bool:
    """Return whether a person types the input."""
    return sys.stdin is not None and sys.stdin.isatty()
