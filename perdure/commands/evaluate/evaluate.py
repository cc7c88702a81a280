"""`perdure eval`: run a table of test goals, and report the pass rate."""

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import click

from contracts.run.evaluation import Case, Expectation, Score
from contracts.run.signals import CancelRequest
from contracts.run.state import QuestionView, RunStatus
from decisions import builtin_tools
from decisions.evaluation import failed_checks, pass_rate
from decisions.text.formatting import truncate
from perdure.client.errors import RejectedError, RunNotFoundError, TemporalUnavailableError
from perdure.client.run_events import WaitStarted
from perdure.client.run_list import RunFilter, find_run
from perdure.client.runs import query_run_state, request_cancel, start_or_get_run, submit_answer, wait_for_run_end
from perdure.client.watch import Watch
from perdure.commands.evaluate.cases import case_start_event, read_cases
from perdure.commands.evaluate.facts import collect_case_facts
from perdure.commands.evaluate.scores import CaseResult, print_report, print_score, report_to_json
from perdure.session import Needs, Session, open_session
from perdure.terminal.command import (
    DurationType,
    as_json_option,
    async_command,
    console,
    format_examples,
    print_error,
)
from perdure.terminal.completion import complete_agents
from perdure.terminal.follow import DETACHED, stop_event
from perdure.terminal.prompt import parse_answer
from settings import ProjectError, Settings, load_settings

EVAL_SENDER = "perdure eval"
CANCEL_SECONDS = 30.0  # seconds for cancelled runs to end
EVAL_POLL_SECONDS = 0.5  # seconds between queries of a run that does not answer
END_STATUSES = get_args(Expectation.model_fields["status"].annotation)


DEFAULT_REPEAT, DEFAULT_CONCURRENCY, DEFAULT_MIN_PASS = 1, 4, 1.0


