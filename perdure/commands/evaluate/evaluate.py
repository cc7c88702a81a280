"""`eval`: how well an agent does over a table of goals, by running them for real."""

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from activities.run.outcome import RunEnd
from activities.storage.workspace import Workspace, folder_name
from contracts.delegation import Spent
from contracts.evaluation import Case, Expectation, Facts, Score
from contracts.run.signals import CancelRequest
from contracts.run.state import QuestionView, RunStatus
from decisions import builtin_tools
from decisions.evaluation import faults, rate
from decisions.run.outcome import said_in
from decisions.telemetry.export import told
from decisions.text.formatting import cut
from perdure.client.errors import NoSuchRun, NotReachable, Refused
from perdure.client.history import History
from perdure.client.run_events import Waiting
from perdure.client.run_list import find
from perdure.client.runs import answer, cancel, ended, start, state
from perdure.client.watch import Watch
from perdure.commands.evaluate.cases import read_cases, start_of
from perdure.commands.evaluate.scores import Result, as_json_of, print_report, print_score
from perdure.session import Needs, Session, session
from perdure.terminal.command import as_json_option, complain, console, examples, go
from perdure.terminal.completion import agent_names
from perdure.terminal.follow import DETACHED, stopping
from perdure.terminal.prompt import read_answer
from settings import ProjectError, Settings, load

BY = "perdure eval"
ENDS_WITHIN = 30.0  # seconds for runs that were asked to stop
LOOK_EVERY = 0.5  # seconds between looks at a run that does not answer
MOST_FILES = 10_000


