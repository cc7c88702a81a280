"""`perdure answer`, `approve`, `deny` and `cancel`."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from rich.markup import escape

from perdure.client.door import name_person, set_sender
from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.files import attach_files
from perdure.contracts.people import CLI
from perdure.contracts.run.signals import CancelRequest, Decision, HumanInput, QuestionKind
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.contracts.strict_input import parse_strict_json
from perdure.decisions.ids import ADDRESSED_PREFIXES, QUESTION_PREFIX
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.visible_text import render_visible
from perdure.python_client import Perdure, Run
from perdure.session import Needs, Session, open_session
from perdure.settings import load_settings
from perdure.settings.problems import format_suggestion
from perdure.terminal.command import (
    FreeTextCommand,
    async_command,
    attach_option,
    console,
    format_examples,
    print_faults,
    run_argument,
    to_usage_error,
)

DECISIONS = [decision.value for decision in Decision]  # for an enum, click offers the names


class DecisionType(click.Choice[str]):
    """A choice that accepts any word here: the error for a wrong one names the options of the open question."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's signature
        return str(value)


def add_answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that identify the question, the call and the person."""
    for option in (
        click.option("--by", help="Name of the person who answers."),
        click.option("--call", metavar="DIGEST", help="Answer only if this call is the one to approve."),
        click.option("--question", "question_id", metavar="ID", help="Answer only if this question is open."),
    ):
        command = option(command)
    return command


@click.command(
    "answer",
    cls=FreeTextCommand,
    epilog=format_examples('answer RUN "the second one"', "answer RUN --decision run_again"),
)
@run_argument
@click.argument("text", required=False)
@attach_option
@click.option("--text", "more", metavar="TEXT", help="With an option of a project question: what you add to it.")
@click.option("--decision", type=DecisionType(DECISIONS), help="The decision, for a question that takes one.")
@add_answer_options
@async_command()
async def answer_command(
    run_id: str, text: str | None, attach: tuple[Path, ...], more: str | None, decision: str | None, **named: str | None
) -> int:
    """Answer the open question of a run.

    TEXT is the answer in words, or the result for the decision use_result. A TEXT that begins with "-" goes after "--".
    For a question of the project, question:ID, it is one of its options.
    """
    if run_id.startswith(QUESTION_PREFIX) and text is not None:
        return await _send_answer(run_id, attach, option=text, text=more, decision=decision, **named)
    if more is not None:
        raise click.UsageError(
            "--text adds something to an option of a project question: perdure answer question:ID OPTION --text …"
        )
    if decision is not None and decision not in DECISIONS:
        await _reject_decision(run_id, decision)
    return await _send_answer(run_id, attach, text=text, decision=decision, **named)


async def _reject_decision(run_id: str, decision: str) -> None:
    """Raise click.UsageError with the decisions that the open question takes, or with all if no question is open."""
    question = None
    async with open_session(load_settings(strict=False), Needs.answers) as session:
        with suppress(RunNotFoundError, RejectedError):
            run = Perdure.over(session).get_run(run_id)
            view = await run.state() if (await run.info()).is_open else None
            question = view.question if view else None
    if question is None:
        valid, words = "the decisions are", DECISIONS
    elif QUESTIONS[question.kind].is_textual:
        valid, words = f"question {question.id} takes", ["a text"]
    else:
        valid, words = f"question {question.id} takes one of", list(question.options)
    raise click.UsageError(
        f"invalid --decision {decision!r}{format_suggestion(decision, words)}; {valid}: {', '.join(words)}"
    )


@click.command(
    "approve",
    epilog=format_examples("approve RUN", "approve RUN --call DIGEST", "approve RUN --all", "approve RUN --edit"),
)
@run_argument
@click.option("--tool", "for_the_run", is_flag=True, help="Approve this tool for the rest of the run.")
@click.option("--all", "all_calls", is_flag=True, help="Approve all calls that wait now, each with its digest.")
@click.option("--arguments", metavar="JSON|@FILE", help="Make the call with these arguments instead.")
@click.option("--edit", is_flag=True, help="Change the arguments in $EDITOR.")
@add_answer_options
@async_command()
async def approve_command(
    run_id: str, *, for_the_run: bool, all_calls: bool, arguments: str | None, edit: bool, **named: str | None
) -> int:
    """Approve the tool call a run is waiting on.

    The approval is for one call, with the arguments shown. --arguments and --edit change them: the tool's schema is
    checked, and the agent gets the arguments that were used.
    """
    if sum((for_the_run, all_calls, arguments is not None, edit)) > 1:
        raise click.UsageError("--tool, --all, --arguments and --edit exclude each other")
    if all_calls:
        return await _decide_all(run_id, Decision.approve, **named)
    decision = Decision.approve_tool if for_the_run else Decision.approve
    if edit or arguments is not None:
        named = await _name_call(run_id, named, is_edited=edit)
        before = named.pop("before") or "{}"
        changed = read_object(arguments) if arguments is not None else _edit_arguments(before)
        return await _send_answer(run_id, (), decision=decision, arguments=changed, **named)
    return await _send_answer(run_id, (), decision=decision, **named)


def read_object(text: str) -> Any:
    """Parse the JSON of `--arguments`, or of the file after an @. Raises click.UsageError."""
    try:
        value = parse_strict_json(Path(text[1:]).read_text(encoding="utf-8-sig") if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--arguments: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError('--arguments: expected a JSON object, such as {"cents": 500}')
    return value


def _edit_arguments(shown: str) -> Any:
    """Let the person edit the arguments. Raises click.UsageError if nothing is saved."""
    try:
        text = click.edit(shown, extension=".json")
    except click.ClickException as error:
        raise RejectedError(f"the editor of $VISUAL or $EDITOR does not work: {error.message}") from None
    if text is None:
        raise click.UsageError("nothing was saved in the editor, so the call is not approved")
    return read_object(text.strip())


async def _name_call(run_id: str, named: dict[str, str | None], *, is_edited: bool) -> dict[str, str | None]:
    """Return the fields that name the call to change, and its arguments as `before`. Raises click.UsageError."""
    calls = await _open_approvals(run_id)
    fits = [
        question
        for question in calls
        if named["question_id"] in (None, question.id) and named["call"] in (None, question.call)
    ]
    if len(fits) != 1:
        names = ", ".join(question.id for question in calls) or "none"
        raise click.UsageError(f"name the call to change with --question; calls that wait: {names}")
    before = json.dumps(fits[0].arguments, indent=2, ensure_ascii=False)
    # What an editor shows is the call as it is; without one, a call that was changed must be named by the person.
    call = fits[0].call if is_edited or not fits[0].revision else named["call"]
    return {**named, "question_id": fits[0].id, "call": call, "before": before}


async def _open_approvals(run_id: str) -> list[QuestionView]:
    """Return the approvals that the run waits for. Raises RejectedError without a worker."""
    async with open_session(load_settings(strict=False), Needs.answers) as session:
        run = Perdure.over(session).get_run(run_id)
        await run.info()
        view = await run.state()
    if view is None:
        raise RejectedError(f"no worker answers for run {run_id} now, so its calls cannot be read: perdure worker")
    return [question for question in view.questions if question.kind == QuestionKind.approval]


async def _decide_all(run_id: str, decision: Decision, *, by: str | None, text: str | None = None, **named: Any) -> int:
    """Decide on each call that waits now, bound to its digest. Calls that are asked about meanwhile stay open."""
    if any(named.values()):
        raise click.UsageError("--all names every call: leave out --question and --call")
    calls = await _open_approvals(run_id)
    if not calls:
        raise RejectedError(f"no call of run {run_id} waits for approval")
    failed = 0
    async with open_session(load_settings(strict=False), Needs.answers) as session:
        _name_sender(session, by)
        run = Perdure.over(session).get_run(run_id)
        for question in calls:
            body = HumanInput(question_id=question.id, decision=decision, by=by, text=text)
            try:
                await run.send_answer(_show_call(question, body))
                result = "denied" if decision is Decision.deny else "approved"
            except RejectedError as error:
                result, failed = str(error), failed + 1
            call = render_visible(question.text).partition("\n")[0]
            console.print(escape(f"{question.id}: {call}: {result}"), soft_wrap=True)
    return 1 if failed else 0


@click.command("deny", epilog=format_examples('deny RUN --reason "too expensive"', "deny RUN --all"))
@run_argument
@click.option("--reason", "text", help="The reason, for the agent.")
@click.option("--all", "all_calls", is_flag=True, help="Deny all calls that wait now.")
@add_answer_options
@async_command()
async def deny_command(run_id: str, text: str | None, *, all_calls: bool, **named: str | None) -> int:
    """Deny the tool call a run is waiting on; the run continues."""
    if all_calls:
        return await _decide_all(run_id, Decision.deny, text=text, **named)
    return await _send_answer(run_id, (), text=text, decision=Decision.deny, **named)


async def _send_answer(run_id: str, attach: tuple[Path, ...], **fields: Any) -> int:
    try:
        body = HumanInput.model_validate(fields)
    except ValidationError as error:
        raise to_usage_error(error) from None

    settings = load_settings(strict=False)
    body = body.evolve(attachments=await attach_files(settings.stores, attach))
    async with open_session(settings, Needs.answers) as session:
        _name_sender(session, body.by)
        run = Perdure.over(session).get_run(run_id)
        if body.decision is not None and (question := await _find_call(run, body)):
            body = _show_call(question, body)
        await run.send_answer(body)
        warning = await session.missing_worker_message(run_id)
    console.print(escape(f"accepted; {warning}" if warning else "accepted"), soft_wrap=True)
    return 0


async def _find_call(run: Run, body: HumanInput) -> QuestionView | None:
    """Return the open question about a call that the answer is for, if it is for exactly one."""
    view = None
    with suppress(RunNotFoundError):
        view = None if run.id.startswith(ADDRESSED_PREFIXES) else await run.state()
    questions = view.questions if view else ()
    asked = [q for q in questions if body.question_id in (None, q.id) and body.call in (None, q.call)]
    return asked[0] if len(asked) == 1 and asked[0].call is not None else None


def _show_call(question: QuestionView, body: HumanInput) -> HumanInput:
    """Print the call that is decided on, and return the answer bound to it, with what was printed.

    A call that was changed is not bound here: the person may have seen it as it was before, so they must name it.
    """
    if question.revision and body.call is None:
        return body
    shown = render_visible(question.text)
    click.echo(f"{question.id}, call {question.call}: {shown}", err=True)
    return body.evolve(question_id=question.id, call=question.call, shown=shown)


def _name_sender(session: Session, by: str | None) -> None:
    """Answer as `--by` says: a user of this machine is trusted with the name, as with everything else."""
    if by:
        set_sender(name_person(session.settings.file.people, by, CLI))


@click.command("cancel", epilog=format_examples('cancel RUN --reason "not needed"'))
@run_argument
@click.option("--reason", help="The reason, stored with the run.")
@async_command()
async def cancel_command(run_id: str, reason: str | None) -> int:
    """Cancel a run.

    A side effect that is in progress finishes first, and its result is kept.
    """
    try:
        body = CancelRequest(reason=reason, by="perdure cancel")
    except ValidationError as error:
        raise to_usage_error(error) from None
    async with open_session(load_settings(strict=False), Needs.follow) as session:
        print_faults(session.fault)
        run = Perdure.over(session).get_run(run_id)
        await run.cancel(body.reason, by="perdure cancel")
        if session.fault is not None:
            console.print("cancel requested; the run ends when a worker runs again, after these faults are corrected")
            return 0
        console.print("cancel requested; waiting for running calls …")
        if warning := await session.missing_worker_message():
            console.print(f"[yellow]{warning}[/]")
        end = await run.end()
    console.print(end.status)
    return 0 if end.status == RunStatus.cancelled else 1
