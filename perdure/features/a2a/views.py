"""A run as a task, and its course as the events of a stream."""

import mimetypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import quote

from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from perdure.activities.effects.held import HeldActivity
from perdure.activities.run.outcome import RunEnd
from perdure.client.course.moves import (
    CallClosed,
    CallOpened,
    CourseEnded,
    Move,
    RemarkMade,
    StepOpened,
    TextAdded,
    TextClosed,
    TextOpened,
)
from perdure.client.run_list import RunInfo
from perdure.contracts.models import NO_RESULT
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.features.a2a.messages import describe_question, page_link
from perdure.features.pushes.rules import LOGIN_QUESTION, TASK_STATES, state_of_end, state_of_open


def to_state(name: str) -> TaskState:
    return cast("TaskState", TaskState.Value(name))


def state_of_run(run: RunInfo) -> TaskState:
    return to_state(state_of_open(RunStatus(run.status), "")) if run.is_open else STATES[run.status]


STATES: Mapping[str, TaskState] = {status: to_state(name) for status, name in TASK_STATES.items()}

TaskEvent = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


@dataclass(frozen=True)
class TaskView:
    """A run as a task of a context. `origin` is the failed run that it goes on with; `base` is the gateway's address,
    `page` that of its page.
    """

    run_id: str
    context: str
    base: str
    page: str
    origin: str = ""

    def task(self, status: TaskStatus, outcome: Artifact | None = None) -> Task:
        task = Task(id=self.run_id, context_id=self.context, status=status, artifacts=[outcome] if outcome else [])
        if self.origin:
            task.metadata["resumes"] = self.origin
        return task

    def status(self, state: TaskState, key: str, *parts: Part, at: datetime | None = None) -> TaskStatus:
        """Return a status, with a message if there are parts. `key` names the message in the run."""
        message = Message(
            message_id=f"{self.run_id}/{key}",
            role=Role.ROLE_AGENT,
            task_id=self.run_id,
            context_id=self.context,
            parts=parts,
            reference_task_ids=[self.origin] if self.origin else [],
        )
        return TaskStatus(state=state, message=message if parts else None, timestamp=at or datetime.now(UTC))

    def open_status(self, run: RunInfo, questions: tuple[QuestionView, ...] | None, note: str = "") -> TaskStatus:
        """Return the status of an open run. `questions` are None if no worker tells; `note` is about a message."""
        state = state_of_run(run)
        if questions:
            parts = [describe_question(question, page_link(self.page, self.run_id)) for question in questions]
            key = ",".join(question.id for question in questions)
            return self.status(state, key, *([Part(text=note)] if note else []), *parts)
        if run.status == RunStatus.waiting_on_human:
            if questions is None:
                return self.status(state, "asks", Part(text="the run asks something; no worker tells for now what"))
            state = TaskState.TASK_STATE_WORKING  # the answer has just come
        if held := run.held:
            return self.held_status(held)
        return self.status(state, "note", *([Part(text=note)] if note else []))

    def listed_status(self, run: RunInfo) -> TaskStatus:
        """Return the status of a run as a list has it: without a message, and a login counts as work."""
        return self.status(state_of_run(run), "listed", at=run.execution.close_time)

    def held_status(self, held: HeldActivity) -> TaskStatus:
        """Return the status of a run whose next call waits on the server: for a login, or for another reason."""
        if not held.by.startswith(LOGIN_QUESTION):
            return self.status(TaskState.TASK_STATE_WORKING, "held", Part(text=f"held: {held.why}"))
        link = page_link(self.page, held.by)
        part = Part(text=f"{held.why}\nA person logs in at {link}", metadata={"question_id": held.by, "link": link})
        return self.status(TaskState.TASK_STATE_AUTH_REQUIRED, held.by, part)

    def end_status(self, end: RunEnd, at: datetime | None = None) -> TaskStatus:
        """Return the status of an ended run: its message says why there is no outcome."""
        if end.status is RunStatus.completed:
            return self.status(TaskState.TASK_STATE_COMPLETED, "end", at=at)
        payload = (end.event or {}).get("payload", {})
        reason = str(payload.get("reason") or end.kind)
        about = {"status": str(end.status), **({"reason": reason} if reason else {})}
        state = to_state(state_of_end(end.status, end.kind))
        return self.status(state, "end", Part(text=end.text or str(end.status), metadata=about), at=at)

    def outcome(self, end: RunEnd) -> Artifact | None:
        """Return the outcome of a completed run: its text, its result by a schema, and its files by address."""
        if end.status is not RunStatus.completed:
            return None
        parts = [Part(text=end.text)]
        if end.result is not NO_RESULT:
            parts.append(Part(data=ParseDict(end.result, Value())))
        for path in (end.event or {}).get("payload", {}).get("artifacts", ()):
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
            url = f"{self.base}/v1/runs/{quote(self.run_id, safe='')}/{quote(path)}"
            parts.append(Part(url=url, media_type=kind, filename=path.rpartition("/")[2]))
        return Artifact(artifact_id="outcome", name="outcome", parts=parts)


@dataclass
class EventWriter:
    """Writes the events of a stream after its task, from the moves of a run's course."""

    view: TaskView
    state: TaskState  # that was sent last
    _texts: dict[str, str] = field(default_factory=dict)  # open ones
    _said: tuple[str, str] = ("", "")  # the last whole text, and its id: the outcome, if nothing follows

    def write(self, move: Move) -> Iterator[TaskEvent]:
        """Yield the events of the next move, except of a pause or a hold, which depend on what the run asks then."""
        match move:
            case TextAdded(id, text):
                self._texts[id] = self._texts.get(id, "") + text
            case TextClosed(id, is_void):
                text = self._texts.pop(id, "")
                if text and not is_void:
                    self._said = text, id
            case RemarkMade(about, text):
                yield self.working("remark", Part(text=text, metadata={"about": about}))
            case CourseEnded(end, says_more):
                yield from self._say() if says_more else ()
                if outcome := self.view.outcome(end):
                    named: dict[str, Any] = {"task_id": self.view.run_id, "context_id": self.view.context}
                    yield TaskArtifactUpdateEvent(**named, artifact=outcome, last_chunk=True)
                yield self.update(self.view.end_status(end))
            case StepOpened() | TextOpened() | CallOpened() | CallClosed():
                yield from self._say()
                if self.state != TaskState.TASK_STATE_WORKING:
                    yield self.working("works")
            case _:
                pass

    def _say(self) -> Iterator[TaskEvent]:
        """Yield the last text of the model: it was not the outcome."""
        (text, key), self._said = self._said, ("", "")
        if text:
            yield self.working(f"text/{key}", Part(text=text))

    def working(self, key: str, *parts: Part) -> TaskEvent:
        return self.update(self.view.status(TaskState.TASK_STATE_WORKING, key, *parts))

    def update(self, status: TaskStatus) -> TaskEvent:
        self.state = status.state
        return TaskStatusUpdateEvent(task_id=self.view.run_id, context_id=self.view.context, status=status)