@click.command(
    "eval",
    epilog=format_examples(
        "eval cases.yaml",
        "eval cases.yaml --repeat 5 --min-pass 0.9",
        "eval --from-runs --since 30d --agent clerk --output golden",
    ),
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--agent",
    shell_complete=complete_agents,
    help="The agent for cases that name no agent; with --from-runs: only its runs.",
)
@click.option(
    "--repeat", type=click.IntRange(1, 1000), default=DEFAULT_REPEAT, show_default=True, help="Runs per case."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100),
    default=DEFAULT_CONCURRENCY,
    show_default=True,
    help="Concurrent runs.",
)
@click.option(
    "--min-pass",
    type=click.FloatRange(0, 1),
    default=DEFAULT_MIN_PASS,
    show_default=True,
    help="Minimum share of runs that pass.",
)
@click.option(
    "--from-runs",
    "query",
    is_flag=False,
    flag_value="",
    metavar="[QUERY]",
    help="Make cases from past runs instead; QUERY is a list filter of Temporal.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="With --from-runs: a new folder.")
@click.option(
    "--since", type=DurationType(), metavar="TIME", help="With --from-runs: runs started within this time, such as 30d."
)
@click.option("--status", type=click.Choice(END_STATUSES), help="With --from-runs: only runs that ended so.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="With --from-runs: maximum number of runs.",
)
@as_json_option
@async_command()
async def eval_command(
    file: Path | None,
    agent: str | None,
    repeat: int,
    concurrency: int,
    min_pass: float,
    query: str | None,
    output: Path | None,
    since: timedelta | None,
    status: str | None,
    limit: int,
    as_json: bool,
) -> int:
    """Run a table of test goals and report the pass rate.

    FILE is YAML or JSON Lines (docs/evaluating.md): cases with a goal and the expected result; or a folder of such
    files. The runs are real, with real tools, and their cost is reported. An unexpected question fails the case, and
    its run is cancelled. The exit code is 1 if the pass rate is below --min-pass. Ctrl-C cancels all active runs.

    With --from-runs nothing is run: each past run becomes a case, and its secrets are redacted.
    """
    if query is not None and file is None:
        if output is None:
            raise click.UsageError("--from-runs requires --output")
        if (repeat, concurrency, min_pass) != (DEFAULT_REPEAT, DEFAULT_CONCURRENCY, DEFAULT_MIN_PASS):
            raise click.UsageError("--repeat, --concurrency and --min-pass are for running cases, not for --from-runs")
        from perdure.commands.evaluate.golden import write_golden_set

        runs = RunFilter(query, since, agent, status, limit)
        return await write_golden_set(load_settings(), runs, output, as_json=as_json)
    if file is None or query is not None:
        raise click.UsageError("give either FILE or --from-runs")
    if output or since or status:
        raise click.UsageError("--output, --since and --status require --from-runs")
    return await _evaluate(file, agent, repeat, concurrency, min_pass, as_json=as_json)


async def _evaluate(
    file: Path, agent: str | None, repeat: int, concurrency: int, min_pass: float, *, as_json: bool
) -> int:
    """Run the cases of the file, report, and return the exit code."""
    settings = load_settings()
    cases = read_cases(file)
    for case in cases:
        settings.check_agent(case.agent or agent)
    await check_case_tools(cases, settings)
    stop = stop_event()
    async with open_session(settings, Needs.work) as session:
        if warning := await session.missing_worker_message():
            raise TemporalUnavailableError(warning)
        if session.rehearsal_message:
            print_error(session.rehearsal_message)  # scores of the rehearsal model say nothing about an agent
        show = None if as_json else lambda result: print_score(console, result)
        evaluation = Evaluation(session, agent, asyncio.Semaphore(concurrency), show)
        results = await evaluation.run_until_stopped(stop, evaluation.run_cases(cases, repeat))
    if results is None:
        return DETACHED
    if as_json:
        click.echo(json.dumps(report_to_json(file, results, min_pass)))
    else:
        print_report(console, results, min_pass)
    return 0 if pass_rate([result.score for result in results]) >= min_pass else 1


async def check_case_tools(cases: Sequence[Case], settings: Settings) -> None:
    """Check the tool names of the cases: a misspelt `never_calls` would always pass. Raises ProjectError."""
    from perdure.process.project import display_project

    async with display_project(settings) as project:
        existing = sorted({*project.tools, *builtin_tools.BUILTIN_NAMES})
    for case in cases:
        for setting, named in (("calls", case.expect.calls), ("never_calls", case.expect.never_calls)):
            if unknown := next((tool for tool in named if tool not in existing), None):
                message = f"there is no tool {unknown!r}; the tools are: {', '.join(existing)}"
                raise ProjectError(f"case {truncate(case.name or case.goal, 60)!r}: expect.{setting}: {message}")


@dataclass
class Evaluation:
    """An evaluation: the runs of all cases. It calls `show` after each run; `token` makes its run ids unique."""

    session: Session
    agent: str | None
    at_once: asyncio.Semaphore
    show: Callable[[CaseResult], None] | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(3))
    _open: dict[str, "asyncio.Future[Any]"] = field(default_factory=dict)  # the start of each active run, by run id

    async def run_until_stopped(
        self, stop: asyncio.Event, work: Coroutine[Any, Any, list[CaseResult]]
    ) -> list[CaseResult] | None:
        """Return the results, or None if `stop` was set. The runs of an incomplete evaluation are cancelled."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopped):
                task.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)
            await self._cancel_all()

    async def run_cases(self, cases: Sequence[Case], repeat: int) -> list[CaseResult]:
        """Run the cases, and return the results in their order."""
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

    async def _run_case(self, number: int, case: Case, again: int) -> CaseResult:
        async with self.at_once:
            run_id, began = f"eval-{self.token}-{number}-{again}", time.monotonic()
            client, queue = self.session.client, self.session.settings.task_queue
            self._open[run_id] = asyncio.ensure_future(
                start_or_get_run(client, queue, case_start_event(case, self.agent), run_id)
            )
            await asyncio.shield(self._open[run_id])  # a cancellation must not lose a start in progress
            asked, unanswered = await self._follow_run(run_id, case.expect)
            await wait_for_run_end(client, run_id)
            del self._open[run_id]
            seconds = time.monotonic() - began
            facts = await collect_case_facts(client, self.session.settings.workspaces, run_id, asked, unanswered)
        result = CaseResult(
            number, case, Score(run_id=run_id, why=failed_checks(case.expect, facts), facts=facts, seconds=seconds)
        )
        if self.show:
            self.show(result)
        return result

    async def _follow_run(self, run_id: str, expect: Expectation) -> tuple[list[str], str | None]:
        """Follow a run to its end. Return its questions, and the one it was cancelled for."""
        answers, asked, unanswered = deque(expect.answer), list[str](), None
        async for event in Watch(self.session.client, run_id).events():
            if not isinstance(event, WaitStarted) or event.status != RunStatus.waiting_on_human or unanswered:
                continue
            question = event.question or await self._wait_for_question(run_id)
            if question is None:  # another person answered it
                continue
            asked.append(question.text)
            unanswered = await self._answer_question(run_id, question, answers)
            if unanswered is not None:
                await self._cancel_run(run_id, f"an unexpected question: {question.text}"[:1000])
        return asked, unanswered

    async def _wait_for_question(self, run_id: str) -> QuestionView | None:
        """Return the open question, however slow the worker is; None if it was answered in the meantime."""
        while (await find_run(self.session.client, run_id)).status == RunStatus.waiting_on_human:
            view = await query_run_state(self.session.client, run_id)
            if view is not None and view.question is not None:
                return view.question
            await asyncio.sleep(EVAL_POLL_SECONDS)
        return None

    async def _answer_question(self, run_id: str, question: QuestionView, answers: deque[str]) -> str | None:
        """Send the next answer; return a description of the question if no answer is left, or if it is rejected."""
        if not answers:
            return question.text
        text = answers.popleft()
        try:
            await submit_answer(self.session.client, run_id, parse_answer(question, text))
        except RejectedError as error:
            return f"the answer {text!r} was rejected: {error}; the question was: {question.text}"
        return None

    async def _cancel_run(self, run_id: str, reason: str) -> None:
        with suppress(RejectedError, RunNotFoundError):  # it has ended, or never started
            await request_cancel(self.session.client, run_id, CancelRequest(reason=reason, by=EVAL_SENDER))

    async def _cancel_all(self) -> None:
        """Cancel the active runs, and wait for their ends: a tool call in progress finishes first."""
        if not self._open:
            return
        await asyncio.gather(*self._open.values(), return_exceptions=True)
        click.echo(f"cancelling {len(self._open)} runs …", err=True)
        await asyncio.gather(*(self._cancel_run(run_id, "the evaluation was stopped") for run_id in self._open))
        ends = asyncio.gather(
            *(wait_for_run_end(self.session.client, run_id) for run_id in self._open), return_exceptions=True
        )
        with suppress(TimeoutError):
            await asyncio.wait_for(ends, CANCEL_SECONDS)
