"""Notices to people about runs: that a question waits, that a run has ended."""

from datetime import datetime
from enum import StrEnum

from contracts.duration import Duration
from contracts.models import FrozenModel, omit_default


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


class Notice(FrozenModel):
    """One event of a run, as short as a card. `asked_at`, `group` and `options` are those of the question."""

    kind: NoticeKind
    run_id: str
    agent: str
    conversation_id: str | None = omit_default(None)
    title: str
    text: str
    question_id: str | None = omit_default(None)
    group: int = omit_default(0)
    options: tuple[str, ...] = omit_default(())
    asked_at: datetime | None = omit_default(None)


class NoticeRequest(FrozenModel):
    """The input of the workflow `Notify`: the notice, and the routes that it concerns.

    `id` is set by the reconciler: the id under which the run would have announced the event itself.
    """

    notice: Notice
    routes: tuple[NoticeRoute, ...]
    id: str = omit_default("")


class NoticeDelivery(FrozenModel):
    """The input of the activity `send_notice`. `id` is the same on every attempt."""

    id: str
    channel: str
    notice: Notice


class OpenQuestion(FrozenModel):
    """The input of the activity `is_question_open`."""

    run_id: str
    question_id: str


class NoticeReport(FrozenModel):
    """The result of `Notify`: the channels that have the notice."""

    delivered: tuple[str, ...]
