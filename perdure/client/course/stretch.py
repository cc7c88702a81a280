"""A run followed to its end, or to its next question: what a reply over HTTP holds.

First it reads what is in history, so that no wait ends it that is long over; then the rest as it comes.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client

from perdure.client.course.moves import Move
from perdure.client.course.walk import Walk
from perdure.client.run_events import WaitStarted
from perdure.client.runs import query_run_state, wait_for_run_end
from perdure.client.watch import EventPosition, Watch


@dataclass
class Stretch:
    """The course of one run from its beginning. Raises RunNotFoundError, TemporalUnavailableError, RPCError."""

    client: Client
    run_id: str
    workspaces: Path | None = None  # as of a `Watch`
    _walk: Walk = field(default_factory=Walk)
    _last: EventPosition | None = None  # that was read

    async def so_far(self) -> AsyncGenerator[Move]:
        """Yield the moves until now, without an end if the run goes on."""
        async with aclosing(self._past()) as moves:
            async for move in moves:
                yield move
        for move in await self._close():
            yield move

    async def follow(self, *, past: bool = True) -> AsyncGenerator[Move]:
        """Yield the moves up to the end, or to a pause; without the `past`, those from now on.

        Without a worker that tells what is asked, it ends before either: then read it again, later.
        """
        async with aclosing(self._past()) as moves:
            async for move in moves:
                if past:
                    yield move
        async with aclosing(self._rest()) as moves:
            async for move in moves:
                yield move

    async def split(self) -> tuple[list[Move], AsyncGenerator[Move]]:
        """Return the moves until now, and those that follow them as by `follow`, once they are awaited."""
        return [move async for move in self._past()], self._rest()

    async def _rest(self) -> AsyncGenerator[Move]:
        closing = await self._close()
        for move in closing:
            yield move
        if closing or self._walk.is_asking:
            return
        watch = Watch(self.client, self.run_id, after=self._last, workspaces=self.workspaces)
        async with aclosing(watch.positioned_events()) as entries:
            async for _, event in entries:
                for move in self._walk.read(event):
                    yield move
                if isinstance(event, WaitStarted) and event.is_for_person:
                    for move in self._walk.pause() if self._walk.asked else ():
                        yield move
                    return
        for move in await self._close():
            yield move

    async def _past(self) -> AsyncGenerator[Move]:
        async with aclosing(Watch(self.client, self.run_id, follow=False).positioned_events()) as entries:
            async for position, event in entries:
                self._last = position or self._last
                for move in self._walk.read(event):
                    yield move

    async def _close(self) -> list[Move]:
        """Return the last moves, if the run has ended or waits for people. History has no votes: a worker has."""
        if self._walk.has_ended:
            return self._walk.end(await wait_for_run_end(self.client, self.run_id))
        if not self._walk.is_asking:
            return []
        view = await query_run_state(self.client, self.run_id)
        if view is not None and not view.questions:
            self._walk.is_asking = False
            return []
        return [*self._walk.ask(view.questions), *self._walk.pause()] if view else []
