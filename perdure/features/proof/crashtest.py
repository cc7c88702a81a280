"""A crash test: the whole play of a case, one play for each kill, and their verdicts."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any, NoReturn

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.activities.storage.workspace import ARTIFACTS, Workspace, folder_name
from perdure.activities.tools.python import BadTargetError, load_function
from perdure.client.connection import connect
from perdure.client.errors import RejectedError, TemporalUnavailableError
from perdure.client.run_list import RunInfo, find_run
from perdure.client.runs import query_run_state, start_or_get_run, wait_for_run_end
from perdure.client.watch import HistoryReader
from perdure.contracts.models import NO_RESULT
from perdure.contracts.run.events import ToolResultEvent, ToolResultPayload
from perdure.contracts.run.signals import Decision, HumanInput, QuestionKind
from perdure.contracts.run.state import QuestionView, RunView
from perdure.decisions.errors import ReportedError
from perdure.decisions.ids import delegating_run_id, run_id_of_workflow, run_workflow_id
from perdure.decisions.text.formatting import truncate
from perdure.devserver import DevServer, embedded_server, remove_folder
from perdure.features.proof.case import case_start_event
from perdure.features.proof.contract import (
    CrashCase,
    EventRow,
    Facts,
    KillMoment,
    KillPoint,
    PlayFacts,
    PlayVerdict,
    Target,
)
from perdure.features.proof.facts import facts_of_run
from perdure.features.proof.play import Person
from perdure.features.proof.rules import failed_checks, find_differences, kill_points, plan_kills, tools_in
from perdure.features.proof.worker import WorkerPlan
from perdure.process.supervisor import CRASH_LOOP
from perdure.settings import ProjectError, Settings
from perdure.terminal.prompt import parse_answer
from perdure.testkit.model_server import Reply, Script, ScriptedAnswer, ScriptedModel

WHOLE_PATIENCE = 600.0  # seconds for the whole play
EXTRA_PATIENCE = 90.0  # seconds for a killed play, beyond three times the whole one
# Plays with the worker killed, for each one with the server killed, which needs a server of its own.
PLAYS_PER_SERVER = 4
NOT_COPIED = (".perdure", ".git", "__pycache__", "node_modules", ".venv", "venv", ".*_cache")
NOT_PASSED = ("TEMPORAL_", "PERDURE_", "ANTHROPIC_", "OTEL_")
CHECK_SECONDS = 0.5  # between two runs of the `check` command
SETTLE_SECONDS = 3.0  # for what a tool still does after the run's end
COMMAND_TIMEOUT = 60.0
FAILED_COMMAND = "exit code"
RETRY_SECONDS = 0.1  # between attempts to reach a killed server, or a run without a worker
AWAY = (RPCError, RuntimeError, TemporalUnavailableError)


@dataclass(frozen=True)
class CrashOptions:
    """`targets` are what is killed, `sample` the number of plays (None: all), `jobs` the plays at a time."""

    targets: tuple[Target, ...]
    sample: int | None
    seed: int
    jobs: int


@dataclass
class CrashReport:
    """The result. `failed` are the checks of the whole play that do not hold; then nothing is killed."""

    case: CrashCase
    seed: int
    folder: Path
    whole: PlayFacts = field(default_factory=PlayFacts)
    failed: tuple[str, ...] = ()
    rows: list[EventRow] = field(default_factory=list)
    planned: int = 0  # kills that there are
    points: list[KillPoint] = field(default_factory=list)  # those that are played
    verdicts: dict[KillPoint, PlayVerdict] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def has_passed(self) -> bool:
        return not self.failed and not any(verdict.findings for verdict in self.verdicts.values())


def open_script(case: CrashCase, settings: Settings) -> Script:
    """Return the script of the case's model. Raises ProjectError."""
    if not isinstance(case.model, str):
        return [Reply(reply.text, tuple((call.tool, call.arguments) for call in reply.calls)) for reply in case.model]
    if str(settings.folder) not in sys.path:
        sys.path.append(str(settings.folder))
    try:
        script: Callable[[dict[str, Any]], ScriptedAnswer] = load_function(case.model)
    except BadTargetError as error:
        raise ProjectError(f"model: {error}") from None
    return script


