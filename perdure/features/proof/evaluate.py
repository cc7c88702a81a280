"""An evaluation: the runs of a table of cases, with a person's answers as the cases have them."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import click
from temporalio.client import Client

from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.runs import request_cancel, wait_for_run_end
from perdure.contracts.run.signals import CancelRequest, HumanInput
from perdure.contracts.run.state import QuestionView
from perdure.features.proof.case import case_start_event
from perdure.features.proof.contract import Case, CaseResult, Score
from perdure.features.proof.facts import facts_of_run
from perdure.features.proof.play import Person, play_to_end
from perdure.features.proof.rules import failed_checks
from perdure.python_client import Perdure
from perdure.session import Session
from perdure.terminal.progress import format_count
from perdure.terminal.prompt import parse_answer

EVAL_SENDER = "perdure eval"
CANCEL_SECONDS = 30.0  # seconds for cancelled runs to end


@dataclass
class CasePlay:
    """One run of a case, with the answers that are left. It is cancelled at a question that they do not settle."""

    client: Client
    run_id: str
    left: deque[str]
    unanswered: str | None = None  # that question, with what is wrong with its answer

    def __post_init__(self) -> None:
        self.person = Person(self.client, self._choose)

    async def _choose(self, question: QuestionView) -> HumanInput | None:
        return parse_answer(question, self.left.popleft()) if self.left else None

    async def answer(self, question: QuestionView) -> None:
        """Send the next answer, or cancel the run."""
        if self.unanswered is not None:
            return
        line = next(iter(self.left), None)
        try:
            if not await self.person.answer(self.run_id, question):
                self.unanswered = question.text
        except RejectedError as error:
            self.unanswered = f"the answer {line!r} was rejected: {error}; the question was: {question.text}"
        if self.unanswered is not None:
            await _cancel(self.client, self.run_id, f"an unexpected question: {question.text}"[:1000])


async def _cancel(client: Client, run_id: str, reason: str) -> None:
    with suppress(RejectedError, RunNotFoundError):  # it has ended, or never started
        await request_cancel(client, run_id, CancelRequest(reason=reason, by=EVAL_SENDER))


@dataclass
class Evaluation:
    """An evaluation: the runs of all cases. It calls `show` after each run; `token` makes its run ids unique."""

    session: Session
    agent: str | None
    at_once: asyncio.Semaphore
    show: Callable[[CaseResult], None] | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(3))
    _open: dict[str, "asyncio.Future[Any]"] = field(default_factory=dict)  # the start of each active run, by run id

    async def run_cases(self, cases: Sequence[Case], repeat: int) -> list[CaseResult]:
        """Run the cases, and return the results in their order. If it is stopped, its active runs are cancelled."""
        runs = [
            asyncio.create_task(self._run_case(number, case, again))
            for number, case in enumerate(cases, 1)
            for again in range(1, repeat + 1)
        ]
        try:
            return await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)
            await self._cancel_all()

    async def _run_case(self, number: int, case: Case, again: int) -> CaseResult:
        async with self.at_once:
            run_id, began = f"eval-{self.token}-{number}-{again}", time.monotonic()
            client = self.session.client
            start = case_start_event(case, self.agent, quiet=True)
            self._open[run_id] = asyncio.ensure_future(Perdure.over(self.session).begin(start, run_id))
            await asyncio.shield(self._open[run_id])  # a cancellation must not lose a start in progress
            play = CasePlay(client, run_id, deque(case.expect.answer))
            await play_to_end(client, run_id, play.answer)
            del self._open[run_id]
            seconds, workspaces = time.monotonic() - began, self.session.settings.workspaces
            facts = await facts_of_run(client, workspaces, run_id, play.person.asked, play.unanswered)
        result = CaseResult(
            number, case, Score(run_id=run_id, why=failed_checks(case.expect, facts), facts=facts, seconds=seconds)
        )
        if self.show:
            self.show(result)
        return result

    async def _cancel_all(self) -> None:
        """Cancel the active runs, and wait for their ends: a tool call in progress finishes first."""
        if not self._open:
            return
        client = self.session.client
        await asyncio.gather(*self._open.values(), return_exceptions=True)
        click.echo(f"cancelling {format_count(len(self._open), 'run')} …", err=True)
        await asyncio.gather(*(_cancel(client, run_id, "the evaluation was stopped") for run_id in self._open))
        ends = {run_id: asyncio.ensure_future(wait_for_run_end(client, run_id)) for run_id in self._open}
        await asyncio.wait(ends.values(), timeout=CANCEL_SECONDS)
        if late := [run_id for run_id, end in ends.items() if not end.done()]:
            click.echo(f"not ended within {CANCEL_SECONDS:g} s: {', '.join(late)}; perdure show RUN says why", err=True)
        for end in ends.values():
            end.cancel()
        await asyncio.gather(*ends.values(), return_exceptions=True)
