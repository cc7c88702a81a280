"""Errors in an exception group, as a task group raises them, are judged as they would be alone."""

import pytest

from perdure.activities.effects.ledger import as_final_outcome
from perdure.activities.tools.interface import TransientToolError
from perdure.activities.tools.python import _to_failure
from perdure.contracts.tool import ToolOutcome
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
    assert (
        error.message == "ExceptionGroup: tasks (2 sub-exceptions): ConnectionError: refused; ValueError: no such order"
    )


def test_a_group_names_a_few_of_its_causes() -> None:
    inner = ExceptionGroup("below", [ValueError(str(number)) for number in range(4)])
    error = error_of(_to_failure(ExceptionGroup("tasks", [inner, KeyError("k")])))
    assert (
        error.message
        == "ExceptionGroup: tasks (2 sub-exceptions): ValueError: 0; ValueError: 1; ValueError: 2; and 2 more"
    )


async def test_a_call_with_an_effect_that_fails_in_a_group_names_the_cause() -> None:
    async def fails() -> ToolOutcome:
        raise ExceptionGroup("tasks", [ValueError("no such order")])

    error = error_of(await as_final_outcome(fails()))
    assert "ValueError: no such order (it may have happened)" in error.message
