"""The interface through which runs and calls take places that are limited over all workers."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from perdure.contracts.agent import Agent
from perdure.contracts.people import Account


class LimitedPlaces(Protocol):
    """The places of a worker. Who gets none is held until it is its turn."""

    async def enter_run(self, agent: Agent, account: Account | None) -> str:
        """Take a place for the run that begins, and return its key; "" if the agent has no limit. Raises HeldError."""

    def place_for_call(self, tool: str, step: int) -> AbstractAsyncContextManager[None]:
        """Have a place for a call of the tool inside the block. Raises HeldError."""
