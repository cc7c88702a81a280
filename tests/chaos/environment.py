"""Where a scenario takes place: runs of one project, workers that die, and what outlives them."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from perdure.activities.effects.ledger import Claim
from perdure.activities.storage.store import STORE_FOLDER
from perdure.answer_keys import NO_KEYS
from perdure.client.errors import RejectedError, RunNotFoundError, TemporalUnavailableError
from perdure.client.runs import STATE_QUERY_TIMEOUT, start_or_get_run, submit_answer
from perdure.contracts.run.events import StartEvent
from perdure.contracts.run.signals import Decision, HumanInput, Question, QuestionKind
from perdure.contracts.run.state import Snapshot
from perdure.decisions.ids import run_workflow_id
from perdure.testkit.message_batches import ScriptedBatches
from perdure.testkit.model_server import ScriptedAnswer, ScriptedModel
from perdure.testkit.rehearsal.sse import Json
from tests.chaos.crash_points import Trap
from tests.chaos.killable import Project, home_of
from tests.chaos.task import Task, script
from tests.chaos.tool_server import ToolServer

STILL = 60.0  # seconds after the last fault in which nothing happens in a run that hangs; a busy machine is only slow
PATIENCE = 120.0  # for what takes seconds; the machine may have other things to do
BEAT = 6.0  # seconds without a heartbeat after which a worker counts as dead
FROZEN = BEAT + 4

PROJECT = f"""
[limits]
max_steps = 100

[worker]
heartbeat = "{BEAT:g}s"
fuse_reads = {{fuses}}
sticky_timeout = "{{sticky}}"
"""
TOOL = """
[tools.{name}]
kind = "{kind}"
effect = "{effect}"
description = "The tool {name}."
input_schema = {{ type = "object" }}
url = "{url}/{path}/{name}"
timeout = "{timeout}"
"""
TOOLS = {  # name: kind, effect, path, timeout
    "charge": ("http", "once", "once", "30s"),
    "reserve": ("http", "keyed", "keyed", "30s"),
    "look": ("http", "read", "read", "30s"),
    "hear": ("signal", "read", "handed", "10m"),
    "miss": ("signal", "read", "handed", "5s"),  # never answered: its timer is what matters
}
LIMITS = """
[model]
default = "scripted"

[model.providers.anthropic]
requests_per_minute = 600_000
shared = true

[prices.scripted]
input = 1
output = 5

[[budget]]
name = "all"
usd = 10_000.0
every = "day"

