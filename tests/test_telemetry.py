"""What a log line holds, and what metrics and spans ask of the environment."""

import errno
import json
import logging
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from perdure import cli
from perdure.decisions.ids import trace_id
from perdure.process.worker import export_spans
from perdure.settings import ProjectError, load_settings
from perdure.telemetry import JsonLines, forward_events


def line_of(error: Exception) -> dict[str, str]:
    about = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "it failed", None, about)
    line: dict[str, str] = json.loads(JsonLines().format(record))
    return line


def test_a_typed_failure_is_logged_without_a_traceback() -> None:
    assert line_of(ApplicationError("charge may have happened", type="InDoubt"))["error"] == (
        "InDoubt: charge may have happened"
    )


def test_a_full_disk_is_logged_without_a_traceback() -> None:
    assert line_of(OSError(errno.ENOSPC, "No space left on device", "/runs/a"))["error"] == (
        "[Errno 28] No space left on device: '/runs/a'"
    )


def test_a_bug_is_logged_with_its_traceback() -> None:
    with pytest.raises(ValueError) as bug:
        json.loads("{")
    assert "Traceback" in line_of(bug.value)["error"]
    with pytest.raises(FileNotFoundError) as missing:
        Path("nowhere").read_bytes()
    assert "Traceback" in line_of(missing.value)["error"]


def test_a_line_of_a_run_has_its_trace() -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "done", None, None)
    record.temporal_workflow = {"workflow_id": "run:a", "namespace": "here"}
    line = json.loads(JsonLines().format(record))
    assert (line["run"], line["trace"]) == ("run:a", trace_id("here", "run:a"))
    assert "step" not in line


def test_text_that_is_not_utf8_is_logged() -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "no such tool: \ud83d é", None, None)
    line = JsonLines().format(record)
    assert line.encode()
    assert json.loads(line)["message"] == "no such tool: \ud83d é"


class RecordingHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "bad":
            raise ValueError("this one fails")
        self.events.append(record.getMessage())


def test_a_failing_listener_keeps_no_other_event_back(caplog: pytest.LogCaptureFixture) -> None:
    handler, log = RecordingHandler(), logging.getLogger("perdure.test")
    with caplog.at_level(logging.INFO), forward_events(handler):
        for name in ("first", "bad", "last"):
            log.info(name, extra={"event": {"event": name}})
        log.info("no event")
    assert handler.events == ["first", "last"]
    assert "the event bad is only in the log: a listener failed" in caplog.text


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("", None),
        ("9464", "127.0.0.1:9464"),
        ("localhost:9464", "127.0.0.1:9464"),
        (" 0.0.0.0:9464 ", "0.0.0.0:9464"),
        ("[::1]:9464", "[::1]:9464"),
    ],
)
def test_the_address_of_the_metrics(said: str, address: str | None, tmp_path: Path) -> None:
    assert load_settings({"PERDURE_METRICS": said}, tmp_path).metrics == address


@pytest.mark.parametrize("said", ["no", "9464x", "example.com:9464", "127.0.0.1:", "0", "127.0.0.1:65536", "1.2.3.4:٣"])
def test_an_invalid_metrics_address_is_rejected(said: str, tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match=r'PERDURE_METRICS: expected a port or "address:port"'):
        load_settings({"PERDURE_METRICS": said}, tmp_path)


@pytest.mark.parametrize(
    ("env", "exports"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_spans_are_exported_where_a_collector_is_named(env: dict[str, str], exports: bool, tmp_path: Path) -> None:
    assert load_settings(env, tmp_path).exports_spans is exports


async def refused(monkeypatch: pytest.MonkeyPatch, folder: Path, env: dict[str, str]) -> str:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(env, folder)
    no_client: Any = None
    with pytest.raises(ProjectError) as error:
        export_spans(no_client, settings, AsyncExitStack())
    return str(error.value)


async def test_spans_without_the_extra_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "perdure.activities.telemetry.spans", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    said = await refused(monkeypatch, tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"})
    assert said == "OTEL_EXPORTER_OTLP_ENDPOINT needs OpenTelemetry: pip install 'perdure[telemetry]'"


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT: expected an address"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL: spans are exported by http/protobuf, not by grpc",
        ),
    ],
)
async def test_an_unsupported_collector_is_rejected_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, env: dict[str, str], words: str
) -> None:
    said = await refused(monkeypatch, tmp_path, env)
    assert said.startswith(words)
    assert "\n" not in said


def test_every_logged_event_is_on_the_operators_page() -> None:
    root = Path(cli.__file__).parents[1]
    page = (root / "docs" / "operations.md").read_text(encoding="utf-8")
    paths = [path for name in ("workflows", "activities") for path in root.glob(f"{name}/**/*.py")]
    sources = [path.read_text(encoding="utf-8") for path in paths]
    names = {name for text in sources for name in re.findall(r'"(agent(?:_run\.|\.(?:\w+)\.)\w+)"', text)}
    assert {"agent.tool.retry", "agent_run.resume_unsafe"} <= names
    assert {name for name in names if f"`{name}`" not in page} == set()


LOGGING = """
import logging, sys, time
from perdure.activities.security import NO_SECRETS
from perdure.process.streams import exit_now
from perdure.telemetry import log_to_stderr

log_to_stderr(NO_SECRETS)
for number in range(int(sys.argv[1])):
    logging.getLogger("x").info("line %d%s", number, " is long" * 20)
print("logged", flush=True)
sys.stdin.readline()
logging.getLogger("x").info("the last one")
exit_now(0)
"""


def logging_process(lines: int) -> subprocess.Popen[str]:
    pipe, program = subprocess.PIPE, [sys.executable, "-c", LOGGING, str(lines)]
    return subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_log_that_nobody_reads_stops_no_process_and_says_what_it_left_out() -> None:
    with logging_process(30_000) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "logged\n"
        read = [process.stderr.readline() for _ in range(10_001)]  # now somebody reads
        process.stdin.write("\n")
        process.stdin.close()
        read += process.stderr.readlines()
        assert process.wait(10) == 0
    messages = [json.loads(line)["message"] for line in read]
    left_out = [int(message.split()[0]) for message in messages if "left out" in message]
    assert len(left_out) == 1
    assert len(messages) == 30_000 - left_out[0] + 2
    assert messages[-1] == "the last one"


def test_a_process_whose_log_is_never_read_ends() -> None:
    with logging_process(5_000) as process:
        assert process.stdin
        process.stdin.close()
        assert process.wait(20) == 0
        assert process.stderr
        process.stderr.close()


def test_a_short_log_is_whole_when_a_process_ends() -> None:
    with logging_process(3) as process:
        assert process.stdin
        process.stdin.close()
        assert process.stderr
        assert len(process.stderr.readlines()) == 4
