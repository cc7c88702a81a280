"""Errors in an exception group, as a task group raises them, are judged as they would be alone."""

import pytest

from activities.tools.interface import TransientToolError
from activities.tools.python import _to_failure
from tests.activities.calls import error_of


@pytest.mark.parametrize("depth", [1, 2])
def test_a_group_of_passing_errors_may_pass(depth: int) -> None:
    error: Exception = ConnectionError("refused")
    for _ in range(depth):
        error = ExceptionGroup("tasks", [error])
    with pytest.raises(TransientToolError):
        _to_failure(error)


def test_one_error_that_stays_makes_the_group_stay() -> None:
    error = error_of(_to_failure(ExceptionGroup("tasks", [ConnectionError("refused"), ValueError("no such order")])))
    assert error.kind == "tool_error"
