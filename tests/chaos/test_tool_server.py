"""The count that the whole suite relies on."""

from typing import Any

import httpx

from tests.chaos.tool_server import ToolServer


async def _post(tools: ToolServer, path: str, key: str, **asked: Any) -> httpx.Response:
    body = {"payload": {"run_id": "r", "step": 1, "tool_payload": asked}}
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(f"{tools.base_url}/{path}", json=body, headers={"idempotency-key": key})


async def test_every_request_of_a_once_tool_is_an_effect() -> None:
    with ToolServer(1, takes=0) as tools:
        told = [(await _post(tools, "once/charge", "k")).json()["receipt"] for _ in range(2)]
        assert told == [deed.receipt for deed in tools.of("r", 1)]
    assert told[0] != told[1]


async def test_a_keyed_tool_has_one_effect_for_each_key_and_repeats_its_answer() -> None:
    with ToolServer(1, takes=0) as tools:
        told = [(await _post(tools, "keyed/reserve", key)).json()["receipt"] for key in ("k", "k", "l")]
        assert len(tools.deeds) == 2
    assert told[0] == told[1] != told[2]


async def test_the_truth_is_the_receipt_of_what_happened_and_nothing_where_nothing_did() -> None:
    with ToolServer(1, takes=0.05) as tools:
        assert await tools.truth("r", 1) is None
        told = (await _post(tools, "once/charge", "k")).json()["receipt"]
        assert await tools.truth("r", 1) == told
        assert await tools.truth("r", 2) is None
