"""Logs: one JSON object a line, with the run they belong to."""

import json
import logging
import sys
from datetime import UTC, datetime

from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from activities.secrets import NO_SECRETS, Secrets


class JsonLines(logging.Formatter):
    """`{"at", "level", "logger", "message", "run"?}`; an event adds its figures, a traceback goes into `error`."""

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
        line |= getattr(record, "event", None) or {}
        if record.exc_info:
            line["error"] = self._secrets.redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def log_to(handler: logging.Handler, secrets: Secrets, level: int = logging.INFO) -> None:
    handler.setFormatter(JsonLines(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request says nothing new
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def quiet_core() -> None:
    """Before the first client: what Temporal's core has to say goes into our log. It would print to standard output."""
    forwarded = LogForwardingConfig(logger=logging.getLogger("temporalio.core"))
    logs = LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarded)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=logs)))


def log_to_stderr(secrets: Secrets) -> None:
    log_to(logging.StreamHandler(sys.stderr), secrets)
