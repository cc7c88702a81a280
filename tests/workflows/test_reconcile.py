"""The reconciler on the real server: what it finds, what it repairs, and its schedule."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import CancelledError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from perdure.activities.effects.ledger import Claim, ClaimOwner
from perdure.activities.security import make_private
from perdure.activities.storage.workspace import folder_name
from perdure.client.overview import read_runs_overview
from perdure.contracts.tool import Effect, ToolKind
from perdure.decisions.ids import GATEWAY_STORE, UPLOADS_STORE, query_equals
from perdure.features.reconciler import schedule as reconcile_schedule
from perdure.features.reconciler.activities import Reconciler
from perdure.features.reconciler.contract import FindingKind, ReconcileReport, ReconcileRequest, Repair
from perdure.gateway.sessions import KEY_FILE
from perdure.process.worker import run_worker
from perdure.settings import load_settings
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.conftest import server
from tests.waiting import PATIENCE
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.lane import echo, lane_of, new_id, say, until_idle
from tests.workflows.runs import id_of
from tests.workflows.script import FINISH, texts

ASK = calls(("ask_human", {"question": "which one?"}))
HOUR = timedelta(hours=1)


async def reconcile(it: World, later: timedelta = timedelta(), *, repairs: bool = True) -> ReconcileReport:
    """A pass of the reconciler that much later."""
    reconciler = Reconciler(it.client, it.project.stores, it.queue, now=lambda: datetime.now(UTC) + later)
    return await reconciler.run_pass(repairs=repairs)


def problems(report: ReconcileReport) -> list[tuple[FindingKind, str]]:
    return [(finding.problem, finding.run_id) for finding in report.findings]


async def waiting(it: World, **fields: Any) -> Any:
    run = await it.start(**fields)
    await it.until_state(run, question=True)
    await it.until_listed(f"{query_equals('WorkflowId', run.id)} AND AgentStatus = 'waiting_on_human'")
    return run


async def test_runs_that_are_well_are_left_alone(world: MakeWorld) -> None:
    charge = ScriptedTool("charge", effect=Effect.once)
    async with world([ASK, calls(("charge", {})), FINISH], charge) as it:
        run = await waiting(it)
        assert (await reconcile(it, 2 * HOUR)).findings == ()
        await run.execute_update("answer", {"text": "this one"})
        await run.result()
        report = await reconcile(it, 2 * HOUR)
    assert (report.findings, report.stores, report.unjudged) == ((), 1, 0)


def plain_worker(client: Client, task_queue: str, kind: type) -> Worker:
    """A worker of workflows that stand in this file, which a sandbox would not load."""
    return Worker(client, task_queue=task_queue, workflows=[kind], workflow_runner=UnsandboxedWorkflowRunner())


@workflow.defn(name="AgentRun")
class Broken:
    @workflow.run
    async def run(self, *_: Any) -> None:
        raise RuntimeError("a bug")


async def test_a_wedged_run_is_named(world: MakeWorld) -> None:
    soon = {"system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": 1}
    async with (
        await server(**soon) as other,
        world([], server=other.client, works=False) as it,
    ):
        run = await it.start()
        async with plain_worker(other.client, it.queue, Broken):
            await it.until_listed("TemporalReportedProblems IS NOT NULL")
            report = await reconcile(it)
            overview = await read_runs_overview(other.client, datetime.now(UTC))
    assert [(run.run_id, run.wedged) for run in overview.wedged] == [(id_of(run), True)]
    assert problems(report) == [(FindingKind.wedged, id_of(run))]
    assert "roll the workers back" in report.findings[0].advice


@workflow.defn
class Lane:
    """Starts a run that outlives it, and ends as its goal says."""

    def __init__(self) -> None:
        self.end = ""

    @workflow.run
    async def run(self, queue: str, child: str, rounds: int) -> None:
        if rounds == 0:
            await workflow.start_child_workflow(
                "AgentRun",
                {"type": "agentic.start", "payload": {"goal": "help"}},
                id=child,
                task_queue=queue,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            )
        await workflow.wait_condition(lambda: bool(self.end))
        if self.end == "rotate":
            workflow.continue_as_new(args=[queue, child, rounds + 1])

    @workflow.signal
    def finish(self, end: str) -> None:
        self.end = end


@asynccontextmanager
async def lane(it: World) -> AsyncIterator[tuple[Any, Any]]:
    """A parent, and its child that waits for a person."""
    child = f"run:{uuid4().hex[:12]}"
    async with plain_worker(it.client, f"{it.queue}-lanes", Lane):
        parent = await it.client.start_workflow(
            "Lane", args=[it.queue, child, 0], id=f"lane-{it.queue}", task_queue=f"{it.queue}-lanes"
        )
        await it.until_listed(f"WorkflowId = '{child}' AND AgentStatus = 'waiting_on_human'")
        it.started.append(child)
        yield parent, it.client.get_workflow_handle(child)


async def closed(it: World, parent: Any) -> None:
    with pytest.raises(WorkflowFailureError):
        await parent.result()


async def test_the_child_of_a_terminated_parent_is_cancelled(world: MakeWorld) -> None:
    async with world([ASK]) as it, lane(it) as (parent, child):
        await parent.terminate()
        await closed(it, parent)
        assert (await reconcile(it)).findings == ()  # its parent may be stopping it just now
        listed = await reconcile(it, HOUR, repairs=False)
        assert (problems(listed), listed.repaired) == ([(FindingKind.orphaned, id_of(child))], {})
        report = await reconcile(it, HOUR)
        assert (problems(report), report.repaired) == ([(FindingKind.orphaned, id_of(child))], {Repair.cancel: 1})
        with pytest.raises(WorkflowFailureError) as ended:
            await child.result()
        assert isinstance(ended.value.cause, CancelledError)


async def test_the_child_of_a_completed_parent_is_named_and_goes_on(world: MakeWorld) -> None:
    async with world([ASK, FINISH]) as it, lane(it) as (parent, child):
        await parent.signal("finish", "done")
        await parent.result()
        report = await reconcile(it, HOUR)
        assert (problems(report), report.repaired) == ([(FindingKind.orphaned, id_of(child))], {})
        await child.execute_update("answer", {"text": "this one"})
        assert (await child.result())["type"] == "agent.completed"


async def test_the_child_of_a_parent_that_continued_as_new_is_no_orphan(world: MakeWorld) -> None:
    async with world([ASK]) as it, lane(it) as (parent, child):
        await parent.signal("finish", "rotate")

        async def rotated() -> bool:
            return bool((await parent.describe()).raw_description.workflow_execution_info.first_run_id) and (
                (await it.client.get_workflow_handle(parent.id).describe()).run_id != parent.first_execution_run_id
            )

        await it.until(rotated)
        assert (await reconcile(it, HOUR)).findings == ()
        await it.client.get_workflow_handle(parent.id).terminate()
        assert problems(await reconcile(it, HOUR)) == [(FindingKind.orphaned, id_of(child))]
        with pytest.raises(WorkflowFailureError):
            await child.result()


def claim(it: World, run: Run, step: int = 1) -> None:
    """A claim that a worker left, which then died."""
    now = datetime.now(UTC)
    left = Claim(
        key="k", tool="charge", call="c", nonce="n", claimed_at=now, until=now, owner=ClaimOwner(host="gone", pid=1)
    )
    it.project.stores.of(id_of(run)).create(f"ledger/step-{step:05}.claim", left.model_dump_json().encode())


async def test_the_claim_of_a_run_that_was_cut_short_is_named(world: MakeWorld) -> None:
    async with world([ASK]) as it:
        run = await waiting(it)
        claim(it, run)
        assert (await reconcile(it, HOUR)).findings == ()  # a person is asked
        await run.terminate()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        report = await reconcile(it, HOUR)
        assert (problems(report), report.repaired) == ([(FindingKind.claim, id_of(run))], {})
        assert "charge (step 1) may have happened" in report.findings[0].found
        assert it.project.stores.of(id_of(run)).names("ledger") == ["step-00001.claim"]


async def test_a_claim_whose_outcome_history_has_is_not_named(world: MakeWorld) -> None:
    async with world([calls(("look", {})), FINISH], ScriptedTool("look")) as it:
        run = await it.run_to_end()
        claim(it, run)
        assert (await reconcile(it, HOUR)).findings == ()


async def test_a_claim_is_not_judged_without_its_run(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.features.reconciler.activities.MAX_QUERIED_RUNS", 0)
    async with world([ASK]) as it:
        run = await waiting(it)
        claim(it, run)
        await run.terminate()
        report = await reconcile(it, HOUR)
    assert (report.findings, report.unasked) == ((), 1)


async def test_a_claim_is_looked_after_by_the_run_that_resumes_it(world: MakeWorld) -> None:
    async with world([ASK, ASK]) as it:
        run = await waiting(it)
        claim(it, run, step=5)
        await run.terminate()
        heir = await it.start(run_id=f"{id_of(run)}.r2")
        await it.until_state(heir, question=True)
        await it.until_listed(f"WorkflowId = '{heir.id}' AND AgentStatus = 'waiting_on_human'")
        assert (await reconcile(it, HOUR)).findings == ()


async def test_a_wait_for_a_person_is_named_after_a_day(world: MakeWorld) -> None:
    async with world([ASK]) as it:
        run = await waiting(it)
        assert (await reconcile(it, timedelta(hours=23))).findings == ()
        report = await reconcile(it, timedelta(hours=25))
    assert problems(report) == [(FindingKind.overdue, id_of(run))]
    assert "which one?" in report.findings[0].found


async def test_a_wait_for_a_tool_is_named_past_its_timeout(world: MakeWorld) -> None:
    review = ScriptedTool("review", kind=ToolKind.signal, timeout=2 * HOUR)
    async with world([calls(("review", {}))], review) as it:
        run = await it.start()
        await it.until_pending(run, 1)
        await it.until_listed("AgentStatus = 'waiting_on_tool'")
        assert (await reconcile(it, HOUR)).findings == ()
        report = await reconcile(it, 3 * HOUR)
    assert problems(report) == [(FindingKind.overdue, id_of(run))]


async def test_a_run_on_a_queue_without_workers_is_named(world: MakeWorld) -> None:
    async with world([], works=False) as it:
        run = await it.start()
        await it.until_listed(f"WorkflowId = '{run.id}'")
        other = Reconciler(it.client, it.project.stores, f"{it.queue}-other", lambda: datetime.now(UTC) + HOUR)
        report = await other.run_pass()
        await run.terminate()
    assert (FindingKind.unattended, id_of(run)) in problems(report)


async def forget(it: World, run: Run) -> None:
    """As the server does after the namespace's retention."""
    await it.client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=it.client.namespace, workflow_execution=WorkflowExecution(workflow_id=run.id)
        ),
        retry=True,
    )

    async def gone() -> bool:
        try:
            await run.describe()
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return False

    await it.until(gone)
    it.started.remove(run.id)