[[budget]]
name = "owners"
per = "owner"
runs = 1_000_000
every = "day"
"""
AGENT = "---\nname: default\ntools: [{tools}]\n---\nDo what the goal says.\n"


@dataclass(frozen=True)
class Asked:
    """A question of the kind `resume_unsafe`, and what the person found: a receipt, or that nothing happened."""

    run: str
    step: int
    receipt: str | None


@dataclass
class Workers:
    """Processes that do the same. Each fault has a replacement at once, so that there are always as many."""

    environment: "Environment"
    start: Callable[[Trap | None], BaseProcess]
    processes: list[BaseProcess] = field(default_factory=list)

    def add(self, size: int = 1, trap: Trap | None = None) -> None:
        for _ in range(size):
            process = self.start(trap)
            self.processes.append(process)
            self.environment.processes.append(process)

    async def fault(self, kind: str) -> None:
        worker = self.processes.pop(self.environment.random.randrange(len(self.processes)))
        match kind:
            case "kill":
                worker.kill()
                await asyncio.to_thread(worker.join)
                self.environment.killed(worker)
            case "freeze":
                self.environment.spawn(self._frozen(worker, FROZEN))
            case "drain":
                worker.terminate()
            case _:
                raise ValueError(kind)
        self.environment.fault()
        self.add()

    async def kill_some(self, times: int, least: float, most: float) -> None:
        """Kills one after the other, with a pause of so many seconds before each."""
        for _ in range(times):
            await asyncio.sleep(self.environment.random.uniform(least, most))
            await self.fault("kill")

    async def _frozen(self, worker: BaseProcess, seconds: float) -> None:
        """A zombie: it is taken for dead, and comes back to life."""
        os.kill(pid_of(worker), signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(pid_of(worker), signal.SIGCONT)
        self.environment.fault(counts=False)
        self.processes.append(worker)


class Environment:
    left: tuple[QuestionKind, ...] = (QuestionKind.approval,)  # kinds of questions that the scenario answers itself
    keys = NO_KEYS  # with which the person signs

    def __init__(
        self, client: Client, folder: Path, seed: int, tools: ToolServer, model: ScriptedModel, full_disk: Path | None
    ) -> None:
        self.client = client
        self.seed = seed
        self.random = Random(seed)
        self.tools = tools
        self.model = model
        self.tasks: dict[str, Task] = {}
        self.handles: dict[str, WorkflowHandle[Any, Any]] = {}
        self.acknowledged: set[tuple[str, str]] = set()
        self.forgotten: list[str] = []  # questions that are open although their answer was acknowledged
        self.doubts: dict[tuple[str, str], Asked] = {}  # by run and question
        self.stuck: list[str] = []  # what the runs that did not end in time waited for
        self.faults = 0
        self.kills = 0
        self.in_window = 0  # of these, with a call between its claim and its result
        self.last_fault = time.monotonic()
        self.processes: list[BaseProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        address = client.service_client.config.target_host
        self.project = Project(folder, address, model.base_url, folder / "logs", full_disk, home_of(client))

    @property
    def asked(self) -> list[Asked]:
        return list(self.doubts.values())

    @property
    def logs(self) -> list[Path]:
        return sorted((self.project.folder / "logs").iterdir())

    @property
    def workspaces(self) -> Path:
        return self.project.settings.workspaces

    def start_workers(self, queue: str, size: int, trap: Trap | None = None) -> Workers:
        workers = Workers(self, lambda trap: self.project.worker(queue, trap))
        workers.add(size, trap)
        return workers

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fault(self, *, counts: bool = True) -> None:
        self.faults += counts
        self.last_fault = time.monotonic()

    def killed(self, worker: BaseProcess) -> None:
        """Counts the kill, and whether it landed between a call's claim and its result."""
        self.kills += 1
        self.in_window += self.doubtful(pid_of(worker)) > 0

    def doubtful(self, pid: int) -> int:
        """How many calls this process has claimed and left without a result."""
        pages = self.workspaces.glob(f"*/{STORE_FOLDER}/ledger/*.claim")
        open_pages = (page for page in pages if not page.with_suffix(".result").exists())
        count = 0
        for page in open_pages:
            with suppress(ValueError, OSError):
                count += Claim.model_validate_json(page.read_bytes()).owner.pid == pid
        return count

    async def start(self, task: Task, queue: str, **payload: Any) -> WorkflowHandle[Any, Any]:
        """Until the server has accepted it."""
        event = StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": task.goal, **payload}})
        handle: WorkflowHandle[Any, Any] = await retry_until_accepted(
            lambda: start_or_get_run(self.client, queue, event, task.run)
        )
        self.tasks[task.run] = task
        self.handles[task.run] = handle
        return handle

    async def all_ended(self, within: float = STILL) -> list[str]:
        """Wait for every run. Return those that are open when for so many seconds nothing has happened in any."""
        waits = {run: asyncio.create_task(self._ended(run)) for run in self.handles}
        seen, since = None, time.monotonic()
        while open_runs := [run for run, wait in waits.items() if not wait.done()]:
            if (now := await self._progress(open_runs)) != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - max(since, self.last_fault) > within:
                break
            await asyncio.wait([waits[run] for run in open_runs], timeout=1)
        for wait in waits.values():
            wait.cancel()
        if open_runs:
            self.stuck = [note async for note in self.describe_open_runs()]
        return open_runs

    async def _progress(self, runs: Sequence[str]) -> list[int]:
        """Return figures that grow while something happens in these runs, or in the runs below them."""
        figures = [len(self.tools.effects), len(self.model.requests)]
        with suppress(RPCError, RuntimeError):  # the server is away
            for run in runs:
                workflow = run_workflow_id(run)
                description = await self.client.get_workflow_handle(workflow).describe(rpc_timeout=STATE_QUERY_TIMEOUT)
                ended = f"RootWorkflowId = '{workflow}' AND ExecutionStatus != 'Running'"
                figures += [description.history_length, (await self.client.count_workflows(ended)).count]
        return figures

    async def _ended(self, run: str) -> None:
        handle = self.client.get_workflow_handle(run_workflow_id(run))
        while True:
            try:
                await handle.result()
            except WorkflowFailureError:
                return  # an end, which the auditor judges
            except (RPCError, RuntimeError):
                await asyncio.sleep(0.2)  # the server is away
            else:
                return

    @asynccontextmanager
    async def person(self) -> AsyncIterator[None]:
        """Settles every open question truthfully, by asking the tool server what happened."""
        task = asyncio.create_task(self._settle_all())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _settle_all(self) -> None:
        query = "WorkflowType = 'AgentRun' AND AgentStatus = 'waiting_on_human' AND ExecutionStatus = 'Running'"
        while True:
            with suppress(RPCError, RuntimeError):
                waiting = [e.id.removeprefix("run:") async for e in self.client.list_workflows(query)]
                for run in waiting:
                    if run in self.handles:
                        await self._settle(run)
            await asyncio.sleep(0.2)

    async def _settle(self, run: str) -> None:
        handle = self.client.get_workflow_handle(run_workflow_id(run))
        snapshot: Snapshot = await handle.query("snapshot", result_type=Snapshot, rpc_timeout=STATE_QUERY_TIMEOUT)
        for question in snapshot.state.open_questions:
            if question.kind not in self.left:
                await self._settle_question(run, question)

    async def _settle_question(self, run: str, question: Question) -> None:
        if (run, question.id) in self.acknowledged:
            self.forgotten.append(f"{run}: the answer to {question.id} was acknowledged, and the question is open")
        receipt = await self.tools.find_receipt(run, question.step or 0)
        if question.kind is not QuestionKind.resume_unsafe:
            said = HumanInput(question_id=question.id, text=f"{run}/{question.id}")
        elif receipt is not None:
            outcome = json.dumps({"receipt": receipt})
            said = HumanInput(question_id=question.id, decision=Decision.use_result, text=outcome)
        else:
            said = HumanInput(question_id=question.id, decision=Decision.run_again)
        if question.kind is QuestionKind.resume_unsafe:
            self.doubts.setdefault((run, question.id), Asked(run, question.step or 0, receipt))
        with suppress(
            RejectedError, TemporalUnavailableError, RunNotFoundError
        ):  # asked again, or accepted all the same, and so gone
            await submit_answer(self.client, run, said, self.keys)
            self.acknowledged.add((run, question.id))

    async def describe_open_runs(self) -> AsyncIterator[str]:
        """Yield what each open run waits for, with its latest events, for the report of a failure."""
        yield f"workers alive: {[process.is_alive() for process in self.processes]}"
        try:
            for run in self.handles:
                handle = self.client.get_workflow_handle(run_workflow_id(run))
                execution = (await handle.describe(rpc_timeout=STATE_QUERY_TIMEOUT)).raw_description
                if execution.workflow_execution_info.close_time.seconds:
                    continue
                events = [event async for event in handle.fetch_history_events()][-12:]
                latest = [f"{e.event_id} {EventType.Name(e.event_type)} {e.event_time.ToJsonString()}" for e in events]
                waits = [*execution.pending_activities, execution.pending_workflow_task]
                yield f"{run} waits for {waits}; its latest events are {latest}"
        except (RPCError, RuntimeError) as error:
            yield f"the server does not answer: {error}"

    def end(self) -> None:
        """Kills what still works, once the audit needs no answers any more."""
        for task in self._tasks:
            task.cancel()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


