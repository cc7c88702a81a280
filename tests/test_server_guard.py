"""A workflow's first task waits for a server that restarts, and is given back in words if none answers in time."""

import asyncio

import pytest

from perdure.client import guard as module
from perdure.client.errors import TemporalUnavailableError
from perdure.client.guard import OtherServerError, ServerGuard


class Restarting(ServerGuard):
    """Its server refuses connections for a while."""

    def __init__(self, refusals: int, error: type[TemporalUnavailableError] = TemporalUnavailableError) -> None:
        self.target = "127.0.0.1:7233"
        self.refusals, self.error, self.checks = refusals, error, 0
        self._is_off, self._line, self._loop = False, None, asyncio.get_running_loop()

    async def check(self) -> None:
        self.checks += 1
        if self.checks <= self.refusals:
            raise self.error(f"no Temporal server answers at {self.target}: refused")


async def test_a_task_waits_while_its_server_restarts() -> None:
    guard = Restarting(refusals=3)
    await asyncio.to_thread(guard.confirm)
    assert guard.checks == 4


async def test_a_task_is_given_back_if_no_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONFIRM_TIMEOUT", 0.3)
    with pytest.raises(TemporalUnavailableError, match=r"no Temporal server answers at 127\.0\.0\.1:7233"):
        await asyncio.to_thread(Restarting(refusals=1000).confirm)


async def test_another_server_is_refused_at_once() -> None:
    guard = Restarting(refusals=1, error=OtherServerError)
    with pytest.raises(OtherServerError):
        await asyncio.to_thread(guard.confirm)
    assert guard.checks == 1
