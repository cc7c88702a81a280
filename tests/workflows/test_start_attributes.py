"""The search attributes that a start sets, in namespaces that have them and in those that do not."""

from datetime import timedelta
from uuid import uuid4

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, ScheduleActionStartWorkflow
from temporalio.service import RPCError

from perdure.activities.telemetry.attributes import AGENT_NAME, AGENT_STATUS, AGENT_STEP, CONVERSATION_ID
from perdure.client.run_list import find_run
from perdure.client.runs import start_or_get_run
from perdure.contracts.run.events import StartEvent
from perdure.converter import data_converter
from perdure.features.schedules.client import NewSchedule, add_schedule, remove_schedule
from tests.waiting import until
from tests.workflows.conftest import MakeWorld
from tests.workflows.runs import count_upserts, result_of
from tests.workflows.script import FINISH

START = StartEvent.model_validate(
    {"type": "agentic.start", "payload": {"goal": "do it", "agent": "clerk", "conversation_id": "orders"}}
)


async def test_a_run_has_its_attributes_from_its_start_and_changes_them_at_its_end(
    world: MakeWorld, client: Client
) -> None:
    waits = await start_or_get_run(client, f"nobody-{uuid4().hex}", START)
    found = await find_run(client, waits.id)
    known = found.execution.typed_search_attributes
    assert [known.get(key) for key in (AGENT_NAME, AGENT_STATUS, AGENT_STEP)] == ["clerk", "running", 0]
    assert (known.get(CONVERSATION_ID), found.status) == ("orders", "queued")
    await waits.terminate("its test is over")
    async with world([FINISH]) as it:
        run = await it.start()
        await result_of(run)
        assert await count_upserts(run) == 1
        raw = await it.start_raw(StartEvent.model_validate(START.model_dump() | {"payload": {"goal": "do it"}}))
        await result_of(raw)
        assert await count_upserts(raw) == 2  # it came without them
        assert (await find_run(client, raw.id)).agent == "default"


async def test_a_namespace_without_search_attributes_takes_starts_and_schedules(client: Client) -> None:
    name = f"bare-{uuid4().hex[:8]}"
    day = Duration(seconds=86_400)
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=day), retry=True
    )
    bare = await Client.connect(client.service_client.config.target_host, namespace=name, data_converter=data_converter)

    async def is_there() -> bool:
        try:
            return (await bare.count_workflows("")).count == 0
        except RPCError:
            return False

    await until(is_there)
    run = await start_or_get_run(bare, "nobody", START)
    assert not (await run.describe()).typed_search_attributes.search_attributes
    await add_schedule(bare, "nobody", NewSchedule("hourly", START, every=timedelta(hours=1)))
    action = (await bare.get_schedule_handle("schedule:hourly").describe()).schedule.action
    assert isinstance(action, ScheduleActionStartWorkflow)
    assert not action.typed_search_attributes.search_attributes
    await remove_schedule(bare, "nobody", "hourly")
