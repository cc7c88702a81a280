"""The moves of a run's course. All that opens closes, and what closes was open.

Ids are unique in the run and the same at each reading, live or later.
"""

from dataclasses import dataclass
from typing import Any

from perdure.activities.run.outcome import RunEnd
from perdure.client.run_events import SubtaskMove
from perdure.contracts.media import StoredMedia
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.state import QuestionView
from perdure.contracts.tool import ToolError


@dataclass(frozen=True)
class StepOpened:
    """A model call begins. It closes with its calls, as the next one begins or the run ends."""

    turn: int


@dataclass(frozen=True)
class StepClosed:
    turn: int


@dataclass(frozen=True)
class TextOpened:
    id: str


@dataclass(frozen=True)
class TextAdded:
    """New text, never empty."""

    id: str
    text: str


@dataclass(frozen=True)
class TextClosed:
    """A text is complete; `is_void`: it does not count, as the model call was made again."""

    id: str
    is_void: bool = False


@dataclass(frozen=True)
class ThoughtShown:
    """The model's reasoning, whole."""

    id: str
    text: str


@dataclass(frozen=True)
class SourceCited:
    id: str
    url: str
    title: str


@dataclass(frozen=True)
class CallOpened:
    """The model calls a tool. `id` is that of its tool use."""

    id: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class CallChanged:
    """A person approved an open call with other arguments."""

    id: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class CallClosed:
    """A call has its result, or an error; neither: its result is the run's own affair."""

    id: str
    result: Any = None
    error: ToolError | None = None
    is_denied: bool = False
    media: tuple[StoredMedia, ...] = ()


@dataclass(frozen=True)
class PeopleAsked:
    """The run waits for people. `questions` are all that are open."""

    questions: tuple[QuestionView, ...]


@dataclass(frozen=True)
class AnswerTaken:
    """The run took an answer. Unless it `is_final`, the run still waits: for others' approval, or other answers."""

    question_id: str
    answer: HumanInput
    is_final: bool


@dataclass(frozen=True)
class QuestionEnded:
    """A question is not open any more. `end` is as in `question_closed`."""

    question: QuestionView
    end: str


@dataclass(frozen=True)
class SubtaskMoved:
    subtask: SubtaskMove


@dataclass(frozen=True)
class RemarkMade:
    """A remark that counts for now: a delay, a retry, a limit. `about` is the event's type."""

    about: str
    text: str


@dataclass(frozen=True)
class CoursePaused:
    """The course stands still until people answer."""

    questions: tuple[QuestionView, ...]


@dataclass(frozen=True)
class CourseEnded:
    """The run has ended; nothing is open. `says_more`: the outcome is not the last text."""

    end: RunEnd
    says_more: bool


Move = (
    StepOpened
    | StepClosed
    | TextOpened
    | TextAdded
    | TextClosed
    | ThoughtShown
    | SourceCited
    | CallOpened
    | CallChanged
    | CallClosed
    | PeopleAsked
    | AnswerTaken
    | QuestionEnded
    | SubtaskMoved
    | RemarkMade
    | CoursePaused
    | CourseEnded
)
