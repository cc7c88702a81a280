"""Notices to people about runs: that a question waits, that a run has ended."""

from datetime import datetime

from perdure.contracts.models import FrozenModel, omit_default
from perdure.contracts.people import NoticeKind, NoticeRoute


class Notice(FrozenModel):
    """One event of a run, as short as a card. `asked_at`, `group`, `revision`, `call` and `options` are the question's.

    `is_cut` if the text is not the whole question. It has no options then: people decide on what they have seen whole.
    """

    kind: NoticeKind
    run_id: str
    agent: str
    conversation_id: str | None = omit_default(None)
    title: str
    text: str
    question_id: str | None = omit_default(None)
    group: int = omit_default(0)
    revision: int = omit_default(0)
    call: str | None = omit_default(None)
    is_cut: bool = omit_default(default=False)
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
    """The input of the activity `is_question_open`: a question, as `Notice` has it."""

    run_id: str
    question_id: str
    group: int = omit_default(0)
    call: str | None = omit_default(None)


class NoticeReport(FrozenModel):
    """The result of `Notify`: the channels that have the notice."""

    delivered: tuple[str, ...]
