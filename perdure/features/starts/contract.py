"""Events from outside that begin work: a run, or a turn of a conversation, and its answer."""

from typing import Any, Literal

from perdure.contracts.conversation import MAX_ID_LENGTH, Headers
from perdure.contracts.models import FrozenModel, omit_default
from perdure.contracts.people import Sender
from perdure.features.follow_ups.contract import Outbound


class InboundEvent(FrozenModel):
    """A signed event. `id` identifies it, so that a repeat begins nothing; `reply_to` is the place for an answer.

    `kind` is the scheme's name of the event: `app_mention`, `issues.opened`, or the `type` of a standard webhook.
    """

    id: str
    kind: str
    body: dict[str, Any]
    user: str | None = omit_default(None)
    reply_to: Outbound | None = omit_default(None)


class InboundRequest(FrozenModel):
    """The input of the workflow `Inbound`: the event, and the name of the `[[start]]` that it is for."""

    start: str
    event: InboundEvent
    sender: Sender


class PreparedStart(FrozenModel):
    """The result of `prepare_start`. Without a `goal`, the event is not for this start any more."""

    goal: str | None = None
    agent: str | None = omit_default(None)
    conversation: str | None = omit_default(None)
    headers: Headers = omit_default(Headers())
    answers: bool = omit_default(default=False)


class StartedTurn(FrozenModel):
    """The input of the activity `submit_start`: the request of a conversation's turn."""

    conversation: str
    request: dict[str, Any]


class InboundReport(FrozenModel):
    """The result of `Inbound`: the run, its end, and the delivery of its answer."""

    run_id: str | None = None
    status: str = "ignored"
    answer: Literal["none", "sent"] = "none"


MAX_ANSWER = 4000  # characters of a message
MAX_CONVERSATION = MAX_ID_LENGTH