@click.command("eval", epilog=examples("eval cases.yaml", "eval cases.yaml --repeat 5 --min-pass 0.9"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--agent", shell_complete=agent_names, help="Does the cases that name no agent.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of each case.")
@click.option("--concurrency", type=click.IntRange(1, 100), default=4, show_default=True, help="Runs at the same time.")
@click.option(
    "--min-pass", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Share of runs that must pass."
)
@as_json_option
def evaluate(file: Path, agent: str | None, repeat: int, concurrency: int, min_pass: float, as_json: bool) -> None:
    """Run a table of goals, and say how many came out as expected.

    It says what they cost, too. FILE is YAML or JSON Lines (docs/evaluating.md): cases with a goal and what to expect.
    They are real runs, with real tools. A question that a case does not expect fails it at once, and its run is
    cancelled. The exit code is 1 where fewer pass than --min-pass. Ctrl-C cancels all that is running.
    """

    async def main() -> int:
        settings = load()
        cases = read_cases(file)
        for case in cases:
            settings.check_agent(case.agent or agent)
        await _check_tools(cases, settings)
        stop = stopping()
        async with session(settings, Needs.work) as here:
            if lack := await here.no_worker():
                raise NotReachable(lack)
            if here.rehearsal:
                complain(here.rehearsal)  # scores of the rehearsal tell nothing about an agent
            show = None if as_json else lambda result: print_score(console, result)
            evaluation = Evaluation(here, agent, asyncio.Semaphore(concurrency), show)
            results = await evaluation.unless(stop, evaluation.all(cases, repeat))
        if results is None:
            return DETACHED
        if as_json:
            click.echo(json.dumps(as_json_of(file, results, min_pass)))
        else:
            print_report(console, results, min_pass)
        return 0 if rate([result.score for result in results]) >= min_pass else 1

    go(main)


async def _check_tools(cases: Sequence[Case], settings: Settings) -> None:
    """A misspelt name in `never_calls` would hold for ever. Raises ProjectError."""
    from perdure.process.project import looked_at

    async with looked_at(settings) as project:
        there = sorted({*project.tools, *builtin_tools.NAMES})
    for case in cases:
        for setting, named in (("calls", case.expect.calls), ("never_calls", case.expect.never_calls)):
            if stranger := next((tool for tool in named if tool not in there), None):
                told = f"there is no tool {stranger!r}; the tools are: {', '.join(there)}"
                raise ProjectError(f"case {cut(case.name or case.goal, 60)!r}: expect.{setting}: {told}")


@dataclass
class Evaluation:
    """`show` is told of each run as it ends; `token` tells this evaluation's runs from those of others."""

    here: Session
    agent: str | None
    at_once: asyncio.Semaphore
    show: Callable[[Result], None] | None = None
    token: str = field(default_factory=lambda: secrets.token_hex(3))
    _open: dict[str, "asyncio.Future[Any]"] = field(default_factory=dict)  # by run id: its start

    async def unless(self, stop: asyncio.Event, work: Coroutine[Any, Any, list[Result]]) -> list[Result] | None:
        """What the work brings; None where it was stopped. Whatever ends it early, its runs are cancelled."""
        working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopped):
                task.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)
            await self._cancel_all()

    async def all(self, cases: Sequence[Case], repeat: int) -> list[Result]:
        """In the order of the cases."""
        runs = [
            asyncio.create_task(self._one(number, case, again))
            for number, case in enumerate(cases, 1)
            for again in range(1, repeat + 1)
        ]
        try:
            return await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    async def _one(self, number: int, case: Case, again: int) -> Result:
        async with self.at_once:
            run_id, began = f"eval-{self.token}-{number}-{again}", time.monotonic()
            client, queue = self.here.client, self.here.settings.task_queue
            self._open[run_id] = asyncio.ensure_future(start(client, queue, start_of(case, self.agent), run_id))
            await asyncio.shield(self._open[run_id])  # a start that is under way is not left behind
            asked, unanswered = await self._see_through(run_id, case.expect)
            end = await ended(client, run_id)
            del self._open[run_id]
            seconds = time.monotonic() - began
            facts = await self._facts(run_id, end, asked, unanswered)
        result = Result(
            number, case, Score(run_id=run_id, why=faults(case.expect, facts), facts=facts, seconds=seconds)
        )
        if self.show:
            self.show(result)
        return result

    async def _see_through(self, run_id: str, expect: Expectation) -> tuple[list[str], str | None]:
        """Follows a run to its end: what it asked, and which question it was stopped for."""
        answers, asked, unanswered = deque(expect.answer), list[str](), None
        async for happening in Watch(self.here.client, run_id).happenings():
            if not isinstance(happening, Waiting) or happening.status != RunStatus.waiting_on_human or unanswered:
                continue
            question = happening.question or await self._question(run_id)
            if question is None:  # somebody else has answered it
                continue
            asked.append(question.text)
            unanswered = await self._unanswered(run_id, question, answers)
            if unanswered is not None:
                await self._cancel(run_id, f"an unexpected question: {question.text}"[:1000])
        return asked, unanswered

    async def _question(self, run_id: str) -> QuestionView | None:
        """The open one, however long a busy worker takes to tell; None where somebody has answered it meanwhile."""
        while (await find(self.here.client, run_id)).status == RunStatus.waiting_on_human:
            view = await state(self.here.client, run_id)
            if view is not None and view.question is not None:
                return view.question
            await asyncio.sleep(LOOK_EVERY)
        return None

    async def _unanswered(self, run_id: str, question: QuestionView, answers: deque[str]) -> str | None:
        """The question, where there is no answer to it, or none that fits."""
        if not answers:
            return question.text
        said = answers.popleft()
        try:
            await answer(self.here.client, run_id, read_answer(question, said))
        except Refused as refused:
            return f"{said!r} does not fit: {refused}; asked was: {question.text}"
        return None

    async def _facts(self, run_id: str, end: RunEnd, asked: list[str], unanswered: str | None) -> Facts:
        view, found = await state(self.here.client, run_id), await find(self.here.client, run_id)
        calls = told(await History(self.here.client).of(found)).calls.values()
        payload = end.event["payload"] if end.event else {}
        spent = Spent()
        if view is not None:  # one that was refused at its start has used nothing
            own = Spent(steps=view.step, tokens=view.usage.total, usd=view.cost_usd)
            spent = own + (view.delegated or Spent())
        return Facts(
            status=end.status,
            text=said_in(end.event) if end.event else end.message,
            asked=tuple(asked),
            unanswered=unanswered,
            files=await asyncio.to_thread(self._files, run_id, payload.get("artifacts", ())),
            made=tuple(dict.fromkeys(call.tool for call in calls if call.made or call.tool in builtin_tools.NAMES)),
            tried=tuple(dict.fromkeys(call.tool for call in calls)),
            steps=spent.steps,
            tokens=spent.tokens,
            cost_usd=spent.usd,
        )

    def _files(self, run_id: str, named: Sequence[str]) -> tuple[str, ...]:
        """Of the run's folder, where that is on this machine, and what the run says it has written."""
        found: list[str] = []
        with suppress(OSError):
            workspace = Workspace(self.here.settings.workspaces / folder_name(run_id))
            found = [path for path, _ in workspace.listing(MOST_FILES)]
        return tuple(dict.fromkeys([*found, *named]))

    async def _cancel(self, run_id: str, why: str) -> None:
        with suppress(Refused, NoSuchRun):  # it has ended since, or has never begun
            await cancel(self.here.client, run_id, CancelRequest(reason=why, by=BY))

    async def _cancel_all(self) -> None:
        """Those that are still at work, and waits for their ends: a tool that is running is finished first."""
        if not self._open:
            return
        await asyncio.gather(*self._open.values(), return_exceptions=True)
        click.echo(f"cancelling {len(self._open)} runs …", err=True)
        await asyncio.gather(*(self._cancel(run_id, "the evaluation was stopped") for run_id in self._open))
        ends = asyncio.gather(*(ended(self.here.client, run_id) for run_id in self._open), return_exceptions=True)
        with suppress(TimeoutError):
            await asyncio.wait_for(ends, ENDS_WITHIN)
