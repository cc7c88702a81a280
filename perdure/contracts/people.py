"""People around a run: the notices they get, the work that they begin, and who sent a message."""

from enum import StrEnum

from pydantic import Field

from perdure.contracts.models import Duration, FrozenModel, StrictModel, omit_default


class NoticeKind(StrEnum):
    waiting = "waiting"  # a question is open
    waiting_long = "waiting_long"  # it is still open after `patience`
    expired = "expired"  # an approval has expired without an answer
    ended = "ended"  # the run is completed, escalated or cancelled
    budget = "budget"  # it escalated as its tokens or money are used up
    failed = "failed"  # it failed, or its time is used up
    wedged = "wedged"  # its workflow tasks fail


class NoticeRoute(FrozenModel):
    """A channel's part in an agent's notices, as a run keeps it. `patience` is for `waiting_long`."""

    channel: str
    on: tuple[NoticeKind, ...]
    patience: Duration | None = omit_default(None)


UNKNOWN = "unknown"  # the requester of a run that a Temporal client started


class Account(FrozenModel):
    """The account of a run, for budgets and the logins of requesters.

    Subtasks, follow-ups and mails have that of the first run.
    """

    requester: str = ""
    """The token or person that started the first run, or forked it; `unknown` if a Temporal client did."""
    owner: str = ""
    """The requester of the conversation's first request; of a run by itself, its own."""
    schedule: str = omit_default("")
    """The name of the schedule that started it."""
    key: str = omit_default("")
    """The `budget_key` of the start."""


class Work(FrozenModel):
    """The work of one request. Set by Perdure, if a policy is about it, or if the project has budgets."""

    root: str = omit_default("")
    """The first run of the request: calls are counted over all runs with the same root."""
    has_read: tuple[str, ...] = omit_default(())
    """The sources of the text that a run begins with."""
    requesters: tuple[str, ...] = omit_default(())
    """The people whose request it is."""
    account: Account | None = omit_default(None)
    """The account of the work, if the project has budgets or logins of requesters."""

    def with_sources(self, sources: tuple[str, ...]) -> "Work":
        """Return the work of a run that begins with text of these sources, too."""
        return self.evolve(has_read=tuple(dict.fromkeys((*self.has_read, *sources))))


class Sender(StrictModel):
    """The entry point of a start, request, answer, result, cancel or event. Set by Perdure; callers cannot set it.

    A Temporal client can write any body, so it proves nothing about one. The signature of an answer covers it.
    """

    door: str = Field(min_length=1, max_length=100)
    """`cli`, `gateway`, `mcp`, `python`, `webhook:NAME`, `schedule`, `mailbox`, `follow-up` or `delegation`."""
    token: str | None = Field(default=None, max_length=200, exclude_if=lambda token: token is None)
    """The name of the gateway token."""
    person: str | None = Field(default=None, max_length=200, exclude_if=lambda person: person is None)
    """The person at a terminal: `--by`, else the user of the machine. Set if the project has `[people]`. At the gateway
    it is the person whom a trusted proxy names."""
    groups: tuple[str, ...] = Field(default=(), max_length=100, exclude_if=lambda groups: not groups)
    """The groups of the token or person."""


CLI = Sender.model_construct(door="cli")
MCP = Sender.model_construct(door="mcp")
PYTHON = Sender.model_construct(door="python")
SCHEDULE = Sender.model_construct(door="schedule")
MAILBOX = Sender.model_construct(door="mailbox")
FOLLOW_UP = Sender.model_construct(door="follow-up")
DELEGATION = Sender.model_construct(door="delegation")


class SentBy(FrozenModel):
    """The sender of a message. Without a `sender` it came from a Temporal client directly."""

    sender: Sender | None = None
    by: str | None = None
    """The person, self-declared."""
    identity: str = ""
    """The Temporal client, self-declared."""