async def retry_until_accepted(what: Callable[[], Any]) -> Any:
    """Again until the server acknowledges it; whoever sends something while the server is away does the same."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await what()
        except (RPCError, RuntimeError, RejectedError, TemporalUnavailableError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def wait_for_value(query: Callable[[], Any], holds: Callable[[Any], bool], patience: float = PATIENCE) -> Any:
    """Return the server's answer, once it accepts."""
    async with asyncio.timeout(patience):
        while not holds(value := await retry_until_accepted(query)):  # noqa: ASYNC110 - the server reports no changes
            await asyncio.sleep(0.1)
        return value


async def until(claim: Callable[[], bool], patience: float = PATIENCE) -> None:
    async with asyncio.timeout(patience):
        while not claim():  # noqa: ASYNC110 - what is waited for happens in other processes and threads
            await asyncio.sleep(0.02)


def pid_of(process: BaseProcess) -> int:
    if process.pid is None:
        raise AssertionError("the process was not started")
    return process.pid


def _write_project(folder: Path, tools: str, *, fuses: bool, sticky: str, more: str) -> None:
    for name in ("logs", "agents"):
        (folder / name).mkdir(parents=True)
    described = [
        TOOL.format(name=name, kind=kind, effect=effect, url=tools, path=path, timeout=timeout)
        for name, (kind, effect, path, timeout) in TOOLS.items()
    ]
    (folder / "perdure.toml").write_text(
        PROJECT.format(fuses=str(fuses).lower(), sticky=sticky) + "".join(described) + more
    )
    (folder / "agents" / "default.md").write_text(AGENT.format(tools=", ".join(TOOLS)))


@asynccontextmanager
async def environment(
    client: Client,
    folder: Path,
    seed: int,
    *,
    tools: ToolServer | None = None,
    says: Callable[[Json], ScriptedAnswer] = script,
    full_disk: bool = False,
    fuses: bool = False,
    sticky: str = "1s",
    batches: ScriptedBatches | None = None,
    more: str = "",
    limited: bool = False,
) -> AsyncIterator[Environment]:
    """Yield the place of a scenario. `more` is added to its perdure.toml; `limited`: with all limits, which suffice."""
    with tools or ToolServer(seed) as outside, ScriptedModel(says, batches=batches) as model:
        _write_project(folder, outside.base_url, fuses=fuses, sticky=sticky, more=more + LIMITS * limited)
        if limited:
            agent = folder / "agents" / "default.md"
            agent.write_text(agent.read_text().replace("---\n", "---\nlimits: {max_running: 1000}\n", 1))
        it = Environment(client, folder, seed, outside, model, folder / "full" if full_disk else None)
        try:
            yield it
        except Exception as error:
            async for note in it.describe_open_runs():
                error.add_note(note)
            raise
        finally:
            it.end()
