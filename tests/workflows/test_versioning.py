"""Old and new workers side by side: a run stays with the build that it began on, whatever the new one does."""

import asyncio
from functools import partial
from typing import Any

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.process.workflows import build_id
from perdure.settings import Deployment
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from perdure.workflows.handlers import UnknownWorkflow
from tests.conftest import TEMPORAL
from tests.replay.altered import Unguarded
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.script import FINISH

ASK = calls(("ask_human", {"question": "Go on?"}))
PARTITIONS = 4  # of a task queue, unless the server is configured otherwise
STEPS = 14  # long enough to rotate on the server with the short histories
SCRIPT = [ASK, *[calls(("look", {"n": n})) for n in range(STEPS)], FINISH]

# What the old histories do not fit: were a run to change its build, it would be wedged.
INCOMPATIBLE = (Unguarded, UnknownWorkflow)


async def make_current(it: World, deployment: Deployment) -> None:
    """As `temporal worker deployment set-current-version` does, once the server has seen a worker of the build.

    The task queue hears of it up to half a second later, partition by partition.
    """
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=it.client.namespace, deployment_name=deployment.name, build_id=deployment.build_id
    )

    async def is_set() -> bool:
        try:
            await it.client.workflow_service.set_worker_deployment_current_version(request, retry=True)
        except RPCError:
            return False
        return True

    async def is_known_to(partition: str) -> bool:
        request = DescribeTaskQueueRequest(
            namespace=it.client.namespace,
            task_queue=TaskQueue(name=partition),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
        queue = await it.client.workflow_service.describe_task_queue(request, retry=True)
        return bool(queue.versioning_info.current_deployment_version.build_id == deployment.build_id)

    await it.until(is_set)
    for partition in (it.queue, *(f"/_sys/{it.queue}/{n}" for n in range(1, PARTITIONS))):
        await it.until(partial(is_known_to, partition))


async def builds(it: World, run: Run) -> list[set[str]]:
    """Which builds did the run's workflow tasks, execution by execution; "" is a worker without versioning."""
    return [
        {
            event.workflow_task_completed_event_attributes.deployment_version.build_id
            async for event in handle.fetch_history_events()
            if event.HasField("workflow_task_completed_event_attributes")
        }
        for handle in await it.executions(run)
    ]


async def test_a_run_stays_with_its_build_also_over_rotations_and_a_new_run_goes_to_the_new_one(
    world: MakeWorld, short_history_client: Client
) -> None:
    async with world(SCRIPT, ScriptedTool("look"), server=short_history_client, works=False, max_steps=STEPS + 1) as it:
        old, new = Deployment(it.queue, "1"), Deployment(it.queue, "2")
        async with it.worker(deployment=old):
            await make_current(it, old)
            old_run = await it.start()
            await it.until_state(old_run, question=True)
            async with it.worker(await it.another_client(), deployment=new, workflows=INCOMPATIBLE):
                await make_current(it, new)
                new_run = await it.start()
                await it.until_state(new_run, question=True)
                for run in (old_run, new_run):
                    await run.signal("human_input", {"text": "yes"})
                    assert (await run.result())["type"] == "agent.completed"
                    assert [await it.failed_tasks(each) for each in await it.executions(run)] == [0, 0]
                assert await builds(it, old_run) == [{"1"}, {"1"}]
                assert await builds(it, new_run) == [{"2"}, {"2"}]


async def test_without_versioning_history_names_the_code_that_decided_in_eight_digits(world: MakeWorld) -> None:
    """Six times a step: what the SDK makes by itself, of all that is loaded, is four times as long."""
    async with world([calls(("look", {})), FINISH], ScriptedTool("look")) as it:
        run = await it.run_to_end()
        events = [event async for event in run.fetch_history_events()]
        named = [
            getattr(event, kind).worker_version.build_id
            for event in events
            for kind in (
                "workflow_task_started_event_attributes",
                "workflow_task_completed_event_attributes",
                "activity_task_started_event_attributes",
            )
            if event.HasField(kind)
        ]
        assert set(named) == {build_id()}
        assert len(build_id()) == 8
        assert len(named) > 6


async def test_a_run_that_began_without_versioning_goes_on_once_a_build_is_current(world: MakeWorld) -> None:
    async with world([ASK, FINISH], works=False) as it:
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
        build = Deployment(it.queue, "1")
        async with it.worker(deployment=build):
            await make_current(it, build)
            await run.signal("human_input", {"text": "yes"})
            assert (await run.result())["type"] == "agent.completed"
            assert await builds(it, run) == [{"", "1"}]
            assert await it.failed_tasks(run) == 0


async def test_a_run_whose_build_has_no_worker_left_is_moved_to_another_by_a_command(world: MakeWorld) -> None:
    """The command of docs/upgrading.md. The run stays with the build that it was moved to."""
    async with world([ASK, ASK, FINISH], works=False) as it:
        old, new = Deployment(it.queue, "1"), Deployment(it.queue, "2")
        async with it.worker(deployment=old):
            await make_current(it, old)
            run = await it.start()
            await it.until_state(run, question=True)
        async with it.worker(deployment=new):
            await make_current(it, new)
            await it.until(lambda: are_left(it, old, run))
            await move(it, run, new)
            await it.until(lambda: are_left(it, old))
            for step in (1, 2):
                await it.until_state(run, question=True, step=step)
                await run.signal("human_input", {"text": "yes"})
            assert (await run.result())["type"] == "agent.completed"
        assert (await builds(it, run), await it.failed_tasks(run)) == ([{"1", "2"}], 0)


async def move(it: World, handle: Run, deployment: Deployment, behavior: str = "one_time") -> None:
    """The command of docs/upgrading.md."""
    where = ("--address", it.client.service_client.config.target_host, "--workflow-id", handle.id)
    to = [f"--versioning-override-{name}" for name in ("behavior", "deployment-name", "build-id")]
    flags = [part for pair in zip(to, (behavior, deployment.name, deployment.build_id), strict=True) for part in pair]
    moved = await asyncio.create_subprocess_exec(TEMPORAL, "workflow", "update-options", *where, *flags)
    assert await moved.wait() == 0


async def are_left(it: World, deployment: Deployment, *runs: Any) -> bool:
    """Whether these, and no others, keep the build alive."""
    version = f"{deployment.name}:{deployment.build_id}"
    query = f"TemporalWorkerDeploymentVersion = '{version}' AND ExecutionStatus = 'Running'"
    return [each.id async for each in it.client.list_workflows(query)] == [run.id for run in runs]


async def test_a_run_waits_for_a_build_that_is_made_current_later(world: MakeWorld) -> None:
    async with world([FINISH], works=False) as it:
        build = Deployment(it.queue, "1")
        run = await it.start()
        async with it.worker(deployment=build):
            await it.until(lambda: is_known(it, build))
            assert (await run.describe()).history_length == 2  # started, and a task that nobody takes
            await make_current(it, build)
            assert (await run.result())["type"] == "agent.completed"


async def is_known(it: World, deployment: Deployment) -> bool:
    request = DescribeWorkerDeploymentRequest(namespace=it.client.namespace, deployment_name=deployment.name)
    try:
        await it.client.workflow_service.describe_worker_deployment(request, retry=True)
    except RPCError:
        return False
    return True
