"""A posted chat. Of its messages the last one counts, and of that one only what a person does: write, attach, decide.

The rest is the browser's word, and is not read: which tool, which input, what was said before.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from perdure.contracts.conversation import MAX_ID_LENGTH, MAX_REQUEST_TEXT
from perdure.contracts.media import MAX_ATTACHMENTS
from perdure.contracts.models import FrozenModel

MAX_PARTS = 20_000  # of a message; each step has several
MAX_APPROVAL_ID = 1500  # characters: a run's id, a question's, and a digest

ChatId = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH, pattern=r"\S")]


class PostedApproval(FrozenModel):
    """A person's decision about a call. Without `approved` there is none yet."""

    id: str = Field(max_length=MAX_APPROVAL_ID)
    approved: bool | None = None
    reason: str | None = Field(default=None, max_length=10_000)


class PostedPart(FrozenModel):
    """A part of a message; of an unknown kind, it is ignored."""

    type: str
    text: str = Field(default="", max_length=MAX_REQUEST_TEXT)
    url: str = ""
    """The address of a file: a data URL, or `/v1/files/SHA256` of an uploaded one."""
    filename: str | None = Field(default=None, max_length=200)
    approval: PostedApproval | None = None


class LastMessage(FrozenModel):
    """The last message: a person's, or the assistant's with decisions about its calls."""

    id: str = Field(min_length=1, max_length=MAX_ID_LENGTH * 5)
    role: Literal["user", "assistant"]
    parts: tuple[PostedPart, ...] = Field(max_length=MAX_PARTS)

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts if part.type == "text")

    @property
    def files(self) -> tuple[PostedPart, ...]:
        return tuple(part for part in self.parts if part.type == "file")[: MAX_ATTACHMENTS + 1]

    @property
    def decisions(self) -> tuple[PostedApproval, ...]:
        """The approvals that are decided, in the order of the calls."""
        asked = (part.approval for part in self.parts if part.approval is not None)
        return tuple(approval for approval in asked if approval.approved is not None)


def _last_of(messages: Any) -> Any:
    return messages[-1:] if isinstance(messages, Sequence) and not isinstance(messages, str) else messages


class PostedChat(FrozenModel):
    """The body of the AI SDK's default transport. Only the last message is read."""

    id: ChatId
    """The chat, as the page names it."""
    messages: Annotated[tuple[LastMessage, ...], BeforeValidator(_last_of), Field(min_length=1)]
    """The messages; the last one may be the only one."""
