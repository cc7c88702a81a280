"""A message as a file: Markdown with front matter, or JSON (C1, C7, D1, D2).

In JSON the work or the result is the member `body`.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from contracts.models import Edge

MOST_MESSAGE = 256 * 1024  # bytes of a file; more goes into an input beside it
MOST_NAME = 200  # characters of an id
MOST_INPUTS = 20

Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME)]
InputName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class PickPolicy(StrEnum):
    """Which file is an input where several match. Without one a person is asked."""

    first = "first"  # by name
    latest = "latest"  # by the time of its arrival, or of its last change
    unique = "unique"  # none: that there are several is an error


class InputWanted(Edge):
    """An input of a task: the file below the folder's `inputs/` that `match`, a pattern as in `*.csv`, fits."""

    name: InputName
    """By which the run finds it."""
    match: str = Field(min_length=1, max_length=500)
    """The pattern of a file below `inputs/`, like `*.csv`."""


class _Head(Edge):
    """What every message says of itself. `idempotency_key` is kept, and decides nothing."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    message_id: Name
    """By which, and the content, a message that comes again is known."""
    plan_id: Name
    """The folder that the file lies in."""
    task_id: Name
    """Of the work, within its plan."""
    subtask_id: Name | None = None
    """Of a part of it."""
    sender: Name = Field(alias="from")
    """Who wrote it."""
    to: Name | None = None
    """For whom it is."""
    idempotency_key: Name | None = None
    """Kept, and decides nothing."""


class TaskHead(_Head):
    """Work to do. The body says what."""

    type: Literal["task"]
    inputs: tuple[InputWanted, ...] = Field(default=(), max_length=MOST_INPUTS)
    """Files that the work needs."""
    wait_for_inputs: bool = True
    """Whether it waits for them; else it fails where one is not there."""
    pick_policy: PickPolicy | None = None
    """Which file is an input where several match; without one a person is asked."""
    expected_output: str | None = Field(default=None, max_length=2000)
    """What should come of it, in words."""


class ReplyStatus(StrEnum):
    done = "done"
    failed = "failed"


class ReplyHead(_Head):
    """What became of a task. The body is the result, or why there is none."""

    type: Literal["reply"]
    status: ReplyStatus
    """How the task ended."""
    in_reply_to: Name | None = None
    """The `message_id` of the task."""
    run_id: str | None = Field(default=None, max_length=1000)
    """The run that did it."""
    artifacts: tuple[str, ...] = Field(default=(), max_length=200)
    """Files beside the reply."""


MessageHead = Annotated[TaskHead | ReplyHead, Field(discriminator="type")]
