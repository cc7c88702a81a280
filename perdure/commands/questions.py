"""Commands about people's questions, events and notices: `questions`, `list --dead`, `redeliver`."""

import json
import shlex
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import click
from rich.markup import escape
from rich.text import Text
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecution
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure.client.dead_letters import MAX_DEAD_LETTERS, dead_letter_inputs, find_dead_letters, read_dead_letters
from perdure.client.door import groups_of
from perdure.client.errors import RejectedError
from perdure.client.questions import ANY, ListedQuestion, QuestionFilter, QuestionList
from perdure.contracts.run.signals import QuestionKind
from perdure.decisions.run.question import QUESTIONS
from perdure.python_client import Perdure
from perdure.registry import load
from perdure.session import Needs, open_session
from perdure.settings import load_settings
from perdure.terminal.command import DurationType, as_json_option, async_command, console, format_examples
from perdure.terminal.progress import format_count
from perdure.terminal.report import format_age, to_one_line


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
    settings = load_settings(strict=False)
    groups = groups_of(settings.file.people, person) if person is not None else ()
    only = QuestionFilter(agent, tool, QuestionKind(kind) if kind else None, group, person, groups, older_than)
    async with open_session(settings, Needs.answers) as session:
        found = await Perdure.over(session).questions(only, limit)
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
        title = QUESTIONS[question.kind].title
        about = [question.id, f"{title}: {question.tool}" if question.tool else title, *about]
        groups = dict.fromkeys(" or ".join(terms.approvers) for terms in question.terms if not terms.is_met)
        about += [f"{format_count(listed.runs, 'run')} asked for it"] if listed.runs is not None else []
        about.append(" and ".join(f"for {asked}" for asked in groups if asked))
    yield Text.assemble((run_id, "bold yellow"), "  ", ("  ".join(filter(None, map(to_one_line, about))), "dim"))
    yield Text(f"  {to_one_line(question.text if question else listed.waiting_for)}")
    command = f"perdure show {shlex.quote(listed.run_id)}"
    if question is not None and question.kind == QuestionKind.project:
        command = f"perdure answer {shlex.quote(listed.run_id)} {'|'.join(map(shlex.quote, question.options))}"
    elif question is not None and QUESTIONS[question.kind].is_textual:  # a call must be seen before it is approved
        command = f'perdure answer {shlex.quote(listed.run_id)} --question {question.id} "…"'
    yield Text(f"  {command}", style="dim")


ALL = "all"


async def print_dead_letters(*, as_json: bool) -> int:
    """List the dead letters, the latest first."""
    async with open_session(load_settings(strict=False), Needs.nothing) as session:
        letters = (await read_dead_letters(session.client, MAX_DEAD_LETTERS)).dead_letters
    for letter in letters:
        if as_json:
            click.echo(json.dumps(letter.model_dump(mode="json")))
        else:
            failed_at = f"{letter.failed_at:%Y-%m-%d %H:%M:%S}" if letter.failed_at else ""
            console.print(f"{escape(letter.id)}  [dim]{failed_at}[/]\n  {escape(letter.reason)}", soft_wrap=True)
    if not (letters or as_json):
        console.print("no dead letters: every event began its work, and every notice was delivered")
    return 0


@click.command("redeliver", epilog=format_examples("redeliver start:issues:1f0c…", "redeliver all"))
@click.argument("which", metavar="ID|all")
@async_command()
async def redeliver_command(which: str) -> int:
    """Deliver dead letters again, after their cause is corrected.

    List them with `perdure list --dead`.
    """
    async with open_session(load_settings(strict=False), Needs.nothing) as session:
        dead = await find_dead_letters(session.client)
        chosen = [execution for execution in dead if which in (ALL, execution.id)]
        if not chosen and which != ALL:
            raise RejectedError(f"there is no dead letter {which}: perdure list --dead lists them")
        for execution in chosen:
            await _redeliver(session.client, execution)
            console.print(f"delivering {escape(execution.id)}", soft_wrap=True)
    if not chosen:
        console.print("no dead letters")
    return 0


async def _redeliver(client: Client, execution: WorkflowExecution) -> None:
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            started = event.workflow_execution_started_event_attributes
            break
    else:
        raise RejectedError(f"the history of {execution.id} is gone: it is past the namespace's retention")
    kind: type[Any] = load(dead_letter_inputs()[execution.workflow_type])
    request = (await client.data_converter.decode(started.input.payloads, [kind]))[0]
    try:
        await client.start_workflow(
            execution.workflow_type,
            request,
            id=execution.id,
            task_queue=execution.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
        )
    except WorkflowAlreadyStartedError:
        raise RejectedError(f"{execution.id} is being delivered again already") from None
