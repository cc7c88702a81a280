"""`trace.jsonl`: a line each, whatever is in it."""

import json

import pytest

from perdure.activities.telemetry.trace import unique_keys


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_what_ends_a_line_elsewhere_costs_no_line_of_the_trace(sign: str) -> None:
    line = json.dumps({"key": "k", "error": f"a{sign}b"}, ensure_ascii=False)
    assert unique_keys(f"{line}\n{line}\n") == {"k": {"key": "k", "error": f"a{sign}b"}}
