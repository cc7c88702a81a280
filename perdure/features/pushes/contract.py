"""A push: the address that gets the states of one run, and the states."""

from datetime import datetime

from perdure.contracts.models import FrozenModel, omit_default


class PushTarget(FrozenModel):
    """An address, and what it wants to see: a token of its own, and credentials as `Authorization`.

    It is in the history of its workflow, as other values are: encrypted if payloads are.
    """

    id: str
    url: str
    token: str = omit_default("")
    scheme: str = omit_default("")
    credentials: str = omit_default("")


class PushStart(FrozenModel):
    """The input of the workflow `Push`. `seen` is the key of the state that was sent last, `sent` the number so far."""

    run_id: str
    context: str
    target: PushTarget
    seen: str = omit_default("")
    sent: int = omit_default(0)


class StateRequest(FrozenModel):
    """The input of the activity `await_state`: the run, and the key of the state that is known."""

    run_id: str
    seen: str


class SeenState(FrozenModel):
    """The result of `await_state`. Another question is another `key` of the same state."""

    key: str
    state: str
    at: datetime
    is_last: bool = omit_default(default=False)


class StateDelivery(FrozenModel):
    """The input of the activity `send_state`. `id` is the same on every attempt."""

    id: str
    run_id: str
    context: str
    state: str
    at: datetime
    target: PushTarget


class PushReport(FrozenModel):
    """The result of `Push`: the number of states that were taken."""

    sent: int
