"""The pauses as a worker knows them: it follows their history by a long poll while it makes calls.

Known pauses go on holding while the server cannot be asked. An idle worker asks nothing.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.effects.holding import Guard, HeldError
from perdure.activities.temporal import own_workflow_id
from perdure.features.pauses.client import find_execution, follow_history
from perdure.features.pauses.contract import Pause
from perdure.features.pauses.rules import RunTraits, find_pause, needs_traits, pause_reason
from perdure.features.pauses.traits import find_traits

CHECK_EVERY = 0.5  # seconds between checks for a first pause
IDLE = 60.0  # seconds without a call after which a worker stops following
RETRY_PAUSE = 0.2  # seconds, while the server is away
UNREADABLE_PAUSE = 5.0  # seconds, while the history cannot be decrypted
MAX_KNOWN_RUNS = 2000

_log = logging.getLogger(__name__)


def open_guard(client: Client, task_queue: str) -> Guard:
    """Return the guard of a worker, which follows the pauses from its first call on."""
    return _Follower(client, task_queue).must_not_be_paused


class _Follower:
    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue
        self._pauses: Sequence[Pause] = ()
        self._known = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._used_at = 0.0
        self._traits: OrderedDict[str, RunTraits] = OrderedDict()  # by Temporal run id

    async def must_not_be_paused(self) -> None:
        """Raise HeldError if a pause holds the current activity's run."""
        self._keep_following()
        await self._known.wait()
        if not self._pauses:
            return
        traits = await self._traits_of_caller() if needs_traits(self._pauses) else RunTraits()
        if (pause := find_pause(self._pauses, traits)) is not None:
            raise HeldError(pause.name, pause_reason(pause))

    def _keep_following(self) -> None:
        loop = asyncio.get_running_loop()
        self._used_at = loop.time()
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
            loop.call_later(IDLE, self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._used_at + IDLE - loop.time()
        if left > 0 or not self._known.is_set():  # else calls wait for it
            loop.call_later(max(left, 1.0), self._stop_if_idle)
        elif self._following is not None:
            self._following.cancel()
            self._following = None
            self._known.clear()

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_once()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:  # else it has just ended
                    _log.debug("the pauses cannot be read now: %s", error.message)
                await asyncio.sleep(RETRY_PAUSE)
            except Exception as error:  # noqa: BLE001 - to go on without it would be to miss a pause
                _log.warning("the pauses cannot be read, so calls wait or use what is known: %s", error)
                await asyncio.sleep(UNREADABLE_PAUSE)

    async def _follow_once(self) -> None:
        """Read the pauses, and follow them until they end. Raises RPCError."""
        execution = await find_execution(self._client, self._task_queue)
        if execution is None:
            self._learn(())
            await asyncio.sleep(CHECK_EVERY)
            return
        async for state in follow_history(self._client, self._task_queue, execution):
            self._learn(state.pauses)

    def _learn(self, pauses: Sequence[Pause]) -> None:
        self._pauses = pauses
        self._known.set()

    async def _traits_of_caller(self) -> RunTraits:
        execution = activity.info().workflow_run_id or ""
        if (known := self._traits.get(execution)) is None:
            known = self._traits[execution] = await find_traits(self._client, own_workflow_id(), execution)
            while len(self._traits) > MAX_KNOWN_RUNS:
                self._traits.popitem(last=False)
        return known
