"""What a log line holds."""

import json
import logging

import pytest
from temporalio.exceptions import ApplicationError

from telemetry import JsonLines


def line_of(error: Exception) -> dict[str, str]:
    about = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.WARNING, __file__, 1, "it failed", None, about)
    line: dict[str, str] = json.loads(JsonLines().format(record))
    return line


def test_a_failure_of_a_named_kind_is_told_without_a_traceback() -> None:
    assert line_of(ApplicationError("charge may have happened", type="InDoubt"))["error"] == (
        "InDoubt: charge may have happened"
    )


def test_a_bug_is_told_with_its_traceback() -> None:
    with pytest.raises(ValueError) as bug:
        json.loads("{")
    assert "Traceback" in line_of(bug.value)["error"]
