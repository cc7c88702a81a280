"""An error that is too long for a model."""

import pytest

from perdure.activities.tools.outcome import cut_error
from perdure.contracts.tool import MAX_ERROR


@pytest.mark.parametrize("length", [MAX_ERROR + 1, 5_000_000])
def test_a_long_error_says_how_much_of_it_is_missing(length: int) -> None:
    error = cut_error("x" * length)
    shown = error.count("x", 0, error.index("\n"))
    assert len(error) <= MAX_ERROR
    assert error.endswith(f"… (cut: {length - shown:,} more characters)")


def test_an_error_that_fits_is_whole() -> None:
    assert cut_error("x" * MAX_ERROR) == "x" * MAX_ERROR
