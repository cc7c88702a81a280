"""The sender of a message as Perdure records it, apart from the sender's own claims (`by`, `origin`)."""

from pydantic import Field

from contracts.models import FrozenModel, StrictModel


class Sender(StrictModel):
    """The entry point of a start, request, answer, result, cancel or event. Set by Perdure; callers cannot set it.

    A Temporal client can write any body, so it proves nothing about one. The signature of an answer covers it.
    """

    door: str = Field(min_length=1, max_length=100)
    """`cli`, `gateway`, `mcp`, `python`, `webhook:NAME`, `schedule`, `mailbox`, `follow-up` or `delegation`."""
    token: str | None = Field(default=None, max_length=200, exclude_if=lambda token: token is None)
    """The name of the gateway token."""
    person: str | None = Field(default=None, max_length=200, exclude_if=lambda person: person is None)
    """The person at a terminal: `--by`, else the user of the machine. Set if the project has `[people]`."""
    groups: tuple[str, ...] = Field(default=(), max_length=100, exclude_if=lambda groups: not groups)
    """The groups of the token or person."""


CLI = Sender(door="cli")
MCP = Sender(door="mcp")
PYTHON = Sender(door="python")
SCHEDULE = Sender(door="schedule")
MAILBOX = Sender(door="mailbox")
FOLLOW_UP = Sender(door="follow-up")
DELEGATION = Sender(door="delegation")


class SentBy(FrozenModel):
    """The sender of a message. Without a `sender` it came from a Temporal client directly."""

    sender: Sender | None = None
    by: str | None = None
    """The person, self-declared."""
    identity: str = ""
    """The Temporal client, self-declared."""
