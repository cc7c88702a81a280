"""Logs: one JSON object a line, with the run they belong to."""

import json
import logging
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """`{"at", "level", "logger", "message", "run"?}`; a traceback goes into `error`."""

    def format(self, record: logging.LogRecord) -> str:
        context = getattr(record, "temporal_workflow", None) or getattr(record, "temporal_activity", None) or {}
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if run := context.get("workflow_id"):
            line["run"] = run
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_to(handler: logging.Handler, level: int = logging.INFO) -> None:
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request says nothing new
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def log_to_stderr() -> None:
    log_to(logging.StreamHandler(sys.stderr))
