"""The conversation: its parts, and references to them.

A part is the smallest unit of the conversation: the goal, a model reply, one tool result, a note of the runtime. Each
part is in history once, in the result or signal that delivered it.
"""

from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field

from perdure.contracts.models import FrozenModel, StrictModel, omit_default


class PartKind(StrEnum):
    goal = "goal"  # of the run; in a conversation, one per turn
    brief = "brief"  # an addition to the system prompt, until the next goal
    reply = "reply"  # of the model
    result = "result"  # of one tool call
    note = "note"  # of the runtime to the model
    said = "said"  # by the user, while the run was active
    summary = "summary"  # replaces all parts before its tail: `about` is {"tail", "pins", "is_deep"}
    journal = "journal"  # the run journal, after a resume: `about` has its "digest"


class Part(FrozenModel):
    """A part. `content` holds Messages API content blocks; `about` has data for people, never sent to a model."""

    kind: PartKind
    content: list[dict[str, Any]]
    about: dict[str, Any] = Field(default_factory=dict)


class Segment(FrozenModel):
    """An archived range of the transcript in a store: parts [start, end), and the hash at its end.

    The store is the run's own, or that of the conversation `owner`. `digest` is the file's hash if its name does not
    contain it.
    """

    ref: str
    start: int
    end: int
    head: str
    owner: str | None = omit_default(None)
    digest: str | None = omit_default(None)


class TranscriptQuery(StrictModel):
    """The optional argument of the query `transcript`: `{"from": 0, "limit": 50}`."""

    model_config = ConfigDict(validate_by_name=True)

    start: int = Field(default=0, alias="from", ge=0)
    limit: int | None = Field(default=None, ge=1)


class TranscriptPage(FrozenModel):
    """An answer of the query `transcript`: parts from `start` on, up to about half a megabyte.

    Parts before `live_from` are in `segments` (in the run's store), not in the answer.
    """

    start: int
    total: int
    head: str
    live_from: int
    parts: list[Part]
    segments: tuple[Segment, ...] = ()
