"""The spans of a run, however it goes: one trace, one root at its end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from perdure.activities.providers.fallback import FallbackModel, Provider
from perdure.activities.providers.rate_limit import RateLimiter
from perdure.activities.security import Secrets
from perdure.activities.telemetry.metrics import MetricsInterceptor
from perdure.activities.telemetry.spans import SpanInterceptor
from perdure.contracts.run.state import CloseRequest
from perdure.decisions.ids import root_span_id, trace_id
from perdure.decisions.model_names import DEFAULT
from perdure.testkit.model_server import calls, fails
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.script import FINISH

CONTENT = ("gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
SENT = ("gen_ai.system_instructions", "gen_ai.input.messages")


@asynccontextmanager
async def recording_spans(
    it: World, secrets: Secrets | None = None, *, has_content: bool = False
) -> AsyncIterator[InMemorySpanExporter]:
    """A worker whose spans are kept; all have come when the block is left."""
    exporter = InMemorySpanExporter()
    spans = SpanInterceptor(exporter, it.client, secrets or it.project.secrets, has_content=has_content)
    async with it.worker(observers=[MetricsInterceptor(), spans]):
        yield exporter
    await spans.close()


@asynccontextmanager
async def answered_by(it: World, system: str) -> AsyncIterator[None]:
    it.within = lambda model: FallbackModel({DEFAULT: Provider(model, RateLimiter(DEFAULT), system=system)})
    yield


def one_trace(it: World, run: Run, spans: tuple[ReadableSpan, ...]) -> ReadableSpan:
    """The root of a run's spans, which are one trace."""
    namespace = it.client.namespace
    (root,) = (span for span in spans if span.parent is None)
    assert format(root.context.trace_id, "032x") == trace_id(namespace, run.id)
    assert format(root.context.span_id, "016x") == root_span_id(namespace, run.id)
    assert {span.context.trace_id for span in spans} == {root.context.trace_id}
    assert {span.parent.span_id for span in spans if span.parent} == {root.context.span_id}
    return root


@pytest.mark.parametrize("has_content", [False, True])
async def test_spans_have_content_only_if_it_is_wanted_and_without_secrets(world: MakeWorld, has_content: bool) -> None:
    secret = "sk-canary-4711-51"
    script = [calls(("look", {"at": f"here {secret}"}), text=f"I see {secret}."), FINISH]
    async with (
        world(script, ScriptedTool("look", lambda *_: f"found {secret}"), works=False) as it,
        answered_by(it, "somebody"),
        recording_spans(it, Secrets([("KEY", secret)]), has_content=has_content) as exporter,
    ):
        await it.run_to_end()
    attributes = [dict(span.attributes or {}) for span in exporter.get_finished_spans()]
    assert secret not in str(attributes)
    contents = [text for each in attributes for name, text in each.items() if name in CONTENT]
    assert sum("here" in str(text) for text in contents) == (2 if has_content else 0)  # in the reply and in the call
    assert sum("found" in str(text) for text in contents) == has_content
    sent = [json.loads(str(each[name])) for each in attributes for name in SENT if name in each]
    assert len(sent) == (5 if has_content else 0)  # of two turns, and the goal of the run
    if has_content:
        last = max((messages for messages in sent if messages[0].get("role")), key=len)
        assert [message["role"] for message in last] == ["user", "assistant", "user"]
        assert last[-1]["parts"][0]["type"] == "tool_call_response"
    assert [each["gen_ai.provider.name"] for each in attributes if "gen_ai.request.model" in each] == ["somebody"] * 2


async def test_a_run_that_rotates_is_one_trace_with_one_root(world: MakeWorld, short_history_client: Client) -> None:
    script = [calls(("look", {"n": n})) for n in range(25)] + [FINISH]  # fused reads make half the events
    look = ScriptedTool("look")
    async with (
        world(script, look, server=short_history_client, works=False, max_steps=30) as it,
        recording_spans(it) as exporter,
    ):
        run = await it.run_to_end()
    spans = exporter.get_finished_spans()
    root = one_trace(it, run, spans)
    assert len({(span.attributes or {}).get("temporalRunID") for span in spans} - {None}) > 1
    assert [span.name for span in spans].count("execute_tool look") == 25
    first = min(span.start_time or 0 for span in spans if span is not root)
    assert (root.start_time or 0) <= first  # not when the last execution began
    assert root.attributes
    assert root.attributes["perdure.outcome"] == "completed"


@pytest.mark.parametrize(
    ("script", "outcome", "is_error"),
    [([calls(("work", {}))], "cancelled", False), ([fails(401)], "failed", True)],
)
async def test_the_root_span_has_the_outcome_of_a_run_that_did_not_complete(
    world: MakeWorld, script: list[Any], outcome: str, is_error: bool
) -> None:
    async with (
        world(script, ScriptedTool("work", lambda *_: cancel()), works=False) as it,
        recording_spans(it) as exporter,
    ):
        run = await it.start()

        async def cancel() -> str:
            await run.signal("cancel", {})
            return "worked"

        with pytest.raises(WorkflowFailureError):
            await run.result()
    root = one_trace(it, run, exporter.get_finished_spans())
    assert root.attributes
    assert root.attributes["perdure.outcome"] == outcome
    assert root.status.is_ok is not is_error


async def test_a_secret_is_in_no_attribute(world: MakeWorld) -> None:
    secrets, script = Secrets([("TOOL_KEY", "look"), ("MODEL_KEY", "scripted")]), [calls(("look", {})), FINISH]
    async with world(script, ScriptedTool("look"), works=False) as it, recording_spans(it, secrets) as exporter:
        await (await it.start()).result()
    said = " ".join(str(dict(span.attributes or {})) for span in exporter.get_finished_spans())
    assert "'[redacted TOOL_KEY]'" in said
    assert "'look'" not in said
    assert "'scripted'" not in said


async def test_an_end_that_takes_long_has_its_root(world: MakeWorld, monkeypatch: Any) -> None:
    """On a busy machine more than one answer of the server is awaited."""
    asked = count(1)
    fetch = WorkflowHandle.fetch_history_events

    def late(self: Any, **options: Any) -> Any:
        is_early = options.get("wait_new_event") and next(asked) <= 2
        return overdue() if is_early else fetch(self, **options)

    async def overdue() -> AsyncIterator[Any]:
        raise RPCError("Timeout expired", RPCStatusCode.DEADLINE_EXCEEDED, b"")
        yield

    monkeypatch.setattr(WorkflowHandle, "fetch_history_events", late)
    async with world([FINISH], works=False) as it, recording_spans(it) as exporter:
        run = await it.run_to_end()
    assert one_trace(it, run, exporter.get_finished_spans()).name.startswith("invoke_agent")
    assert next(asked) > 2


async def test_a_worker_that_leaves_waits_for_no_end_that_does_not_come(world: MakeWorld, monkeypatch: Any) -> None:
    monkeypatch.setattr("perdure.activities.telemetry.spans.SERVER_TIMEOUT", timedelta(milliseconds=200))
    async with world([calls(("ask_human", {"question": "Which?"}))]) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        spans = SpanInterceptor(InMemorySpanExporter(), it.client, it.project.secrets)
        env = ActivityEnvironment()
        env.info = replace(env.info, workflow_id=run.id, workflow_run_id=run.first_execution_run_id)
        env.run(spans.record_run_end, CloseRequest(start=0, length=1, head="h"))
        await asyncio.wait_for(spans.close(), 10)
        await run.cancel()