@dataclass
class CrashTest:
    """Plays a case. `show` is called after each play."""

    case: CrashCase
    settings: Settings
    options: CrashOptions
    show: Callable[[CrashReport], None]

    async def run(self) -> CrashReport:
        """Return the report. The folders of the plays stay if it has not passed. Raises ProjectError."""
        root = Path(tempfile.mkdtemp(prefix="perdure-crashtest-"))
        began, report = time.monotonic(), CrashReport(self.case, self.options.seed, root)
        self._plan = PlayPlan(self.case, open_script(self.case, self.settings), self.settings, root)
        try:
            async with embedded_server(root / "server") as server:
                await self._play_whole(report, server)
                if not report.failed:
                    await self._play_kills(report, server, 3 * (time.monotonic() - began) + EXTRA_PATIENCE)
            report.seconds = time.monotonic() - began
        finally:
            if not report.seconds or report.has_passed:
                await remove_folder(root)
        return report

    async def _play_whole(self, report: CrashReport, server: DevServer) -> None:
        self.show(report)
        play = Play(self._plan, "crashtest-whole", await connect(server.address), server.address, report.folder)
        report.whole = await play.run(WHOLE_PATIENCE)
        if play.facts is None:
            report.failed = (report.whole.error or "",)
            return
        report.failed = failed_checks(self.case.expect, play.facts)
        if report.whole.check and report.whole.check.startswith(FAILED_COMMAND):
            report.failed = (*report.failed, f"check: {report.whole.check.strip()}")
        report.rows = [row for subtask, events in play.histories.items() for row in plan_kills(events, subtask)]
        every = kill_points(report.rows, self.options.targets)
        report.planned = len(every)
        chosen = set(every)
        if self.options.sample is not None and self.options.sample < len(every):
            chosen = set(Random(self.options.seed).sample(every, self.options.sample))  # noqa: S311 - a sample
        report.points = [point for point in every if point in chosen]

    async def _play_kills(self, report: CrashReport, server: DevServer, patience: float) -> None:
        workers = deque(point for point in report.points if point.target is Target.worker)
        servers = deque(point for point in report.points if point.target is Target.server)
        own_servers = min(max(1, self.options.jobs // PLAYS_PER_SERVER), len(servers))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self.options.jobs, len(workers))):
                group.create_task(self._play_all(report, workers, server, report.folder / "server", patience))
            for number in range(own_servers):
                home = report.folder / f"server-{number}"
                group.create_task(self._play_on_own_server(report, servers, home, patience))

    async def _play_on_own_server(
        self, report: CrashReport, points: deque[KillPoint], home: Path, patience: float
    ) -> None:
        """Play on a server that is killed in each play, and comes back with its file."""
        async with embedded_server(home) as server:
            await self._play_all(report, points, server, home, patience)

    async def _play_all(
        self, report: CrashReport, points: deque[KillPoint], server: DevServer, home: Path, patience: float
    ) -> None:
        """Play what is left of `points`, which several tasks share."""
        client = await connect(server.address)
        while points:
            point = points.popleft()
            if point.target is Target.server:
                await asyncio.sleep(CRASH_LOOP)  # a server that dies sooner after its start is not started again
            began = time.monotonic()
            play = Play(self._plan, f"crashtest-{point.name}", client, server.address, home, point)
            facts = await play.run(patience, report.whole.check)
            report.verdicts[point] = PlayVerdict(
                point=point,
                # A call that a person was asked about, and gave up, may have happened or not.
                findings=() if facts.doubts and not facts.error else find_differences(report.whole, facts),
                asked=facts.doubts,
                seconds=time.monotonic() - began,
            )
            self.show(report)


class PlayError(ReportedError):
    """The play cannot go on. The message is a finding."""


@dataclass(frozen=True)
class PlayPlan:
    """The parts that all plays of a case share. `root` holds their folders."""

    case: CrashCase
    script: Script
    settings: Settings
    root: Path


@dataclass
class Play:
    """One play on the server at `address`, with its state in `home`. Without a `point` nothing is killed."""

    plan: PlayPlan
    name: str
    client: Client
    address: str
    home: Path
    point: KillPoint | None = None
    facts: Facts | None = None  # of a whole play, for its expectation
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # the events by subtask; "" is the run
    _doubts: list[str] = field(default_factory=list)
    _was_killed: bool = False
    _workers: list[BaseProcess] = field(default_factory=list)
    _has_changed: asyncio.Event = field(default_factory=asyncio.Event)
    _delivered: set[tuple[str, int]] = field(default_factory=set)  # runs with steps that have a result from outside

    def __post_init__(self) -> None:
        self._left = deque(self.plan.case.answers)
        self._person = Person(self.client, self._choose_answer)
        self._signals = list(self.plan.case.signals)
        self._tree = RunTree(self.client, self.name, self._on_event)

    @property
    def folder(self) -> Path:
        return self.plan.root / self.name

    @property
    def workspaces(self) -> Path:
        return self.folder / ".perdure" / "runs"

    async def run(self, patience: float, expected: str | None = None) -> PlayFacts:
        """Play to the end, and return the facts. `expected` is the output of `check` after the whole play."""
        await asyncio.to_thread(self._copy_project)
        with ScriptedModel(self.plan.script) as model:
            self._environment = self._build_environment(model)
            try:
                await self._play_to_end(patience)
                return await self._collect_facts(model, expected)
            except PlayError as error:
                return PlayFacts(error=str(error), was_killed=self._was_killed)
            finally:
                for process in self._workers:
                    process.kill()
                    process.join()

    def _copy_project(self) -> None:
        source, ignore = self.plan.settings.folder, shutil.ignore_patterns(*NOT_COPIED)
        shutil.copytree(source, self.folder, ignore=ignore, symlinks=True)

    def _build_environment(self, model: ScriptedModel) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED)}
        config = self.folder / self.plan.settings.path.name
        return {
            **plain,
            **({"PERDURE_CONFIG": str(config)} if config.exists() else {}),
            "ANTHROPIC_API_KEY": "sk-of-the-scripted-model",
            "ANTHROPIC_BASE_URL": model.base_url,
            "PERDURE_HOME": str(self.folder / ".perdure"),
            "PERDURE_TASK_QUEUE": self.name,
            "PERDURE_CRASHTEST_PLAY": self.name,
        }

    async def _play_to_end(self, patience: float) -> None:
        """Raises PlayError."""
        tasks = {asyncio.create_task(work) for work in (self._follow_run(), self._answer_run(), self._keep_worker())}
        try:
            done, _ = await asyncio.wait(tasks, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise PlayError(f"stuck: it has not ended after {patience:.0f} s")
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._tree.close()

    async def _keep_worker(self) -> NoReturn:
        """Keep a worker alive: another one takes over after a kill. Raises PlayError if one ends by itself."""
        target = self.point and self.point.target
        moment = self.point.moment if self.point and target is Target.worker else None
        while True:
            process = self._start_worker(moment if moment and moment.kind != "event" else None)
            await _wait_for_exit(process)
            if target is Target.server:  # a worker that starts without a server exits
                await asyncio.sleep(RETRY_SECONDS)
            elif process.exitcode != -SIGKILL or len(self._workers) > 1:
                raise PlayError(f"a worker ended by itself: {_last_line(self._log)}")
            else:
                self._was_killed, moment = True, None

    def _start_worker(self, moment: KillMoment | None) -> BaseProcess:
        process = WorkerPlan(self.folder, self._environment, self.address, self.name, self._log, moment).start()
        self._workers.append(process)
        return process

    @property
    def _log(self) -> Path:
        return self.plan.root / f"{self.name}.log"

    async def _follow_run(self) -> None:
        """Start the run, and follow it and its subtasks to the end."""
        event = case_start_event(self.plan.case, None)
        while True:
            try:
                await start_or_get_run(self.client, self.name, event, self.name, project=None)
                await self._tree.follow()
                await wait_for_run_end(self.client, self.name)
            except AWAY:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _on_event(self, subtask: str, event: HistoryEvent) -> None:
        """Kill when the event of the kill is there."""
        if event.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
            self._has_changed.set()
        point = self.point
        if point is None or self._was_killed or point.moment.kind != "event":
            return
        if point.moment.subtask != subtask or event.event_id < point.moment.at:
            return
        self._was_killed = True
        if point.target is Target.server:
            os.kill(json.loads((self.home / "server.json").read_text())["pid"], SIGKILL)
        else:
            self._workers[-1].kill()

    async def _answer_run(self) -> NoReturn:
        """Answer as the case says whenever the run waits. Raises PlayError if the case has no answer."""
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            while not await self._answer_once():  # noqa: ASYNC110 - a killed process reports no changes
                await asyncio.sleep(RETRY_SECONDS)

    async def _answer_once(self) -> bool:
        """Return False if a run could not be reached."""
        reached = [await self._answer_in(self._tree.run_id(subtask)) for subtask in ("", *self._tree.subtasks)]
        return all(reached)

    async def _answer_in(self, run_id: str) -> bool:
        try:
            view = await query_run_state(self.client, run_id)
            if view is None:
                return False
            if view.question is not None:
                await self._person.answer(run_id, view.question)
            await self._deliver_signals(run_id, view)
        except AWAY:
            return False
        except RejectedError as error:
            raise PlayError(f"the answer was rejected: {error}") from None
        return True

    async def _choose_answer(self, question: QuestionView) -> HumanInput:
        if question.kind != QuestionKind.resume_unsafe:
            if not self._left:
                raise PlayError(f"it asks a person, and the case has no answer left: {truncate(question.text, 200)}")
            line = self._left.popleft()
        elif self.plan.case.doubt:
            line = (await self._run_command(self.plan.case.doubt, PERDURE_CRASHTEST_QUESTION=question.text)).strip()
        else:
            self._doubts.append(question.text)
            line = Decision.give_up
        return parse_answer(question, line)

    async def _deliver_signals(self, run_id: str, view: RunView) -> None:
        for pending in view.pending:
            match = next((signal for signal in self._signals if signal.tool == pending.tool), None)
            if match is None or (run_id, pending.step) in self._delivered:
                continue
            payload = ToolResultPayload(
                run_id=run_id, step=pending.step, tool=match.tool, status="ok", result=match.result
            )
            body = ToolResultEvent(payload=payload).model_dump(mode="json")
            await self.client.get_workflow_handle(run_workflow_id(run_id)).signal("tool_result", body)
            self._delivered.add((run_id, pending.step))
            self._signals.remove(match)

    async def _collect_facts(self, model: ScriptedModel, expected: str | None) -> PlayFacts:
        end = await wait_for_run_end(self.client, self.name)
        histories = await self._tree.read_histories()
        self.histories = {subtask: executions[0] for subtask, executions in histories.items()}
        if self.point is None:
            self.facts = await facts_of_run(self.client, self.workspaces, self.name, self._person.asked)
        return PlayFacts(
            status=end.status,
            text=self._neutral(end.text),
            result=NO_RESULT if end.result is NO_RESULT else json.loads(self._neutral(json.dumps(end.result))),
            artifacts=await asyncio.to_thread(self._hash_artifacts),
            requests=Counter(self._name_turn(body) for body in model.requests),
            check=await self._run_check(expected),
            doubts=tuple(self._doubts),
            tools=tuple(tool for runs in histories.values() for events in runs for tool in tools_in(events)),
            was_killed=self._was_killed or self.point is None,
        )

    def _neutral(self, text: str) -> str:
        """Return the text without what differs between plays by design."""
        return text.replace(self.name, "RUN")

    def _name_turn(self, body: Mapping[str, Any]) -> str:
        """Return the name of a request's turn, which every request for the same reply has."""
        turn = sum(message["role"] == "assistant" for message in body["messages"]) + 1
        opening = self._neutral(json.dumps(body["messages"][0], ensure_ascii=False))
        own = json.dumps(self.plan.case.goal, ensure_ascii=False)[1:-1] in opening
        return f"turn {turn}" if own else f"turn {turn} of {sha256(opening.encode()).hexdigest()[:8]}"

    def _hash_artifacts(self) -> dict[str, str]:
        workspace = Workspace(self.workspaces / folder_name(self.name))
        paths = [path for path, _ in workspace.list_files(10_000) if path.startswith(f"{ARTIFACTS}/")]
        return {path: sha256(workspace.read_own(path)).hexdigest() for path in paths}

    async def _run_check(self, expected: str | None) -> str | None:
        """Return the output of `check` as soon as it is the expected one or, without one, the same twice.

        A call that a person was asked about, and gave up, may have happened or not: nothing is checked then.
        """
        if self.plan.case.check is None or self._doubts:
            return None
        deadline, last = asyncio.get_running_loop().time() + SETTLE_SECONDS, None
        while True:
            text = self._neutral(await self._run_command(self.plan.case.check))
            if text == (last if expected is None else expected) or asyncio.get_running_loop().time() > deadline:
                return text
            last = text
            await asyncio.sleep(CHECK_SECONDS)

    async def _run_command(self, command: str, **variables: str) -> str:
        """Return the output of a shell command in the play's folder, or its failure. Raises PlayError at a timeout."""
        process = await asyncio.create_subprocess_shell(
            command,
            cwd=self.folder,
            env={**self._environment, **variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), COMMAND_TIMEOUT)
        except TimeoutError:
            raise PlayError(f"{truncate(command, 80)} did not end within {COMMAND_TIMEOUT:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
        failed = f"{FAILED_COMMAND} {process.returncode}: {err.decode(errors='replace')}" if process.returncode else ""
        return failed or out.decode(errors="replace")


async def _wait_for_exit(process: BaseProcess) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(process.sentinel, ended.set_result, None)
    ended.add_done_callback(lambda _: loop.remove_reader(process.sentinel))
    await ended
    process.join()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return truncate(next((line for line in reversed(lines) if line.strip()), "its log is empty"), 300)


@dataclass
class RunTree:
    """The runs of a play. A subtask has its id without that of the run `name`, such as `1-research`; the run has "".

    `on_event` gets each event of each run once or more: a server that was killed sends the earlier ones again.
    """

    client: Client
    name: str
    on_event: Callable[[str, HistoryEvent], None]
    subtasks: set[str] = field(default_factory=set)
    _followed: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)  # by workflow id

    def run_id(self, subtask: str) -> str:
        return f"{self.name}.{subtask}" if subtask else self.name

    async def follow(self) -> None:
        """Follow the run to its end, and what it delegates."""
        await self._follow(run_workflow_id(self.name))

    async def close(self) -> None:
        for task in self._followed.values():
            task.cancel()
        await asyncio.gather(*self._followed.values(), return_exceptions=True)

    async def read_histories(self) -> dict[str, list[list[dict[str, Any]]]]:
        """Return the events of each execution of each run, the run itself first."""
        histories = {}
        for subtask in ("", *sorted(self.subtasks)):
            run = await find_run(self.client, self.run_id(subtask))
            executions = await HistoryReader(self.client).read_executions(run)
            histories[subtask] = [execution.events for execution in executions]
        return histories

    async def _follow(self, workflow_id: str) -> None:
        while True:
            try:
                execution = await self.client.get_workflow_handle(workflow_id).describe()
                run = RunInfo(run_id_of_workflow(workflow_id), execution)
                async for _, event in HistoryReader(self.client).read_events(run, follow=True):
                    self._on_event(workflow_id, event)
            except AWAY:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _on_event(self, workflow_id: str, event: HistoryEvent) -> None:
        if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            child = event.child_workflow_execution_started_event_attributes.workflow_execution.workflow_id
            if child not in self._followed and self._is_own(child):
                self._followed[child] = asyncio.create_task(self._follow(child))
        if delegating_run_id(workflow_id) is None:
            self.on_event(self._subtask_of(workflow_id), event)

    def _is_own(self, child: str) -> bool:
        """Return whether the workflow is a delegation or a subtask of this tree, and note the subtask."""
        if delegating_run_id(child) is not None:
            return True
        subtask = self._subtask_of(child)
        if subtask:
            self.subtasks.add(subtask)
        return bool(subtask)

    def _subtask_of(self, workflow_id: str) -> str:
        """Return the id of a subtask; "" for the run itself, and for workflows that are no subtask."""
        start = f"{run_workflow_id(self.name)}."
        return workflow_id.removeprefix(start) if workflow_id.startswith(start) else ""
