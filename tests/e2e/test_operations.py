"""What an operator sees of a run: metrics, spans, log lines and its trace, as docs/operations.md tells."""

import base64
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from perdure import cli
from perdure.client.runs import start_or_get_run
from perdure.contracts.run.events import StartEvent
from perdure.decisions.ids import root_span_id, trace_id
from perdure.testkit.model_server import ScriptedModel, calls
from tests.e2e.projects import Served
from tests.ports import free_port
from tests.waiting import until

PAGE = Path(cli.__file__).parents[1] / "docs" / "operations.md"
CANARY = "tel-canary-4f2a9c"
RUN = "run:watched"
COMPLETED = "temporal_workflow_completed_total{"
TOOLS = """
tried = []

def flaky(word: str) -> str:
    '''Fails at first.'''
    tried.append(word)
    if len(tried) == 1:
        raise ConnectionError("no answer to the secret question")
    return "said " + word

def steady(word: str) -> str:
    '''Never fails.'''
    return word

def broken(word: str) -> str:
    '''Always fails.'''
    raise ValueError("broken")
"""


@contextmanager
def collector() -> Iterator[tuple[str, list[Span], list[str]]]:
    """Takes spans by OTLP over HTTP: its address, what came, and the headers that came with it."""
    spans: list[Span] = []
    keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest()
            request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
            for resource in request.resource_spans:
                keys.append(self.headers["api-key"] or f"{self.path} {self.headers['authorization']}")
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", spans, keys
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Telemetry:
    """All that a worker reported of one run, in which a tool failed once and was tried again."""

    metrics: str
    spans: list[Span]
    keys: list[str]
    log: list[dict[str, Any]]
    folder: Path

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels."""
        found = re.findall(rf"^{name}\{{(.*?)\}} (\S+)$", self.metrics, re.MULTILINE)
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        return sum(float(value) for said, value in found if wanted <= set(said.split(",")))

    def span(self, name: str) -> Span:
        (one,) = (span for span in self.spans if span.name == name)
        return one


@pytest.fixture(scope="module")
async def telemetry(served: Served) -> Telemetry:
    project, port = served.project, free_port()
    project.write("watched_tools.py", TOOLS)
    tables = "\n".join(
        f'[tools.{name}]\nkind = "python"\ntarget = "watched_tools:{name}"\neffect = "read"'
        for name in ("flaky", "steady", "broken")
    )
    project.write("perdure.toml", f"{tables}\n[prices.claude-sonnet-5-5]\ninput = 3\noutput = 15\n")
    project.write("agents/default.md", "---\nname: default\ntools: [flaky, steady, broken]\n---\n")
    word = {"word": CANARY}
    script = [
        calls(("flaky", word), ("steady", word), ("broken", word), text="Plan: ask."),
        calls(("finish", {"outcome": f"they said {CANARY}"})),
    ]
    with ScriptedModel(script) as model, collector() as (address, spans, keys):
        environment = {
            "TEMPORAL_ADDRESS": served.address,
            "PERDURE_TASK_QUEUE": "watched",
            "PERDURE_METRICS": str(port),
            "OTEL_EXPORTER_OTLP_ENDPOINT": address,
            "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={CANARY}",
            "ANTHROPIC_BASE_URL": model.base_url,
        }
        with project.worker(**environment) as worker:
            event = StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": "ask them all"}})
            await (await start_or_get_run(served.client, "watched", event, "watched")).result()
            async with httpx.AsyncClient(trust_env=False) as http:

                async def scraped() -> str:
                    return (await http.get(f"http://127.0.0.1:{port}/metrics")).text

                async def complete() -> bool:  # the worker hears of the end a little later than we do
                    return "perdure_runs_total{" in (page := await scraped()) and COMPLETED in page

                await until(complete)
                metrics = await scraped()
            stopped = worker.send_signal(signal.SIGTERM)
    log = [json.loads(line) for line in stopped.err.splitlines()]
    project.write("worker.log", stopped.err)
    return Telemetry(metrics, spans, keys, log, project.folder)


def test_the_metrics_count_what_happened(telemetry: Telemetry) -> None:
    assert telemetry.metric("perdure_runs_total", status="completed", reason="") == 1
    assert telemetry.metric("perdure_tool_calls_total", tool="flaky", status="ok", error="") == 1
    assert telemetry.metric("perdure_tool_calls_total", tool="broken", status="error", error="tool_error") == 1
    assert telemetry.metric("perdure_tool_retries_total", tool="flaky") == 1
    assert telemetry.metric("perdure_tool_retries_total") == 1
    assert telemetry.metric("perdure_events_total", event="agent.tool.retry") == 1
    assert telemetry.metric("perdure_tool_duration_seconds_count", tool="flaky", status="failed") == 1
    assert telemetry.metric("perdure_tool_duration_seconds_count", tool="flaky", status="ok") == 1
    assert telemetry.metric("perdure_model_duration_seconds_count", status="ok") == 2
    tokens = {
        d: telemetry.metric("perdure_tokens_total", model="claude-sonnet-5-5", direction=d) for d in ("input", "output")
    }
    assert min(tokens.values()) > 0
    spent = (tokens["input"] * 3 + tokens["output"] * 15) / 1e6
    assert telemetry.metric("perdure_model_cost_usd_sum") == pytest.approx(spent)
    assert (
        telemetry.metric("temporal_workflow_completed_total", workflow_type="AgentRun") == 1
    )  # Temporal's own beside ours


def test_no_label_of_ours_names_a_run(telemetry: Telemetry) -> None:
    ours = [line for line in telemetry.metrics.splitlines() if line.startswith("perdure_")]
    assert ours
    assert not [line for line in ours if "watched" in line.replace('task_queue="watched"', "")]


def attributes(span: Span) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in span.attributes}


def of_run(telemetry: Telemetry) -> list[Span]:
    return [span for span in telemetry.spans if attributes(span)["temporalWorkflowID"] == RUN]


def test_every_span_of_a_run_is_in_its_trace_below_its_root(telemetry: Telemetry) -> None:
    root = telemetry.span("invoke_agent default")
    assert (root.trace_id.hex(), root.span_id.hex()) == (trace_id("default", RUN), root_span_id("default", RUN))
    assert root.parent_span_id == b""
    below = [span for span in of_run(telemetry) if span is not root]
    assert {span.trace_id for span in below} == {root.trace_id}
    assert {span.parent_span_id for span in below} == {root.span_id}
    assert len({span.span_id for span in below}) == len(below)
    assert sorted(span.name for span in below) == [
        *("agent.tool.retry", "agent_run.completed", "agent_run.started", "close_segment"),
        *("execute_tool broken", "execute_tool flaky", "execute_tool flaky", "execute_tool steady"),
        *("open_run", "plan", "reflect"),
    ]
    first, last = min(s.start_time_unix_nano for s in below), max(s.end_time_unix_nano for s in below)
    assert root.start_time_unix_nano <= first
    assert root.end_time_unix_nano >= last


def test_the_root_span_tells_how_the_run_ended(telemetry: Telemetry) -> None:
    said = attributes(telemetry.span("invoke_agent default"))
    assert (said["perdure.outcome"], said["perdure.steps"], said["perdure.run_id"]) == ("completed", 3, "watched")
    assert said["gen_ai.agent.name"] == "default"
    assert said["perdure.cost_usd"] > 0


def test_a_span_of_a_model_turn_has_its_tokens(telemetry: Telemetry) -> None:
    said = attributes(telemetry.span("plan"))
    assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == "claude-sonnet-5-5"
    assert (said["gen_ai.operation.name"], said["perdure.turn"], said["perdure.attempt"]) == ("chat", 1, 1)
    assert said["gen_ai.usage.input_tokens"] > 0
    assert said["gen_ai.usage.output_tokens"] > 0
    assert telemetry.span("plan").kind == Span.SPAN_KIND_CLIENT


def test_an_attempt_that_failed_and_its_retry_are_spans_of_their_own(telemetry: Telemetry) -> None:
    flaky = [attributes(span) for span in of_run(telemetry) if span.name == "execute_tool flaky"]
    by_attempt = {said["perdure.attempt"]: said for said in flaky}
    assert (by_attempt[1]["perdure.outcome"], by_attempt[1]["error.type"]) == ("failed", "unreachable")
    assert (by_attempt[2]["perdure.outcome"], "error.type" in by_attempt[2]) == ("ok", False)
    assert all((said["gen_ai.tool.name"], said["perdure.step"]) == ("flaky", 1) for said in flaky)
    said = attributes(telemetry.span("agent.tool.retry"))
    assert (said["perdure.tool"], said["perdure.delay_seconds"], said["perdure.step"]) == ("flaky", 0.5, 1)


def test_spans_hold_nothing_of_the_conversation_and_go_with_the_headers_that_are_set(telemetry: Telemetry) -> None:
    assert set(telemetry.keys) == {CANARY}
    sent = "".join(str(span) for span in telemetry.spans)
    assert CANARY not in sent
    assert "secret question" not in sent
    assert "Plan: ask." not in sent


def test_each_log_line_of_a_run_has_its_trace_and_those_of_a_call_the_step(telemetry: Telemetry) -> None:
    lines = [line for line in telemetry.log if line.get("run") == RUN]
    assert {line["trace"] for line in lines} == {trace_id("default", RUN)}
    assert {line["event"] for line in lines if "event" in line} == {
        "agent_run.started",
        "agent.tool.retry",
        "agent_run.completed",
    }
    failed = [line for line in lines if line["message"].startswith("Completing activity as failed")]
    assert [line["step"] for line in failed] == [1]
    assert CANARY not in json.dumps(telemetry.log)  # a header that authenticates is a secret too


def test_the_events_of_a_run_are_in_its_trace(telemetry: Telemetry) -> None:
    lines = [json.loads(line) for line in trace_of(telemetry).read_text().splitlines()]
    names = [line["event"] for line in lines]
    assert names.count("agent.tool.retry") == names.count("agent_run.started") == 1
    assert all(line["at"] for line in lines)


def trace_of(telemetry: Telemetry) -> Path:
    return telemetry.folder / ".perdure" / "runs" / "watched" / "trace.jsonl"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_page_answers_which_tools_are_flaky_this_week(telemetry: Telemetry) -> None:
    old = {"event": "agent.tool.retry", "tool": "steady", "at": "2020-01-01T00:00:00.000+00:00", "run": "run:old"}
    with (telemetry.folder / "worker.log").open("a") as log:
        log.write(json.dumps(old) + "\nnot a line of ours\n")
    of_logs, of_traces = (
        [
            json.loads(line)
            for line in subprocess.check_output(["/bin/sh", "-c", command], cwd=telemetry.folder).splitlines()
        ]
        for command in blocks("bash")
    )
    assert of_logs == [{"tool": "flaky", "retries": 1, "runs": 1}]
    assert of_traces == [
        {"tool": "broken", "calls": 1, "errors": 1, "retries": 0},
        {"tool": "flaky", "calls": 1, "errors": 0, "retries": 1},
        {"tool": "steady", "calls": 1, "errors": 0, "retries": 0},
    ]


def test_every_metric_that_the_page_names_is_there(telemetry: Telemetry) -> None:
    named = set(re.findall(r"perdure_[a-z_]+", PAGE.read_text(encoding="utf-8")))
    there = set(re.findall(r"^(perdure_[a-z_]+)\{", telemetry.metrics, re.MULTILINE))
    assert "perdure_tool_retries_total" in named
    missing = {name for name in named if not {name, f"{name}_sum"} & there}
    assert missing == {"perdure_budget_refusals_total"}  # tests/workflows/test_budgets.py uses one up


def test_a_port_in_use_is_one_line(served: Served) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with served.project.running(
            script="worker.py", PERDURE_METRICS=address, TEMPORAL_ADDRESS=served.address
        ) as worker:
            done = worker.wait()
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err.startswith(f"worker: no metrics at {address}: ")
    assert "in use" in done.err


async def test_langfuse_gets_a_run_as_a_trace_with_its_content(served: Served) -> None:
    """As docs/operations.md sets it, at a collector in Langfuse's place: path, headers, and what its page shows."""
    token = base64.b64encode(b"pk-lf-1:sk-lf-canary-51").decode()
    with ScriptedModel([calls(("finish", {"outcome": "the answer"}))]) as model, collector() as (address, spans, keys):
        environment = {
            "TEMPORAL_ADDRESS": served.address,
            "PERDURE_TASK_QUEUE": "langfuse",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"{address}/api/public/otel",
            "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Basic%20{token}",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
            "ANTHROPIC_BASE_URL": model.base_url,
        }
        payload = {"goal": "the question", "agent": "asker", "conversation_id": "c-1"}
        served.project.write("agents/asker.md", "---\nname: asker\ntools: []\n---\nYou answer.\n")
        with served.project.worker(**environment) as worker:
            event = StartEvent.model_validate({"type": "agentic.start", "payload": payload})
            await (await start_or_get_run(served.client, "langfuse", event, "langfuse")).result()
            worker.send_signal(signal.SIGTERM)
    assert set(keys) == {f"/api/public/otel/v1/traces Basic {token}"}
    (root,) = (attributes(span) for span in spans if span.name == "invoke_agent asker")
    assert root["gen_ai.conversation.id"] == root["session.id"] == "c-1"
    assert "the question" in root["gen_ai.input.messages"]
    assert "the answer" in root["gen_ai.output.messages"]
    (turn,) = (attributes(span) for span in spans if span.name == "plan")
    assert "You answer." in turn["gen_ai.system_instructions"]
    assert "the question" in json.loads(turn["gen_ai.input.messages"])[0]["parts"][0]["content"]
    assert token not in "".join(str(span) for span in spans)
