"""`perdure answer`, `approve`, `deny` and `cancel`."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click
from pydantic import ValidationError
from rich.markup import escape

from contracts.run.signals import CancelRequest, Decision, HumanInput
from contracts.run.state import RunStatus
from decisions.run.question import TEXTUAL
from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.run_list import find_run
from perdure.client.runs import query_run_state, request_cancel, submit_answer, wait_for_run_end
from perdure.session import Needs, open_session
from perdure.terminal.command import (
    FreeTextCommand,
    async_command,
    console,
    format_examples,
    run_argument,
    to_usage_error,
)
from settings import load_settings
from settings.problems import format_suggestion

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
@click.option("--decision", type=DecisionType(DECISIONS), help="The decision, for a question that takes one.")
@add_answer_options
@async_command()
async def answer_command(run_id: str, text: str | None, decision: str | None, **named: str | None) -> int:
    """Answer the open question of a run.

    TEXT is the answer in words, or the result for the decision use_result. A TEXT that begins with "-" goes after "--".
    """
    if decision is not None and decision not in DECISIONS:
        await _reject_decision(run_id, decision)
    return await _send_answer(run_id, text=text, decision=decision, **named)


async def _reject_decision(run_id: str, decision: str) -> None:
    """Raise click.UsageError with the decisions that the open question takes, or with all if no question is open."""
    question = None
    async with open_session(load_settings(), Needs.answers) as session:
        with suppress(RunNotFoundError, RejectedError):
            run = await find_run(session.client, run_id)
            view = await query_run_state(session.client, run.run_id) if run.is_open else None
            question = view.question if view else None
    if question is None:
        valid, words = "the decisions are", DECISIONS
    elif question.kind in TEXTUAL:
        valid, words = f"question {question.id} takes", ["a text"]
    else:
        valid, words = f"question {question.id} takes one of", list(question.options)
    raise click.UsageError(
        f"invalid --decision {decision!r}{format_suggestion(decision, words)}; {valid}: {', '.join(words)}"
    )


@click.command("approve", epilog=format_examples("approve RUN", "approve RUN --call DIGEST", "approve RUN --tool"))
@run_argument
@click.option("--tool", "for_the_run", is_flag=True, help="Approve this tool for the rest of the run.")
@add_answer_options
@async_command()
async def approve_command(run_id: str, *, for_the_run: bool, **named: str | None) -> int:
    """Approve the tool call a run is waiting on.

    The approval is for one call, with the arguments shown.
    """
    return await _send_answer(run_id, decision=Decision.approve_tool if for_the_run else Decision.approve, **named)


@click.command("deny", epilog=format_examples('deny RUN --reason "too expensive"'))
@run_argument
@click.option("--reason", "text", help="The reason, for the agent.")
@add_answer_options
@async_command()
async def deny_command(run_id: str, text: str | None, **named: str | None) -> int:
    """Deny the tool call a run is waiting on; the run continues."""
    return await _send_answer(run_id, text=text, decision=Decision.deny, **named)


async def _send_answer(run_id: str, **fields: str | None) -> int:
    try:
        body = HumanInput.model_validate(fields)
    except ValidationError as error:
        raise to_usage_error(error) from None

    async with open_session(load_settings(), Needs.answers) as session:
        await submit_answer(session.client, run_id, body, session.settings.answer_keys)
        warning = await session.missing_worker_message(run_id)
    console.print(escape(f"accepted; {warning}" if warning else "accepted"), soft_wrap=True)
    return 0


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
    async with open_session(load_settings(), Needs.work) as session:
        await request_cancel(session.client, run_id, body)
        console.print("cancel requested; waiting for running calls …")
        if warning := await session.missing_worker_message():
            console.print(f"[yellow]{warning}[/]")
        end = await wait_for_run_end(session.client, run_id)
    console.print(end.status)
    return 0 if end.status == RunStatus.cancelled else 1