async def test_the_store_of_a_run_that_is_gone_is_cleared_and_its_files_stay(world: MakeWorld) -> None:
    async with world([ASK]) as it:
        run = await waiting(it)
        files = it.project.workspace(id_of(run)).root
        assert (await reconcile(it)).unjudged == 0
        await forget(it, run)
        assert (await reconcile(it, 5 * HOUR)).repaired == {}  # missed for the first time
        assert (await reconcile(it, 5 * HOUR + timedelta(minutes=59))).repaired == {}
        assert (files / ".store").is_dir()
        report = await reconcile(it, 7 * HOUR)
        assert (problems(report), report.repaired) == ([(FindingKind.left_store, id_of(run))], {Repair.clear: 1})
        assert not (files / ".store").exists()
        assert (files / "trace.jsonl").is_file()
        assert (files / "memory.md").is_file()
        assert (await reconcile(it, 9 * HOUR)).findings == ()


async def test_the_store_of_a_conversation_outlives_its_lane(world: MakeWorld) -> None:
    """Somebody may come back to it."""
    chat = new_id()
    async with world(echo) as it:
        await say(it, chat, "remember me")
        await until_idle(it, chat, 1)
        await it.until_listed("WorkflowType = 'AgentRun' AND ExecutionStatus != 'Running'")
        assert (await reconcile(it)).unjudged == 0
        await forget(it, lane_of(it, chat))
        for hours in (5, 7, 9):
            assert (await reconcile(it, hours * HOUR)).findings == ()
        await say(it, chat, "do you?")
        await until_idle(it, chat, 1)
        last = it.model.requests[-1]
    assert texts(last) == ["remember me", "you said: remember me", "do you?"]


