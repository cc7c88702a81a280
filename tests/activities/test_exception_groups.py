"""Errors in an exception group, as a task group raises them, are judged as they would be alone."""

import pytest

from activities.tools.interface import TransientFailure
from activities.tools.python import _judged


@pytest.mark.parametrize("depth", [1, 2])
def test_a_group_of_passing_errors_may_pass(depth: int) -> None:
    error: Exception = ConnectionError("refused")
    for _ in range(depth):
        error = ExceptionGroup("tasks", [error])
    with pytest.raises(TransientFailure):
        _judged(error)


def test_one_error_that_stays_makes_the_group_stay() -> None:
    outcome = _judged(ExceptionGroup("tasks", [ConnectionError("refused"), ValueError("no such order")]))
    assert outcome.error is not None
    assert outcome.error.kind == "tool_error"
