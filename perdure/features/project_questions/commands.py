"""A project question in `perdure show`."""

import shlex

from rich.console import Console
from rich.markup import escape

from perdure.client.run_list import RunInfo
from perdure.features.project_questions.contract import QuestionState
from perdure.terminal.progress import format_count
from perdure.terminal.report import format_age


def print_project_question(console: Console, run: RunInfo, state: QuestionState | None) -> None:
    """Print a question: its text, the runs that wait for it, and its answer, or the commands that answer it."""
    name = escape(run.run_id)
    if state is None:
        console.print(f"[bold]{name}[/]  [yellow]no worker answers now[/]")
        return
    waits = f"{format_count(state.runs, 'run')} asked for it"
    console.print(f"[bold]{name}[/]  asked {format_age(state.asked_at)} ago, {waits}", soft_wrap=True)
    console.print(f"  {escape(state.question.text)}", soft_wrap=True)
    if (answer := state.answer) is not None:
        said = f": {answer.text}" if answer.text else ""
        by = f" by {answer.by}" if answer.by else ""
        line = f"  answered{by}: {answer.option}{said}" if answer.option else "  expired without an answer"
        console.print(escape(line), soft_wrap=True)
        return
    if state.question.approvers:
        console.print(f"  for {escape(' or '.join(state.question.approvers))}")
    for option in state.question.options:
        command = f"perdure answer {shlex.quote(run.run_id)} {shlex.quote(option)}"
        console.print(f"  [dim]{escape(command)}[/]", soft_wrap=True)
