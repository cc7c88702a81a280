"""What a lane takes and answers: requests, one run at a time (B8)."""

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import to_json

from contracts.limits import limits_in
from contracts.value import Edge, Value

MAX_ID_LENGTH = 200  # characters
MOST_TEXT = 200_000  # characters of a request's messages together
MOST_EXTRAS = 64 * 1024  # bytes of `context` and `raw` together


class WhenBusy(StrEnum):
    """What becomes of a request that finds its lane at work."""

    queue = "queue"  # it waits its turn
    reject = "reject"  # it is refused
    steer = "steer"  # it joins the running turn, at its next model call
    interrupt = "interrupt"  # the running turn is cancelled, and it comes next


class Message(Edge):
    """A `system` message goes beside the system prompt for this turn, a `user` message into the conversation."""

    role: Literal["system", "user"]
    content: str = Field(min_length=1, max_length=MOST_TEXT)


class Headers(Edge):
    """By what a request is known, as the source's envelopes carry it (E9)."""

    request_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    session_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    request_client: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    user_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)


class SubmitRequest(Edge):
    """The body of the update `submit` and of the signal `request`: either a `goal` or `messages`.

    `question_id` says that it answers that question of the running turn; where it does not, it queues. `origin` is
    the request that led to this one; `raw` is kept with the run, and read by nobody here.
    """

    request_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    goal: str | None = Field(default=None, min_length=1, max_length=MOST_TEXT)
    messages: tuple[Message, ...] = Field(default=(), max_length=100)
    agent: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    context: dict[str, Any] = Field(default_factory=dict)
    origin: Headers | None = None
    when_busy: WhenBusy = WhenBusy.queue
    question_id: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    request_client: str | None = Field(default=None, min_length=1, max_length=MAX_ID_LENGTH)
    raw: dict[str, Any] | None = None

    @field_validator("context")
    @classmethod
    def _limits_are_usable(cls, context: dict[str, Any]) -> dict[str, Any]:
        limits_in(context)
        return context

    @model_validator(mode="after")
    def _says_something_once(self) -> Self:
        if (self.goal is None) == (not self.messages):
            raise ValueError('give either "goal" or "messages"')
        if not self.text.strip():
            raise ValueError("it says nothing: a goal or a user message is needed")
        if sum(len(message.content) for message in self.messages) > MOST_TEXT:
            raise ValueError(f"the messages together may have {MOST_TEXT:,} characters")
        if len(to_json([self.context, self.raw])) > MOST_EXTRAS:
            raise ValueError(f"context and raw together may have {MOST_EXTRAS:,} bytes")
        return self

    @property
    def text(self) -> str:
        """What is said in the conversation."""
        return self.goal or "\n\n".join(message.content for message in self.messages if message.role == "user")

    @property
    def brief(self) -> str:
        """What goes beside the system prompt; empty where there is none."""
        return "\n\n".join(message.content for message in self.messages if message.role == "system")


class Submitted(Value):
    """The answer of `submit`. `position` counts the requests before this one, the running one among them."""

    run_id: str
    position: int
    duplicate: bool