async def test_uploads_are_removed_after_a_month(world: MakeWorld) -> None:
    async with world([ASK]) as it:
        store = it.project.stores.of(UPLOADS_STORE)
        make_private(it.project.workspaces / folder_name(UPLOADS_STORE))
        store.write("media/a", b"an image")
        assert (await reconcile(it, timedelta(days=29))).findings == ()
        assert store.names("media") == ["a"]
        assert (await reconcile(it, timedelta(days=31))).findings == ()
        assert store.names("media") == []


async def test_the_key_of_the_gateways_stays(world: MakeWorld) -> None:
    async with world([ASK]) as it:
        store = it.project.stores.of(GATEWAY_STORE)
        make_private(it.project.workspaces / folder_name(GATEWAY_STORE))
        store.create(KEY_FILE, b"k" * 32)
        for hours in (5, 700, 1400):
            assert (await reconcile(it, hours * HOUR)).findings == ()
        assert store.read(KEY_FILE) == b"k" * 32


async def test_a_store_with_a_claim_is_named_instead_of_cleared(world: MakeWorld) -> None:
    async with world([ASK]) as it:
        run = await waiting(it)
        await reconcile(it)
        claim(it, run)
        await forget(it, run)
        await reconcile(it, HOUR)
        report = await reconcile(it, 3 * HOUR)
        assert (problems(report), report.repaired) == ([(FindingKind.claim, id_of(run))], {})
        assert it.project.stores.of(id_of(run)).names("ledger") == ["step-00001.claim"]


