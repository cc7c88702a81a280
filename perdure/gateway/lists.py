"""Lists: reads that the requests of a few seconds share, their pace (a namespace allows 30 a second), and cursors."""

import asyncio
import base64
import binascii
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from fastapi import Query

from perdure.activities.temporal import VisibilityPace
from perdure.client.errors import RejectedError
from perdure.contracts.conversation import MAX_ID_LENGTH
from perdure.contracts.models import Duration
from perdure.contracts.run.state import RunStatus
from perdure.gateway.problems import RETRY_SOON, ApiError

SHARED_SECONDS = 2.0  # a page looks every 8 s, and promises a new question within 10 s
MAX_LIST_DELAY = 3.0  # seconds that a request waits for the turn of its list

T = TypeVar("T")


class SharedReads:
    def __init__(self) -> None:
        self._reads: dict[Hashable, asyncio.Task[Any]] = {}
        self._pace = VisibilityPace()

    async def read(self, key: Hashable, start: Callable[[], Coroutine[Any, Any, T]], lists: int = 1) -> T:
        """Return the result of a read that runs or just ended, else of `start`. Raises its error, or ApiError 503.

        `lists` is the number of Temporal's lists that the read makes.
        """
        task: asyncio.Task[T] | None = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.create_task(_start_after(self._reserve(lists), start))
            task.add_done_callback(lambda done: self._expire_later(key, done))
        return await asyncio.shield(task)  # other requests wait for it, too

    def _reserve(self, lists: int) -> float:
        try:
            return self._pace.reserve(MAX_LIST_DELAY, lists)
        except TimeoutError:
            raise ApiError(503, "too many different lists are requested; retry", headers=RETRY_SOON) from None

    def clear(self) -> None:
        """Share none of the reads that have begun: something has changed."""
        self._reads.clear()

    def _expire_later(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        if not done.cancelled():
            done.exception()  # retrieved, if every request has been cancelled
        asyncio.get_running_loop().call_later(SHARED_SECONDS, self._expire, key, done)

    def _expire(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        if self._reads.get(key) is done:
            del self._reads[key]


async def _start_after(seconds: float, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    await asyncio.sleep(seconds)
    return await start()


Agent = Annotated[str | None, Query(min_length=1, max_length=200, description="The agent of the run.")]
Status = Annotated[RunStatus | None, Query(description="The status, as `AgentStatus`.")]
Since = Annotated[Duration | None, Query(description="Started within this time, such as `24h`.")]
Conversation = Annotated[
    str | None, Query(min_length=1, max_length=MAX_ID_LENGTH, description="The conversation of the run.")
]
Cursor = Annotated[str | None, Query(max_length=4000, description="The `cursor` of the page before.")]


def decode_cursor(cursor: str | None) -> bytes | None:
    """Raises ApiError 422."""
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True) if cursor else None
    except (binascii.Error, ValueError):
        raise ApiError(422, "invalid cursor", field="cursor") from None


def encode_cursor(cursor: bytes | None) -> str | None:
    return base64.urlsafe_b64encode(cursor).decode() if cursor else None


@contextmanager
def naming_cursor() -> Iterator[None]:
    """Raise ApiError 422 for a cursor that the list in the block rejects."""
    try:
        yield
    except RejectedError as error:
        raise ApiError(422, str(error), field="cursor") from None
