"""A file in `.pending/` as a delivery to the mailbox, and the size of a batch of deliveries."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from activities.mailbox.folder import Claimed, MailFolder, told
from activities.mailbox.inputs import Resolved, Unusable, resolve
from activities.mailbox.message import MOST_ENVELOPE, NotAMessage, read, read_envelope
from activities.storage.safe_dir import NotThere
from contracts.mail.mailbox import Delivery
from contracts.mail.message import TaskHead
from decisions.text.formatting import cut

MOST_BYTES = 1024 * 1024  # of a batch. A head has at most 800 KB, if each character of its file takes 12 bytes


@dataclass(frozen=True)
class Looked:
    """A delivery, with a note about its envelope. If `is_early`, an input may be incomplete: look again soon."""

    delivery: Delivery
    note: str = ""
    is_early: bool = False


def look(folder: MailFolder, claimed: Claimed) -> Looked:
    """Read a claimed file. Raises FileNotFoundError if it is gone, OSError if it can be read only later."""
    plan, file = claimed.plan, claimed.file
    if claimed.fault is not None:
        return Looked(Delivery(file=file, plan=plan, sha256="", fault=claimed.fault))
    try:
        data = folder.read(plan, file)
    except (NotThere, PermissionError) as error:
        return Looked(Delivery(file=file, plan=plan, sha256="", fault=cut(f"it cannot be read: {told(error)}", 1000)))
    digest = sha256(data).hexdigest()
    note = _note(folder, claimed)
    try:
        head, _ = read(data, plan)
    except NotAMessage as error:
        return Looked(Delivery(file=file, plan=plan, sha256=digest, fault=cut(str(error), 1000)), note)
    resolved = Resolved()
    try:
        if isinstance(head, TaskHead) and head.inputs:
            resolved = resolve(folder.below, head, folder.rests)
    except Unusable as error:
        return Looked(Delivery(file=file, plan=plan, sha256=digest, head=head, fault=cut(str(error), 1000)), note)
    undecided = tuple(resolved.undecided)
    delivery = Delivery(file=file, plan=plan, sha256=digest, head=head, missing=resolved.missing, undecided=undecided)
    return Looked(delivery, note, resolved.is_early)


def _note(folder: MailFolder, claimed: Claimed) -> str:
    try:
        data = folder.envelope(claimed.plan, claimed.file, MOST_ENVELOPE)
    except OSError as error:
        return f"the envelope cannot be read: {told(error)}"
    if data is None:
        return ""
    try:
        read_envelope(data)
    except NotAMessage as error:
        return f"the envelope is not valid: {error}"
    return "with its envelope"


def at_once(deliveries: Sequence[Delivery]) -> int:
    """Return how many deliveries, from the first one, make a batch."""
    used = 0
    for number, delivery in enumerate(deliveries):
        used += len(json.dumps(delivery.model_dump(mode="json", by_alias=True, exclude_none=True)))
        if used > MOST_BYTES and number:
            return number
    return len(deliveries)