@pytest.mark.parametrize("sign", ["", '"', "'", "\\"])
async def test_a_store_stays_while_an_open_run_resumes_its_run(world: MakeWorld, sign: str) -> None:
    async with world([ASK, ASK]) as it:
        run = await waiting(it, run_id=f"{uuid4().hex[:12]}{sign}")
        await it.start(run_id=f"{id_of(run)}.r3")
        await it.until_listed("ExecutionStatus = 'Running'", 2)
        await reconcile(it)
        await forget(it, run)
        for later in (HOUR, 3 * HOUR):
            assert (await reconcile(it, later)).repaired == {}
        assert (it.project.workspace(id_of(run)).root / ".store").is_dir()


async def test_a_store_that_is_a_link_is_left_alone(world: MakeWorld, tmp_path: Path) -> None:
    async with world([]) as it:
        (tmp_path / "elsewhere" / ".store").mkdir(parents=True)
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked" / ".store").symlink_to(tmp_path / "elsewhere" / ".store")
        report = await reconcile(it)
    assert (report.findings, report.unjudged) == ((), 2)


async def test_a_store_that_was_not_seen_here_with_its_run_is_left_alone(world: MakeWorld) -> None:
    async with world([ASK]) as it:
        for folder in ("never-started", "long" * 40, "someone's own folder"):
            (it.project.workspaces / folder / ".store").mkdir(parents=True)
        run = await waiting(it)
        await Reconciler(it.client, it.project.stores, f"{it.queue}-other").run_pass(repairs=True)
        await forget(it, run)
        for later in (HOUR, 3 * HOUR, 5 * HOUR):
            report = await reconcile(it, later)
            assert (report.findings, report.unjudged) == ((), 4)
        assert (it.project.workspace(id_of(run)).root / ".store").is_dir()


