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
        receipts = [(await _post(tools, "once/charge", "k")).json()["receipt"] for _ in range(2)]
        assert receipts == [effect.receipt for effect in tools.of("r", 1)]
    assert receipts[0] != receipts[1]


async def test_a_keyed_tool_has_one_effect_for_each_key_and_repeats_its_answer() -> None:
    with ToolServer(1, takes=0) as tools:
        receipts = [(await _post(tools, "keyed/reserve", key)).json()["receipt"] for key in ("k", "k", "l")]
        assert len(tools.effects) == 2
    assert receipts[0] == receipts[1] != receipts[2]


async def test_the_receipt_of_an_effect_is_found_and_none_without_one() -> None:
    with ToolServer(1, takes=0.05) as tools:
        assert await tools.find_receipt("r", 1) is None
        receipt = (await _post(tools, "once/charge", "k")).json()["receipt"]
        assert await tools.find_receipt("r", 1) == receipt
        assert await tools.find_receipt("r", 2) is None
