"""A posted run of AG-UI. Only a person counts in it: their last message, or their answers to interrupts.

The rest is the page's word, and is not read: other messages, tools, state, context.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from perdure.contracts.conversation import MAX_ID_LENGTH, MAX_REQUEST_TEXT
from perdure.contracts.media import MAX_ATTACHMENTS
from perdure.contracts.models import NO_RESULT, FrozenModel, StrictModel
from perdure.contracts.run.signals import ChangedArguments, Decision

MAX_RESUMED = 200  # answers in one request, as at `/v1/runs/{id}/answers`
MAX_INTERRUPT_ID = 1500  # characters: a run's id, a question's, and a digest

Named = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH, pattern=r"\S")]


class PostedSource(FrozenModel):
    """A file: base64 `data` in `value`, or its address, a data URL or `/v1/files/SHA256` of an uploaded one."""

    type: Literal["data", "url"]
    value: str
    media_type: str = Field(default="application/octet-stream", alias="mimeType", max_length=200)

    @property
    def url(self) -> str:
        return self.value if self.type == "url" else f"data:{self.media_type};base64,{self.value}"


class PostedContent(FrozenModel):
    """A part of a message: a text, or a file."""

    type: str
    text: str = Field(default="", max_length=MAX_REQUEST_TEXT)
    source: PostedSource | None = None


class PersonMessage(FrozenModel):
    """A message of a person."""

    id: Named
    content: str | tuple[PostedContent, ...]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if part.type == "text")

    @property
    def files(self) -> tuple[PostedSource, ...]:
        parts = () if isinstance(self.content, str) else self.content
        return tuple(part.source for part in parts if part.source is not None)[: MAX_ATTACHMENTS + 1]


class ResumeEntry(FrozenModel):
    """An answer to an interrupt. One that is `cancelled` leaves the question open. `false` and null are answers."""

    interrupt_id: str = Field(alias="interruptId", pattern=r"^.+/[^/]+/[^/]*$", max_length=MAX_INTERRUPT_ID)
    status: Literal["resolved", "cancelled"]
    payload: Any = NO_RESULT

    @property
    def run_id(self) -> str:
        return self.interrupt_id.rsplit("/", 2)[0]

    @property
    def question_id(self) -> str:
        return self.interrupt_id.rsplit("/", 2)[1]


class PostedAnswer(StrictModel):
    """The payload of an answer, if it is an object."""

    approved: bool | None = None
    """`true` or `false`: the decision to go on, or not."""
    decision: Decision | None = None
    edited: ChangedArguments | None = Field(default=None, alias="editedArgs")
    """With an approval: the arguments to make the call with."""
    text: str | None = Field(default=None, max_length=200_000)


def _last_of_person(messages: Any) -> Any:
    """A list of other things than messages is refused as it is."""
    if not isinstance(messages, Sequence) or not all(isinstance(each, dict) for each in messages):
        return messages
    return [each for each in messages if each.get("role") == "user"][-1:]


class PostedRun(FrozenModel):
    """The body of AG-UI's `RunAgentInput`. Of the messages, only the last one of a person is read."""

    thread_id: Named = Field(alias="threadId")
    """The thread, as the page names it: the chat of this id."""
    run_id: Named = Field(alias="runId")
    """The stretch until the next end or interrupt, as the page names it."""
    messages: Annotated[tuple[PersonMessage, ...], BeforeValidator(_last_of_person)] = ()
    """The messages; that of the person may be the only one."""
    resume: tuple[ResumeEntry, ...] = Field(default=(), max_length=MAX_RESUMED)
    """The answers to interrupts. With them, the messages count for nothing."""