async def test_the_stores_are_gone_through_a_stretch_at_a_time(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.features.reconciler.activities.MAX_CHECKED_STORES", 2)
    async with world([]) as it:
        for number in range(5):
            (it.project.workspaces / f"run-{number}" / ".store").mkdir(parents=True)
        await reconcile_schedule.ensure_schedule(it.client, it.queue)
        handle = it.client.get_schedule_handle(reconcile_schedule.reconcile_schedule_id(it.queue))
        reports = [await finished_report(it, 1)]
        for number in (2, 3, 4):
            await handle.trigger()
            reports.append(await finished_report(it, number))
        await handle.delete()
    assert [(each.stores, each.after) for each in reports] == [(2, "run-1"), (2, "run-3"), (1, ""), (2, "run-1")]


async def test_a_list_that_is_too_long_is_checked_over_several_passes(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.features.reconciler.activities.MAX_LISTED_RUNS", 2)
    async with world([], works=False) as it:
        runs = {id_of(await it.start()) for _ in range(5)}
        await it.until_listed("ExecutionStatus = 'Running'", 5)
        other = Reconciler(it.client, it.project.stores, f"{it.queue}-other", lambda: datetime.now(UTC) + HOUR)
        report = await other.run_pass()
        reports = [report]
        while report.older:
            report = await other.run_pass(ReconcileRequest.model_validate(report.model_dump()))
            reports.append(report)
    named = [[run for _, run in problems(report)] for report in reports]
    assert set(named[0]) < set().union(*named)
    assert runs <= set().union(*named)


async def test_runs_that_wait_are_asked_in_turn_if_they_are_too_many_for_a_pass(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.features.reconciler.activities.MAX_QUERIED_RUNS", 1)
    async with world([ASK, ASK, ASK]) as it:
        runs = [id_of(await waiting(it)) for _ in range(3)]
        reconciler = Reconciler(it.client, it.project.stores, it.queue, now=lambda: datetime.now(UTC) + 25 * HOUR)
        request, named = ReconcileRequest(), []
        for _ in range(4):
            report = await reconciler.run_pass(request)
            named += [run for _, run in problems(report)]
            request = ReconcileRequest.model_validate(report.model_dump())
    assert named == [*reversed(runs), runs[-1]]


async def finished_report(it: World, number: int) -> ReconcileReport:
    """The report of the schedule's pass of this number."""
    handle = it.client.get_schedule_handle(reconcile_schedule.reconcile_schedule_id(it.queue))

    async def has_begun() -> bool:
        return len((await handle.describe()).info.recent_actions) == number

    await it.until(has_begun)
    action: Any = (await handle.describe()).info.recent_actions[-1].action
    report: ReconcileReport = await it.client.get_workflow_handle(
        action.workflow_id, run_id=action.first_execution_run_id, result_type=ReconcileReport
    ).result()
    return report


async def test_each_pass_is_logged_as_an_event(world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with world([]) as it:
        await it.client.execute_workflow("Reconcile", id=f"reconcile:{it.queue}", task_queue=it.queue)
    assert "agent_run.reconcile" in caplog.text
    events = [record.event for record in caplog.records if "event" in record.__dict__]  # type: ignore[attr-defined]
    assert [event["task_queue"] for event in events if event["event"] == "agent_run.reconcile"] == [it.queue]


async def test_a_worker_that_stops_does_not_wait_for_a_pass(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    started = asyncio.Event()

    async def endless(*_: Any, **__: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    async with world([], works=False) as it, asyncio.timeout(PATIENCE):
        async with it.worker():
            monkeypatch.setattr(Reconciler, Reconciler.run_pass.__name__, endless)
            handle = await it.client.start_workflow("Reconcile", id=f"reconcile:{it.queue}", task_queue=it.queue)
            await started.wait()
        monkeypatch.undo()
        async with it.worker():  # the next one makes it anew
            await handle.result()


async def test_workers_that_start_share_one_schedule_and_one_pass(client: Client, tmp_path: Path) -> None:
    queue = f"q-{uuid4().hex[:8]}"
    settings = load_settings({"PERDURE_HOME": str(tmp_path), "PERDURE_TASK_QUEUE": queue}, tmp_path)
    handle = client.get_schedule_handle(reconcile_schedule.reconcile_schedule_id(queue))
    async with run_worker(client, settings), asyncio.timeout(PATIENCE):
        while not await has_reconciled(client, queue):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.02)
        await asyncio.gather(*(reconcile_schedule.ensure_schedule(client, queue) for _ in range(3)))
        described = await handle.describe()
    await handle.delete()
    assert described.info.num_actions == 1
    assert described.schedule.spec.intervals[0].every == timedelta(minutes=5)


async def has_reconciled(client: Client, queue: str) -> bool:
    found = [each.status.name async for each in client.list_workflows(f"TaskQueue = '{queue}'") if each.status]
    return found == ["COMPLETED"]


async def test_a_paused_schedule_is_updated_and_stays_paused(client: Client) -> None:
    queue = f"q-{uuid4().hex[:8]}"
    handle = client.get_schedule_handle(reconcile_schedule.reconcile_schedule_id(queue))
    old = reconcile_schedule._build_schedule(queue)
    old.spec.intervals[0].every = timedelta(hours=3)
    old.state.paused = True
    await client.create_schedule(handle.id, old)
    await reconcile_schedule.ensure_schedule(client, queue)
    described = await handle.describe()
    await handle.delete()
    assert described.schedule.spec.intervals[0].every == reconcile_schedule.RECONCILE_INTERVAL
    assert (described.schedule.state.paused, described.info.num_actions) == (True, 0)


class Forbidden:
    """A client that may not speak of schedules."""

    async def create_schedule(self, *_: Any, **__: Any) -> None:
        raise RPCError("not for you", RPCStatusCode.PERMISSION_DENIED, b"")


async def test_a_worker_that_may_not_schedule_works_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    client: Any = Forbidden()
    async with reconcile_schedule.maintain_schedule(client, "perdure"), asyncio.timeout(PATIENCE):
        while "not for you" not in caplog.text:  # noqa: ASYNC110 - a log line is no event
            await asyncio.sleep(0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
