"""Questions of a run at the terminal: printing a question, and parsing the answer that a person types."""

import asyncio
import codecs
import os
import re
import sys
import termios
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from perdure.activities.storage.workspace import ARTIFACTS, Workspace
from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.run_list import find_run
from perdure.client.runs import run_id_error
from perdure.contracts.run.events import StartEvent
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.run.state import QuestionView
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.formatting import truncate
from perdure.decisions.text.visible_text import render_visible
from perdure.python_client import Perdure, Run
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
    helps = {} if QUESTIONS[question.kind].is_textual else DECISION_HELP
    for number, option in enumerate(question.options, 1):
        label = f"{number} " if _is_numbered(question) else "- "
        means = f"{' ' * (widest - len(option))}  {helps[option]}" if option in helps else ""
        shown = truncate(option, 500)
        console.print(Padding(Text.assemble((label, "bold"), shown, (means, "dim")), (0, 0, 0, 2), expand=False))


def _split_question(question: QuestionView) -> tuple[str, str]:
    """Return the kind with the first line, and the rest: the arguments of a call to approve."""
    head, _, body = render_visible(question.text).partition("\n")
    return f"{QUESTIONS[question.kind].title}: {head}", body.strip("\n")


def _format_line(question: QuestionView) -> str:
    head, body = _split_question(question)
    options = f" · {', '.join(truncate(option, 500) for option in question.options)}" if question.options else ""
    line = re.sub(r"\s*\n\s*", " ", body)  # other spaces belong to the question
    return f"? {head} {line}".rstrip() + options


def format_input_hint(question: QuestionView) -> str:
    count, numbered = len(question.options), _is_numbered(question)
    choice = (f"a number from 1 to {count}" if count > 1 else "1") if numbered else "an option as shown"
    ways = [*([choice] if count else []), *(["your own words"] if QUESTIONS[question.kind].takes_own_words else [])]
    return f"type {' or '.join(ways)}; Ctrl-D leaves the question open"


def _is_numbered(question: QuestionView) -> bool:
    """Return whether options are numbered; not if a typed 2 would be ambiguous: an option, or a field of a form."""
    return question.form is None and not any(re.fullmatch(r"\s*\d+\s*", option) for option in question.options)


def parse_answer(question: QuestionView, line: str) -> HumanInput:
    """Parse a typed line: an option's number or name, a text, or a decision and its text."""
    word, _, rest = line.strip().partition(" ")
    if _is_numbered(question) and word.isdecimal() and 0 < int(word) <= len(question.options):
        word = question.options[int(word) - 1]
    if QUESTIONS[question.kind].is_textual:
        return HumanInput(question_id=question.id, text=line.strip() if rest else word)
    with suppress(ValueError):
        decision, text = Decision(word.lower()), rest.strip() or None
        shown = render_visible(question.text) if question.call else None
        return HumanInput(question_id=question.id, call=question.call, decision=decision, text=text, shown=shown)
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


GOAL_EXCERPT_LENGTH = 2000  # characters


async def start_with_file(perdure: Perdure, workspace: Workspace, event: StartEvent, goal: str, run_id: str) -> Run:
    """Start a run as `Perdure.begin` does, with its goal in a file.

    The file exists before the run starts. A rejected start leaves no file; an existing run of this id gets none.
    """
    if reason := run_id_error(run_id):
        raise RejectedError(reason)
    data = goal.encode(errors="replace")
    file = f"{ARTIFACTS}/goal-{sha256(data).hexdigest()[:16]}.md"
    excerpt = f"{goal[:GOAL_EXCERPT_LENGTH]}\n\n… The whole goal, {len(goal):,} characters, is in {file}: read it."
    event = event.evolve(payload=event.payload.evolve(goal=excerpt))
    if await _run_exists(perdure, run_id):
        return await perdure.begin(event, run_id)
    new = _missing_paths(workspace.root / file, workspace.root / ARTIFACTS, workspace.root)
    try:
        workspace.create()
        if workspace.root / file in new:
            workspace.write(file, data)
        return await perdure.begin(event, run_id)
    except (RejectedError, OSError):
        if not await _run_exists(perdure, run_id):  # the file may belong to a concurrent start of this id
            _remove_created(new)
        raise


def _missing_paths(*paths: Path) -> list[Path]:
    """Return the paths that do not exist; a dangling link exists."""
    return [path for path in paths if not os.path.lexists(path)]


def _remove_created(new: list[Path]) -> None:
    """Remove the created files and folders, except folders that others have used since."""
    with suppress(OSError):
        for path in new:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


async def _run_exists(perdure: Perdure, run_id: str) -> bool:
    try:
        await find_run(perdure.session.client, run_id)
    except RunNotFoundError:
        return False
    return True
