"""Named moments at which a worker process ends itself, or stands still. The product has no hooks for it: the functions
of the forked process are wrapped.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from temporalio import activity

import perdure.activities.media.store
import perdure.activities.tools.files
import perdure.workflows.agent_run.agent_run
from perdure.activities.effects.ledger import LedgerEntry
from perdure.activities.media.store import MediaFiles
from perdure.activities.model.fused_turn import FusedTurns
from perdure.activities.model.turn import Turns
from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.run.files import Inheritances, RunFiles
from perdure.activities.storage.store import LocalStore
from perdure.activities.tools.call import ToolCalls
from perdure.activities.tools.outside import HttpTool
from perdure.contracts.run.state import CloseRequest, Continuation
from perdure.contracts.run.turn import ContextFull, ModelTurn
from perdure.contracts.tool import Effect, ToolOutcome
from perdure.decisions.tools import FINISH
from perdure.features.mailbox.activities.folder import MailFolder
from perdure.features.mailbox.activities.handler import MessageHandler
from perdure.features.mailbox.activities.pages import TaskPages
from perdure.features.mailbox.activities.writer import MailWriter
from perdure.features.mailbox.bridge import Bridge


class Point(StrEnum):
    before_claim = "before claim"
    after_claim = "after claim"
    after_effect = "after effect"  # before the record
    after_record = "after record"  # before the server hears of it
    mid_stream = "mid-stream"  # of a model's answer
    open_run = "open_run"
    inherit = "inherit"
    archived = "archived"  # at a rotation, before the server hears of it
    rotation = "rotation"  # between close_segment and the continue-as-new
    last = "last activity"
    fused_reads = "reads made"  # before the model is called in the same activity
    fused_stream = "mid-stream after reads"
    fused_end = "reads made and model called"  # before the server hears of it
    media_attached = "attachments taken"  # before the server hears of it
    media_in_hand = "image in hand"  # of a tool's result, before it is stored
    media_stored = "image stored"  # before the call has its result
    media_answered = "image answered"  # before the server hears of it
    media_read = "image read"  # by read_file, before the server hears of it
    media_stream = "mid-stream after an image"
    typed_end = "typed result given"  # before the server hears of it
    mail_claimed = "mail claimed"  # by its rename, before it is judged
    mail_delivered = "mail delivered"  # judged, before it is listed
    mail_consumed = "mail consumed"  # before it is handed to its lane
    mail_submitted = "mail submitted"  # before its record says so
    mail_replied = "mail replied"  # before its end is acknowledged
    mail_acked = "mail acked"  # before its file is put away
    mail_away = "mail away"


MAIL_POINTS = tuple(point for point in Point if point.name.startswith("mail_"))
FUSED_POINTS = tuple(point for point in Point if point.name.startswith("fused_"))
MEDIA_POINTS = tuple(point for point in Point if point.name.startswith(("media_", "typed_")))
RUN_POINTS = tuple(point for point in Point if point not in (*MAIL_POINTS, *FUSED_POINTS, *MEDIA_POINTS))


@dataclass(frozen=True)
class Trap:
    """`number` is sent to the process that comes by, the first time it does: SIGKILL, or SIGSTOP for a zombie."""

    point: Point
    number: int = signal.SIGKILL


def arm(trap: Trap) -> None:
    """In the process that is to fall into it."""
    sprung: list[bool] = []

    def spring() -> None:
        if not sprung:
            sprung.append(True)
            os.kill(os.getpid(), trap.number)

    _TRAPS[trap.point](spring)


def _around_claim(*, before: bool) -> Callable[[Callable[[], None]], None]:
    def lay(spring: Callable[[], None]) -> None:
        claim = LedgerEntry.claim

        def claiming(self: LedgerEntry, *args: Any) -> Any:
            if before:
                spring()
            claimed = claim(self, *args)
            spring()
            return claimed

        patch.object(LedgerEntry, "claim", claiming).start()

    return lay


def _after_effect(spring: Callable[[], None]) -> None:
    run = HttpTool.run

    async def running(self: HttpTool, *args: Any) -> Any:
        outcome = await run(self, *args)
        if self.route.effect is Effect.once:
            spring()
        return outcome

    patch.object(HttpTool, "run", running).start()


def _after_record(spring: Callable[[], None]) -> None:
    record = LedgerEntry.record

    def recording(self: LedgerEntry, *args: Any) -> None:
        record(self, *args)
        spring()

    patch.object(LedgerEntry, "record", recording).start()


def _mid_stream(spring: Callable[[], None], within: tuple[str, ...] = ("plan", "reflect")) -> None:
    reply = MessagesModel.reply

    async def replying(self: MessagesModel, call: ModelCall) -> ModelReply:
        is_here = activity.info().activity_type in within
        return await reply(self, replace(call, on_text=lambda _: spring()) if is_here else call)

    patch.object(MessagesModel, "reply", replying).start()


def _after(
    owner: type, name: str, which: Callable[[Any], bool] = lambda _: True, gave: Callable[[Any], bool] = lambda _: True
) -> Callable[..., None]:
    """After an activity has done its work, and before the server hears of it."""

    def lay(spring: Callable[[], None]) -> None:
        activity = getattr(owner, name)

        @wraps(activity)
        async def doing(self: Any, request: Any) -> Any:
            done = await activity(self, request)
            if which(request) and gave(done):
                spring()
            return done

        patch.object(owner, name, doing).start()

    return lay


def _rotation(spring: Callable[[], None]) -> None:
    def continuing(**fields: Any) -> Continuation:
        spring()
        return Continuation(**fields)

    patch.object(perdure.workflows.agent_run.agent_run, "Continuation", continuing).start()


def _beside(owner: Any, name: str, *, before: bool) -> Callable[..., None]:
    """Before or after a function that is no activity."""

    def lay(spring: Callable[[], None]) -> None:
        does = getattr(owner, name)

        def doing(*args: Any, **named: Any) -> Any:
            if before:
                spring()
            done = does(*args, **named)
            spring()
            return done

        patch.object(owner, name, doing).start()

    return lay


def _is_last(request: CloseRequest) -> bool:
    return request.journal is not None


def _has_media(outcome: ToolOutcome) -> bool:
    return bool(outcome.media)


def _finishes(turn: ModelTurn | ContextFull) -> bool:
    return isinstance(turn, ModelTurn) and any(block.get("name") == FINISH for block in turn.content)


_TRAPS: dict[Point, Callable[[Callable[[], None]], None]] = {
    Point.before_claim: _around_claim(before=True),
    Point.after_claim: _around_claim(before=False),
    Point.after_effect: _after_effect,
    Point.after_record: _after_record,
    Point.mid_stream: _mid_stream,
    Point.open_run: _after(RunFiles, RunFiles.open_run.__name__),
    Point.inherit: _after(Inheritances, Inheritances.inherit.__name__),
    Point.archived: _after(RunFiles, RunFiles.close_segment.__name__, lambda request: not _is_last(request)),
    Point.rotation: _rotation,
    Point.last: _after(RunFiles, RunFiles.close_segment.__name__, _is_last),
    Point.fused_reads: _beside(FusedTurns, FusedTurns._ask_model.__name__, before=True),
    Point.fused_stream: partial(_mid_stream, within=(FusedTurns.read_and_reflect.__name__,)),
    Point.fused_end: _after(FusedTurns, FusedTurns.read_and_reflect.__name__),
    Point.media_attached: _after(MediaFiles, MediaFiles.take_attachments.__name__),
    Point.media_in_hand: _beside(perdure.activities.media.store, "keep_media", before=True),
    Point.media_stored: _beside(perdure.activities.media.store, "keep_media", before=False),
    Point.media_answered: _after(ToolCalls, ToolCalls.call_tool.__name__, gave=_has_media),
    Point.media_read: _beside(perdure.activities.tools.files, "keep_media", before=False),
    Point.media_stream: partial(_mid_stream, within=("reflect",)),
    Point.typed_end: _after(Turns, Turns.reflect.__name__, gave=_finishes),
    Point.mail_claimed: _beside(MailFolder, MailFolder.settle_claims.__name__, before=True),
    Point.mail_delivered: _beside(Bridge, Bridge._log_deliveries.__name__, before=True),
    Point.mail_consumed: _beside(MessageHandler, MessageHandler._write_consumed.__name__, before=False),
    Point.mail_submitted: _beside(TaskPages, TaskPages.begin_page.__name__, before=True),
    Point.mail_replied: _beside(MailWriter, MailWriter.write_reply.__name__, before=False),
    Point.mail_acked: _beside(MailWriter, MailWriter.put_away_finished.__name__, before=True),
    Point.mail_away: _beside(MailWriter, MailWriter.put_away_finished.__name__, before=False),
}


def fill_disk_while(flag: Path) -> None:
    """The run's store takes nothing while the file is there."""
    create, put = LocalStore.create, LocalStore.write

    def refuse() -> None:
        if flag.exists():
            raise OSError(28, os.strerror(28))  # ENOSPC

    def creating(self: LocalStore, name: str, data: bytes) -> None:
        refuse()
        create(self, name, data)

    def putting(self: LocalStore, name: str, data: bytes) -> None:
        refuse()
        put(self, name, data)

    patch.object(LocalStore, "create", creating).start()
    patch.object(LocalStore, "write", putting).start()
