"""A message as a file: Markdown with front matter, or JSON (C1, C7, D1, D2).

In JSON the work or the result is the member `body`.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from contracts.value import Edge

MOST_MESSAGE = 256 * 1024  # bytes of a file; more goes into an input beside it
MOST_NAME = 200  # characters of an id
MOST_INPUTS = 20

Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME)]
InputName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class PickPolicy(StrEnum):
    """Which file is an input where several match. Without one a person is asked."""

    first = "first"  # by name
    latest = "latest"  # by the time of its last change
    unique = "unique"  # none: that there are several is an error


class InputWanted(Edge):
    """An input of a task: the file below the folder's `inputs/` that `match`, a pattern as in `*.csv`, fits."""

    name: InputName
    match: str = Field(min_length=1, max_length=500)


class _Head(Edge):
    """What every message says of itself. `idempotency_key` is kept, and decides nothing."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    message_id: Name
    plan_id: Name
    task_id: Name
    subtask_id: Name | None = None
    sender: Name = Field(alias="from")
    to: Name | None = None
    idempotency_key: Name | None = None


class TaskHead(_Head):
    """Work to do. The body says what."""

    type: Literal["task"]
    inputs: tuple[InputWanted, ...] = Field(default=(), max_length=MOST_INPUTS)
    wait_for_inputs: bool = True
    pick_policy: PickPolicy | None = None
    expected_output: str | None = Field(default=None, max_length=2000)


class ReplyStatus(StrEnum):
    done = "done"
    failed = "failed"


class ReplyHead(_Head):
    """What became of a task. The body is the result, or why there is none."""

    type: Literal["reply"]
    status: ReplyStatus
    in_reply_to: Name | None = None
    run_id: str | None = Field(default=None, max_length=1000)
    artifacts: tuple[str, ...] = Field(default=(), max_length=200)


MessageHead = Annotated[TaskHead | ReplyHead, Field(discriminator="type")]
