"""A reply of the model, before history has it."""

import pytest
from pydantic_core import to_json

from perdure.activities.providers.port import ModelReply
from perdure.activities.providers.replies.reply import MAX_REPLY_BYTES, fit_to_history
from perdure.contracts.run.turn import Usage


@pytest.mark.parametrize(("sign", "least"), [("\x1b", 0.4), ("x", 0.4), ("漢", 0.4), ('"', 0.1)])
def test_a_reply_that_is_too_long_is_cut_to_what_history_takes(sign: str, least: float) -> None:
    long = {"type": "text", "text": sign * 1_200_000}
    cut = fit_to_history(ModelReply([long, {"type": "text", "text": "and more"}], "end_turn", "m", Usage(), ()))
    assert least * MAX_REPLY_BYTES < len(to_json(cut.content)) <= MAX_REPLY_BYTES
    assert cut.stop_reason == "max_tokens"
