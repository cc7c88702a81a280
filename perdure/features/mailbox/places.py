"""The mailboxes of a project: the folders that bridges have served from this `PERDURE_HOME`, and what is in them."""

import json
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from perdure.activities.storage.workspace import SafeDir
from perdure.contracts.models import FrozenModel, StrictModel
from perdure.features.mailbox.activities.folder import STATE, MailFolder
from perdure.features.mailbox.rules.poll_mode import PollMode

PLACES = "mailboxes"  # a folder of `PERDURE_HOME`
FILES_COUNTED = 1000
MAX_STATE = 64 * 1024  # bytes


class MailboxPlace(StrictModel):
    """A folder that a bridge has served."""

    agent: str
    folder: str
    outside: bool = False


class MailboxRecord(FrozenModel):
    """A mailbox. What its folder says is null if `available` is false: the folder is gone, or not on this machine.

    `mode`, `open`, `heartbeat_at` and `trouble` are of the bridge's latest cycle.
    """

    id: str
    agent: str
    name: str  # of its folder
    external: bool  # its agent lives outside
    available: bool
    waiting: int | None = None  # files that no bridge has claimed; 1,000 if there are more
    dead_letters: int | None = None  # 1,000 if there are more
    open: int | None = None  # messages in hand
    mode: PollMode | None = None
    heartbeat_at: datetime | None = None  # a bridge that runs has one each few seconds, a dormant one more rarely
    trouble: str = ""  # the error that blocks its work, if one does


class MailboxList(FrozenModel):
    """The mailboxes by the names of their agents. `is_partial`: there are more."""

    mailboxes: tuple[MailboxRecord, ...]
    is_partial: bool


def note_mailbox(home: Path, folder: MailFolder) -> None:
    """Note the folder of a bridge, for lists. Raises OSError."""
    place = MailboxPlace(agent=folder.agent, folder=str(folder.root.absolute()), outside=folder.outside)
    SafeDir(home).write(place.model_dump_json().encode() + b"\n", PLACES, f"{folder.id}.json")


def list_mailboxes(home: Path, limit: int) -> MailboxList:
    """Return up to `limit` mailboxes that were noted. Raises OSError."""
    places = dict[str, MailboxPlace]()
    for name in SafeDir(home).names(PLACES):
        with suppress(OSError, ValidationError):  # it is none of ours
            places[name.removesuffix(".json")] = MailboxPlace.model_validate_json(
                SafeDir(home).read(PLACES, name, most=MAX_STATE)
            )
    ordered = sorted(places.items(), key=lambda item: (item[1].agent, item[1].folder))
    records = tuple(_read_mailbox(mailbox_id, place) for mailbox_id, place in ordered[:limit])
    return MailboxList(mailboxes=records, is_partial=len(ordered) > limit)


def _read_mailbox(mailbox_id: str, place: MailboxPlace) -> MailboxRecord:
    folder = MailFolder(Path(place.folder), place.agent, place.outside, mailbox_id)
    known = MailboxRecord(
        id=mailbox_id, agent=place.agent, name=folder.root.name, external=place.outside, available=False
    )
    try:
        waiting = sum(1 for _ in islice(folder.unclaimed_files(), FILES_COUNTED))
        dead = sum(1 for _ in islice(folder.dead_letters(), FILES_COUNTED))
    except OSError:
        return known
    known = known.evolve(available=True, waiting=waiting, dead_letters=dead)
    with suppress(OSError, ValueError, TypeError):  # no bridge has written it yet
        state = json.loads(folder.below.read(STATE, most=MAX_STATE))
        return MailboxRecord.model_validate(
            {**dict(known), **{name: state[name] for name in ("open", "mode", "heartbeat_at", "trouble")}}
        )
    return known
