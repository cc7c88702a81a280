"""Metrics of a run that is replayed with every workflow task: each thing that happened counts once."""

from collections import Counter

from temporalio.client import Client
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from perdure.contracts.tool import ToolKind
from perdure.converter import data_converter
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld
from tests.workflows.script import FINISH


async def test_a_replay_counts_nothing_twice(world: MakeWorld, client: Client) -> None:
    buffer = MetricBuffer(10_000)
    runtime = Runtime(telemetry=TelemetryConfig(metrics=buffer))
    target = client.service_client.config.target_host
    counted = await Client.connect(target, data_converter=data_converter, runtime=runtime)
    out = ScriptedTool("out", lambda *_: "sent", kind=ToolKind.signal)
    script = [calls(("look", {"n": n})) for n in range(3)] + [calls(("out", {})), FINISH]
    async with world(script, ScriptedTool("look"), out, server=counted, caches=False) as it:
        run = await it.start()
        # No query here: one that overtakes a workflow task, where the run is in no cache, does the task too.
        await it.until(lambda: len(out.calls) == 1)
        error = {"kind": "unreachable", "message": "no", "retryable": True}
        await it.send_result(run, 4, "out", status="error", result=None, error=error)
        await it.until(lambda: len(out.calls) == 2)
        await it.send_result(run, 4, "out")
        await run.result()
    found: Counter[str] = Counter()
    for update in buffer.retrieve_updates():
        name = update.metric.name
        if name.startswith("perdure_") and update.metric.kind == 0:
            labels = update.attributes
            found[f"{name} {labels.get('event') or labels.get('tool') or labels.get('status')}"] += int(update.value)
    assert {key: n for key, n in found.items() if "tokens" not in key} == {
        "perdure_events agent_run.started": 1,
        "perdure_events agent.tool.retry": 1,
        "perdure_events agent_run.completed": 1,
        "perdure_runs completed": 1,
        "perdure_tool_calls look": 3,
        "perdure_tool_calls out": 1,
        "perdure_tool_retries out": 1,
    }
