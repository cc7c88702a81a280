"""`perdure questions`: one inbox over all runs."""

import json
import shlex
from collections.abc import Iterator
from datetime import timedelta

import click
from rich.text import Text

from contracts.run.question import QuestionKind
from decisions.run.question import TEXTUAL, TITLES
from perdure.client.door import groups_of
from perdure.client.questions import ANY, ListedQuestion, QuestionFilter, QuestionList, list_questions
from perdure.session import Needs, open_session
from perdure.terminal.command import DurationType, as_json_option, async_command, console, format_examples
from perdure.terminal.progress import format_count
from perdure.terminal.report import format_age, to_one_line
from settings import load_settings


@click.command(
    "questions",
    epilog=format_examples(
        "questions", "questions --for ann --older-than 4h", "questions --kind approval --tool refund"
    ),
)
@click.option("--agent", help="Only questions of this agent's runs.")
@click.option("--tool", help="Only questions about calls of this tool.")
@click.option("--kind", type=click.Choice([kind.value for kind in QuestionKind]), help="Only questions of this kind.")
@click.option("--group", help="Only approvals that this group of [people] is asked for.")
@click.option(
    "--for", "person", metavar="NAME", help="Only questions that this person may answer and has not approved."
)
@click.option(
    "--older-than", type=DurationType(), metavar="TIME", help="Only questions open for this long, such as 4h."
)
@click.option(
    "--limit", type=click.IntRange(1, 200), default=100, show_default=True, help="Maximum number of questions."
)
@as_json_option
@async_command()
async def questions_command(
    agent: str | None,
    tool: str | None,
    kind: str | None,
    group: str | None,
    person: str | None,
    older_than: timedelta | None,
    limit: int,
    as_json: bool,
) -> int:
    """List the open questions of all runs, with filters.

    Each has the command that shows or answers it. Filters combine.
    """
    settings = load_settings()
    groups = groups_of(settings.file.people, person) if person is not None else ()
    only = QuestionFilter(agent, tool, QuestionKind(kind) if kind else None, group, person, groups, older_than)
    async with open_session(settings, Needs.answers) as session:
        found = await list_questions(session.client, limit, only)
    if as_json:
        for question in found.questions:
            click.echo(json.dumps(question.model_dump(mode="json")))
    else:
        print_questions(found, is_filtered=only != ANY)
    return 0


def print_questions(found: QuestionList, *, is_filtered: bool = True) -> None:
    """Print open questions, each with its run, its age, and the command that shows or answers it."""
    for listed in found.questions:
        for line in _format_question(listed):
            line.truncate(console.width, overflow="ellipsis")
            console.print(line, soft_wrap=True)
    if not found.questions:
        console.print("no such question is open" if is_filtered else "no question is open")
    if found.unread:
        runs = format_count(found.unread, "run")
        console.print(f"[yellow]no worker answers for {runs}, whose questions are not listed[/]")
    if found.is_partial:
        console.print("[dim]more runs wait for a person: perdure list --waiting[/]")


def _format_question(listed: ListedQuestion) -> Iterator[Text]:
    question, run_id = listed.question, to_one_line(listed.run_id)
    asked_at = (question and question.asked_at) or listed.started_at
    about = [listed.agent, format_age(asked_at)]
    if question is not None:
        title = TITLES[QuestionKind(question.kind)]
        about = [question.id, f"{title}: {question.tool}" if question.tool else title, *about]
        about.append(f"for {' or '.join(question.approvers)}" if question.approvers else "")
    yield Text.assemble((run_id, "bold yellow"), "  ", ("  ".join(filter(None, map(to_one_line, about))), "dim"))
    yield Text(f"  {to_one_line(question.text if question else listed.waiting_for)}")
    command = f"perdure show {shlex.quote(listed.run_id)}"
    if question is not None and question.kind in TEXTUAL:  # a call must be seen before it is approved
        command = f'perdure answer {shlex.quote(listed.run_id)} --question {question.id} "…"'
    yield Text(f"  {command}", style="dim")
