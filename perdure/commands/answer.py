"""What people say to a run: `perdure answer`, `approve`, `deny` and `cancel`."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click
from pydantic import ValidationError
from rich.markup import escape

from contracts.run.signals import CancelRequest, Decision, HumanInput
from contracts.run.state import RunStatus
from decisions.run.question import TEXTUAL
from perdure.client.errors import NoSuchRun, Refused
from perdure.client.run_list import find
from perdure.client.runs import answer, cancel, ended, state
from perdure.session import Needs, session
from perdure.terminal.command import console, examples, go, run_argument, wrong_usage
from perdure.terminal.free_text import FreeText
from settings import load
from settings.problems import meant

DECISIONS = [each.value for each in Decision]  # of an enum, click would take the names


class DecisionType(click.Choice[str]):
    """Another word is no usage error yet: the question that is open tells which of these it takes."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's signature
        return str(value)


def names_what_it_answers(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options by which an answer says what it is an answer to, and whose it is."""
    for option in (
        click.option("--by", help="Who answers."),
        click.option("--call", metavar="DIGEST", help="Answer only if it is this call that waits for approval."),
        click.option("--question", "question_id", metavar="ID", help="Answer only if this question is the open one."),
    ):
        command = option(command)
    return command


@click.command(
    "answer", cls=FreeText, epilog=examples('answer RUN "the second one"', "answer RUN --decision run_again")
)
@run_argument
@click.argument("text", required=False)
@click.option("--decision", type=DecisionType(DECISIONS), help="What the question takes, where that is no text.")
@names_what_it_answers
def answer_(run_id: str, text: str | None, decision: str | None, **named: str | None) -> None:
    """Answer the open question of a run.

    TEXT is the answer in words, or the result for the decision use_result. A word that begins with "-" comes after
    "--".
    """
    if decision is not None and decision not in DECISIONS:
        go(lambda: _refuse(run_id, decision))
    _send(run_id, text=text, decision=decision, **named)


async def _refuse(run_id: str, decision: str) -> int:
    """Raises click.UsageError with the decisions that the open question takes; with all of them where none is open."""
    question = None
    async with session(load(), Needs.answers) as here:
        with suppress(NoSuchRun, Refused):
            found = await find(here.client, run_id)
            view = await state(here.client, found.run_id) if found.is_open else None
            question = view.question if view else None
    if question is None:
        takes, words = "there are", DECISIONS
    elif question.kind in TEXTUAL:
        takes, words = f"question {question.id} takes", ["a text"]
    else:
        takes, words = f"question {question.id} takes one of", list(question.options)
    raise click.UsageError(f"--decision {decision!r} is none{meant(decision, words)}; {takes}: {', '.join(words)}")


@click.command(epilog=examples("approve RUN", "approve RUN --call DIGEST", "approve RUN --tool"))
@run_argument
@click.option("--tool", "for_the_run", is_flag=True, help="This tool, for the rest of the run.")
@names_what_it_answers
def approve(run_id: str, *, for_the_run: bool, **named: str | None) -> None:
    """Let a call be made that a run asks approval for.

    This once, and with the arguments that are shown.
    """
    _send(run_id, decision=Decision.approve_tool if for_the_run else Decision.approve, **named)


@click.command(epilog=examples('deny RUN --reason "too dear"'))
@run_argument
@click.option("--reason", "text", help="Why; told to the agent.")
@names_what_it_answers
def deny(run_id: str, text: str | None, **named: str | None) -> None:
    """Refuse a call that a run asks approval for; the run goes on.

    The agent is told, and why.
    """
    _send(run_id, text=text, decision=Decision.deny, **named)


def _send(run_id: str, **said: str | None) -> None:
    try:
        body = HumanInput.model_validate(said)
    except ValidationError as error:
        raise wrong_usage(error) from None

    async def main() -> int:
        async with session(load(), Needs.answers) as here:
            await answer(here.client, run_id, body, here.settings.answer_keys)
            lack = await here.no_worker(run_id)
        console.print(escape(f"accepted; {lack}" if lack else "accepted"), soft_wrap=True)
        return 0

    go(main)


@click.command("cancel", epilog=examples('cancel RUN --reason "not needed"'))
@run_argument
@click.option("--reason", help="Why; kept with the run.")
def cancel_(run_id: str, reason: str | None) -> None:
    """Stop a run.

    A side effect that is running is finished first, and its result kept.
    """
    try:
        body = CancelRequest(reason=reason, by="perdure cancel")
    except ValidationError as error:
        raise wrong_usage(error) from None

    async def main() -> int:
        async with session(load(), Needs.work) as here:
            await cancel(here.client, run_id, body)
            console.print("asked to stop; waiting for what is running …")
            if lack := await here.no_worker():
                console.print(f"[yellow]{lack}[/]")
            end = await ended(here.client, run_id)
        console.print(end.status)
        return 0 if end.status == RunStatus.cancelled else 1

    go(main)
