"""Logs: one JSON object a line, with the run they belong to."""

import asyncio
import atexit
import errno
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from pathlib import Path
from queue import SimpleQueue
from time import monotonic, sleep
from typing import TextIO

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from perdure.activities.security import NO_SECRETS, Secrets, open_private
from perdure.activities.telemetry.facts import attempt_facts
from perdure.contracts.models import is_utf8
from perdure.decisions.errors import ReportedError
from perdure.decisions.ids import trace_id
from perdure.decisions.telemetry import BUCKETS

# Typed failures and cancellations are not bugs, so their traceback is left out of the log.
EXPECTED_ERRORS = (ApplicationError, asyncio.CancelledError)
# Neither is a disk that is full, read-only or unavailable.
DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})

_log = logging.getLogger(__name__)

MAX_WAITING_LINES = 10_000
FLUSH_TIME = 2.0  # seconds
PLACES = ("step", "turn")  # the place in the run


class MetricsUnavailableError(ReportedError):
    """The metrics endpoint cannot be opened. The message is one line."""


class JsonLines(logging.Formatter):
    """A formatter: `{"at", "level", "logger", "message", "run"?, "trace"?, "step"?, "turn"?, "error"?}`.

    An event adds its own fields. `error` has the traceback of a bug.
    """

    def __init__(self, secrets: Secrets = NO_SECRETS) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        context = getattr(record, "temporal_workflow", None) or getattr(record, "temporal_activity", None) or {}
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._secrets.redact(record.getMessage()),
        }
        if run := context.get("workflow_id"):
            line["run"] = run
            line["trace"] = trace_id(context.get("namespace", ""), run)
            line |= {name: value for name, value in attempt_facts().items() if name in PLACES}
        line |= self._secrets.redact_value(getattr(record, "event", None) or {})
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text = str(error) if _is_expected(error) else self.formatException(record.exc_info)
            line["error"] = self._secrets.redact(text)
        text = json.dumps(line, ensure_ascii=False)
        return text if is_utf8(text) else json.dumps(line)  # a lone surrogate would lose the whole line


def _is_expected(error: BaseException) -> bool:
    return isinstance(error, EXPECTED_ERRORS) or (isinstance(error, OSError) and error.errno in DISK_ERRNOS)


def log_to(handler: logging.Handler, secrets: Secrets, level: int = logging.INFO) -> None:
    handler.setFormatter(JsonLines(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per request is too much
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # Perdure logs a server's state itself, without session ids
    logging.getLogger("a2a").setLevel(logging.CRITICAL)  # it logs each refused call, with what the caller has sent
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # an unavailable collector is logged for each batch
    # The run is a field of each line; the SDK would append its details to the message too.
    workflow.logger.workflow_info_on_message = False
    activity.logger.activity_info_on_message = False


class _Listener(QueueListener):
    def handle(self, record: logging.LogRecord) -> None:
        try:
            super().handle(record)
        except Exception:  # noqa: BLE001 - one failed event must not stop the next ones
            _log.warning("the event %s is only in the log: a listener failed", record.getMessage(), exc_info=True)


@contextmanager
def forward_events(*handlers: logging.Handler) -> Iterator[None]:
    """Pass each structured event of the log to the handlers while the block runs, in a thread of their own."""
    events: SimpleQueue[logging.LogRecord] = SimpleQueue()
    entrance = QueueHandler(events)
    entrance.addFilter(lambda record: hasattr(record, "event"))
    listener = _Listener(events, *handlers)
    logging.getLogger().addHandler(entrance)
    listener.start()
    try:
        yield
    finally:
        logging.getLogger().removeHandler(entrance)
        listener.stop()


def quiet_core(metrics: str | None = None) -> None:
    """Send the log of Temporal's core to our log instead of standard output. Call it before the first client.

    `metrics` is the address of the Prometheus endpoint, "host:port". Raises MetricsUnavailableError if it cannot be
    opened.
    """
    forwarded = LogForwardingConfig(logger=logging.getLogger("temporalio.core"))
    logs = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarded)
    endpoint = metrics and PrometheusConfig(  # with names and units by Prometheus' convention for all metrics
        bind_address=metrics,
        counters_total_suffix=True,
        unit_suffix=True,
        durations_as_seconds=True,
        histogram_bucket_overrides=BUCKETS,
    )
    try:
        runtime = Runtime(telemetry=TelemetryConfig(logging=logs, metrics=endpoint or None, attach_service_name=False))
    except ValueError as error:
        raise MetricsUnavailableError(f"no metrics at {metrics}: {error}") from None
    Runtime.set_default(runtime)


class _StandardError(logging.Handler):
    """Writes to the command's current standard error, also in threads whose tools have another one.

    A thread of its own writes: a reader that stands still, with its pipe full, must not stop the process. So a log call
    holds no lock while it waits, which the SDK could leave locked as it interrupts a workflow. Lines beyond
    `MAX_WAITING_LINES` are left out, and counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = None  # a queue needs none
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._queued = self._written = self._left_out = 0
        threading.Thread(target=self._write_lines, name="log", daemon=True).start()
        atexit.register(self.flush)

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= MAX_WAITING_LINES:
            self._left_out += 1
            return
        try:
            self._lines.put(self.format(record))  # here: the format reads the caller's context
            self._queued += 1
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all lines are written, but not for a reader that stands still."""
        deadline = monotonic() + FLUSH_TIME
        while self._written < self._queued and monotonic() < deadline:
            sleep(0.005)

    def _write_lines(self) -> None:
        while True:
            line = self._lines.get()
            left_out, self._left_out = self._left_out, 0
            if left_out:
                line += f'\n{{"level": "warning", "message": "{left_out} lines are left out: nobody read the log"}}'
            with suppress(OSError, ValueError, AttributeError):  # full, closed or missing
                stream: TextIO = getattr(sys.stderr, "own", sys.stderr)  # of `perdure.process.streams`
                stream.write(f"{line}\n")
                stream.flush()
            self._written += 1


def log_to_stderr(secrets: Secrets) -> None:
    log_to(_StandardError(), secrets)


class _OwnFile(WatchedFileHandler):
    """A log file that only its owner may read, also after a rotation."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=open_private)


def log_to_file(path: Path, secrets: Secrets) -> None:
    """Log to a private file, which may be rotated. Raises OSError."""
    log_to(_OwnFile(path, encoding="utf-8"), secrets)
