"""The conversation: parts, and the ways to speak of them by reference.

A part is the smallest thing that enters the conversation at once: the goal, a reply of the model, one tool's
result, a note of the runtime. Each part enters history once, as the result or signal that brought it.
"""

from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field

from contracts.models import Edge, Value, sparse


class PartKind(StrEnum):
    goal = "goal"  # of the run; in a conversation, one each turn
    brief = "brief"  # goes beside the system prompt, until the next goal
    reply = "reply"  # of the model
    result = "result"  # of one tool call
    note = "note"  # of the runtime to the model
    said = "said"  # by the user, while the run was at work
    summary = "summary"  # stands for all before its tail: `about` is {"tail", "pins", "is_deep"}
    journal = "journal"  # the run journal, where the run goes on: `about` has its "digest"


class Part(Value):
    """`content` holds Messages API content blocks; `about` what people want to know of it (never sent on)."""

    kind: PartKind
    content: list[dict[str, Any]]
    about: dict[str, Any] = Field(default_factory=dict)


class Segment(Value):
    """A closed stretch of the transcript in a store: parts [start, end), and the hash at its end.

    The store is the run's own, or that of `owner`: the conversation that the run is a turn of. A file whose name does
    not hold its hash has it in `digest`.
    """

    ref: str
    start: int
    end: int
    head: str
    owner: str | None = sparse(None)
    digest: str | None = sparse(None)


class TranscriptQuery(Edge):
    """The optional argument of the query `transcript`: `{"from": 0, "limit": 50}`."""

    model_config = ConfigDict(validate_by_name=True)

    start: int = Field(default=0, alias="from", ge=0)
    limit: int | None = Field(default=None, ge=1)


class Page(Value):
    """An answer of the query `transcript`: parts from `start` on, about half a megabyte of them at most.

    Parts before `live_from` lie in `segments` (in the run's store) and are not in the answer.
    """

    start: int
    total: int
    head: str
    live_from: int
    parts: list[Part]
    segments: tuple[Segment, ...] = ()
