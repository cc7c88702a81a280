"""A file in `.pending/` as a delivery to the mailbox, and the size of a batch of deliveries."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from activities.mailbox.folder import ClaimedFile, MailFolder, format_os_error
from activities.mailbox.inputs import InputsError, ResolvedInputs, resolve_inputs
from activities.mailbox.message import MAX_ENVELOPE, MessageError, parse_message, read_envelope
from activities.storage.safe_dir import WrongFileTypeError
from contracts.mail.mailbox import Delivery
from contracts.mail.message import TaskHead
from decisions.text.formatting import truncate

MAX_BYTES = 1024 * 1024  # of a batch. A head has at most 800 KB, if each character of its file takes 12 bytes


@dataclass(frozen=True)
class PreparedDelivery:
    """A delivery, with a note about its envelope. If `is_early`, an input may be incomplete: look again soon."""

    delivery: Delivery
    note: str = ""
    is_early: bool = False


def prepare_delivery(folder: MailFolder, claimed: ClaimedFile) -> PreparedDelivery:
    """Read a claimed file. Raises FileNotFoundError if it is gone, OSError if it can be read only later."""
    plan, file = claimed.plan, claimed.file
    if claimed.fault is not None:
        return PreparedDelivery(Delivery(file=file, plan=plan, sha256="", fault=claimed.fault))
    try:
        data = folder.read_message_file(plan, file)
    except (WrongFileTypeError, PermissionError) as error:
        return PreparedDelivery(
            Delivery(
                file=file, plan=plan, sha256="", fault=truncate(f"it cannot be read: {format_os_error(error)}", 1000)
            )
        )
    digest = sha256(data).hexdigest()
    note = _envelope_note(folder, claimed)
    try:
        head, _ = parse_message(data, plan)
    except MessageError as error:
        return PreparedDelivery(Delivery(file=file, plan=plan, sha256=digest, fault=truncate(str(error), 1000)), note)
    resolved = ResolvedInputs()
    try:
        if isinstance(head, TaskHead) and head.inputs:
            resolved = resolve_inputs(folder.below, head, folder.rests)
    except InputsError as error:
        return PreparedDelivery(
            Delivery(file=file, plan=plan, sha256=digest, head=head, fault=truncate(str(error), 1000)), note
        )
    undecided = tuple(resolved.undecided)
    delivery = Delivery(file=file, plan=plan, sha256=digest, head=head, missing=resolved.missing, undecided=undecided)
    return PreparedDelivery(delivery, note, resolved.is_early)


def _envelope_note(folder: MailFolder, claimed: ClaimedFile) -> str:
    try:
        data = folder.read_envelope_file(claimed.plan, claimed.file, MAX_ENVELOPE)
    except OSError as error:
        return f"the envelope cannot be read: {format_os_error(error)}"
    if data is None:
        return ""
    try:
        read_envelope(data)
    except MessageError as error:
        return f"the envelope is not valid: {error}"
    return "with its envelope"


def batch_size(deliveries: Sequence[Delivery]) -> int:
    """Return how many deliveries, from the first one, make a batch."""
    used = 0
    for number, delivery in enumerate(deliveries):
        used += len(json.dumps(delivery.model_dump(mode="json", by_alias=True, exclude_none=True)))
        if used > MAX_BYTES and number:
            return number
    return len(deliveries)
