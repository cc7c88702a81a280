"""What Perdure itself records of who sent something, apart from what the sender claims (`by`, `origin`)."""

from pydantic import Field

from contracts.models import Edge, Value


class Sender(Edge):
    """Where a start, request, answer, result, cancel or event came in. Perdure's doors write it; callers cannot.

    A client of Temporal itself can write anything into a body, so it proves nothing there. Of an answer that is
    signed, the signature covers it.
    """

    door: str = Field(min_length=1, max_length=100)
    """`cli`, `gateway`, `mcp`, `webhook:NAME`, `schedule`, `mailbox`, `follow-up` or `delegation`."""
    token: str | None = Field(default=None, max_length=200, exclude_if=lambda token: token is None)
    """The name of the gateway's token."""


CLI = Sender(door="cli")
MCP = Sender(door="mcp")
SCHEDULE = Sender(door="schedule")
MAILBOX = Sender(door="mailbox")
FOLLOW_UP = Sender(door="follow-up")
DELEGATION = Sender(door="delegation")


class SentBy(Value):
    """Who sent something. Without a `sender` it was a client of Temporal itself, which no door knows."""

    sender: Sender | None = None
    by: str | None = None
    """As they call themselves."""
    identity: str = ""
    """The name of the Temporal client, as it calls itself."""
