"""The sender of a message, as one value and in one line: what is known of it, and what it claims."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from contracts.sender import Sender, SentBy


def sent_by(body: Any, identity: str) -> SentBy:
    """Return the sender of a body from history, which may be any value."""
    if not isinstance(body, Mapping):
        return SentBy(identity=identity)
    by = body.get("by")
    try:
        sender = Sender.model_validate(body.get("sender"))
    except ValidationError:
        sender = None
    return SentBy(sender=sender, by=by if isinstance(by, str) else None, identity=identity)


def format_sent_by(sent: SentBy) -> str:
    """Format as "ann (gateway)", or "cli, as ann": what is known first, what is claimed after it."""
    door = sent.sender.door if sent.sender else "temporal"
    token = sent.sender.token if sent.sender else None
    known = f"{token} ({door})" if token else door
    client = f", client {sent.identity}" if sent.identity and not token else ""
    claim = f", as {sent.by}" if sent.by and sent.by != token else ""
    return f"{known}{client}{claim}"
