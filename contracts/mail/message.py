"""A message as a file: Markdown with front matter, or JSON (C1, C7, D1, D2).

In JSON, the member `body` holds the work or the result.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from contracts.models import StrictModel

MAX_MESSAGE_BYTES = 256 * 1024  # bytes of a file; more belongs into an input
MAX_MAIL_NAME = 200  # characters of an id
MAX_INPUTS = 20

Name = Annotated[str, Field(min_length=1, max_length=MAX_MAIL_NAME)]
InputName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class PickPolicy(StrEnum):
    """The choice among several files that match an input. Without a policy a person is asked."""

    first = "first"  # by name
    latest = "latest"  # by arrival or last change
    unique = "unique"  # several matches are an error


class InputWanted(StrictModel):
    """An input of a task: a file below the folder's `inputs/`."""

    name: InputName
    """The input's name in the run."""
    match: str = Field(min_length=1, max_length=500)
    """The pattern of a file below `inputs/`, such as `*.csv`."""


class _Head(StrictModel):
    """The fields of every message."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    message_id: Name
    """Identifies the message, together with its content, so that a repeat has no effect."""
    plan_id: Name
    """The folder of the file."""
    task_id: Name
    """The id of the task within its plan."""
    subtask_id: Name | None = None
    """The id of a part of the task."""
    sender: Name = Field(alias="from")
    """The author."""
    to: Name | None = None
    """The addressee."""
    idempotency_key: Name | None = None
    """Stored, not interpreted."""


class TaskHead(_Head):
    """A task, described in the body."""

    type: Literal["task"]
    inputs: tuple[InputWanted, ...] = Field(default=(), max_length=MAX_INPUTS)
    """The files that the task needs."""
    wait_for_inputs: bool = True
    """`true`: wait for missing inputs. `false`: fail."""
    pick_policy: PickPolicy | None = None
    """The choice among several matching files. Without it a person is asked."""
    expected_output: str | None = Field(default=None, max_length=2000)
    """The expected result, in words."""


class ReplyStatus(StrEnum):
    done = "done"
    failed = "failed"


class ReplyHead(_Head):
    """The reply to a task. The body is the result, or the reason for its absence."""

    type: Literal["reply"]
    status: ReplyStatus
    """The end of the task."""
    in_reply_to: Name | None = None
    """The `message_id` of the task."""
    run_id: str | None = Field(default=None, max_length=1000)
    """The run of the task."""
    artifacts: tuple[str, ...] = Field(default=(), max_length=200)
    """Files in the folder of the reply."""


MessageHead = Annotated[TaskHead | ReplyHead, Field(discriminator="type")]
