"""The lists that requests share, at the rate that a namespace of Temporal allows."""

import asyncio

import pytest

import perdure.gateway.lists
from perdure.activities.temporal import FREE_VISIBILITY_CALLS, VISIBILITY_RATE
from perdure.gateway.lists import SharedReads
from perdure.gateway.problems import ApiError


async def test_a_flood_of_different_lists_is_bounded_and_a_shared_list_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perdure.gateway.lists, "MAX_LIST_DELAY", 0.5)
    reads, started = SharedReads(), 0

    async def start() -> str:
        nonlocal started
        started += 1
        return "a list"

    flood = [reads.read(number, start) for number in range(100)]
    answers = await asyncio.gather(*flood, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, ApiError)]
    assert started == answers.count("a list") == 100 - len(refused)
    assert FREE_VISIBILITY_CALLS <= started <= FREE_VISIBILITY_CALLS + VISIBILITY_RATE
    assert {(error.status_code, error.headers and error.headers["Retry-After"]) for error in refused} == {(503, "2")}
    assert await reads.read(0, start) == "a list"  # read just now
    assert started == answers.count("a list")
