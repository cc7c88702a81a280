"""A task of an agent elsewhere as a run sees it: its state, what it asks people, and its outcome."""

import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

from a2a.types import Message, Part, Role, Task, TaskState
from google.protobuf.json_format import MessageToDict

from perdure.activities.media.store import ResultFiles
from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import InputRequest, ServerTask, ToolOutcome, error_outcome
from perdure.decisions.ids import json_digest
from perdure.decisions.unfinished import MAX_INPUTS, MAX_TEXT, url_flaw

QUESTION_ID = "question_id"  # in the metadata of a part, of agents that ask several questions at once
ANSWER = "answer"  # the field of a form
UNNAMED = "status-"  # the key of a question that its agent does not name
BINARY = "application/octet-stream"
MAX_FILES = 50  # of one outcome
ASKS = (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED)
FAILED = (TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_REJECTED, TaskState.TASK_STATE_CANCELED)
ENDS = (TaskState.TASK_STATE_COMPLETED, *FAILED)
_ID = re.compile(r"[!-~]{1,512}")
_LINK = re.compile(r"https?://[!-~]+")


def write_message(arguments: dict[str, Any], message_id: str, context_id: str) -> Message:
    """Return the message that begins a task."""
    parts = [Part(text=arguments["message"])]
    if data := arguments.get("data"):
        parts.append(_data_part(data))
    return Message(message_id=message_id, context_id=context_id, role=Role.ROLE_USER, parts=parts)


def write_answer(task: ServerTask, key: str, content: dict[str, Any]) -> Message | None:
    """Return the message that answers a question; None if there is nothing to say. Sent again, it has the same id."""
    if not (text := str(content.get(ANSWER, ""))):
        return None
    message_id = json_digest([task.id, key, text]).partition(":")[2]
    return Message(
        message_id=message_id,
        task_id=task.id,
        role=Role.ROLE_USER,
        parts=[Part(text=text)],
        metadata={QUESTION_ID: key} if not key.startswith(UNNAMED) else None,
    )


def _data_part(data: dict[str, Any]) -> Part:
    part = Part()
    part.data.struct_value.update(data)
    return part


def see_task(server: str, task: Task, before: ServerTask | None = None) -> ServerTask | str:
    """Return a task as its agent shows it now, or the reason why the reply is not believed."""
    if not _ID.fullmatch(task.id):
        return "its reply has no usable task id"
    if before is not None and task.id != before.id:
        return f"it answered with the task {task.id[:80]} instead"
    now = datetime.now(UTC)
    return ServerTask(
        server=server,
        id=task.id,
        status=TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower(),
        message=text_of(task.status.message.parts)[:1000],
        created_at=before.created_at if before else now,
        seen_at=now,
    )


def find_questions(task: Task, answered: Collection[str]) -> tuple[InputRequest, ...]:
    """Return what an agent asks people, without what was answered before: a text, a choice, or to open a link."""
    if task.status.state not in ASKS:
        return ()
    said = task.status.message
    named = {str(part.metadata[QUESTION_ID]): part for part in said.parts if QUESTION_ID in part.metadata.fields}
    asked = [_to_input(key, [part]) for key, part in named.items()]
    if not asked:
        key = f"{UNNAMED}{said.message_id or json_digest(text_of(said.parts))[-16:]}"
        asked = [_to_input(key, said.parts, is_login=task.status.state == TaskState.TASK_STATE_AUTH_REQUIRED)]
    return tuple(each for each in asked if each.key not in answered)[:MAX_INPUTS]


def _to_input(key: str, parts: Iterable[Part], *, is_login: bool = False) -> InputRequest:
    parts = list(parts)
    text, metadata = text_of(parts)[:MAX_TEXT], MessageToDict(parts[0].metadata) if parts else {}
    links = [str(metadata["link"])] if "link" in metadata else _LINK.findall(text) if is_login else []
    links += [part.url for part in parts if is_login and part.url]
    url = next((link.rstrip(".,;)") for link in links if not url_flaw(link.rstrip(".,;)"))), "")
    if url:
        return InputRequest(key=key, message=text, url=url)
    options = [str(option) for option in metadata.get("options", [])]
    field = {"type": "string", **({"enum": options} if options else {})}
    return InputRequest(key=key, message=text, form={"type": "object", "properties": {ANSWER: field}})


def text_of(parts: Iterable[Part]) -> str:
    return "\n\n".join(part.text for part in parts if part.text)


def end_task(task: Task, kept: ResultFiles) -> ToolOutcome:
    """Return the outcome of a task that has ended. Blocking: it stores files."""
    if task.status.state in FAILED:
        name = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
        said = text_of(task.status.message.parts) or "it did not say why"
        return error_outcome(ToolFault.tool_error, f"the task {task.id} ended as {name}: {said}")
    parts = [part for artifact in task.artifacts for part in artifact.parts] or task.status.message.parts
    return _to_outcome(parts, task.context_id, kept)


def end_message(message: Message, kept: ResultFiles) -> ToolOutcome:
    """Return the outcome of a call that was answered without a task. Blocking: it stores files."""
    return _to_outcome(message.parts, message.context_id, kept)


def _to_outcome(parts: Iterable[Part], context_id: str, kept: ResultFiles) -> ToolOutcome:
    """Return `{"content", "files"?, "context_id"}`; the content is a JSON value if that is all there is, else text."""
    parts, data, files = list(parts), list[Any](), list[dict[str, Any]]()
    for part in parts:
        match part.WhichOneof("content"):
            case "data":
                data.append(_with_whole_numbers(MessageToDict(part.data)))
            case "raw" if len(files) < MAX_FILES:
                files.append({"name": part.filename, **kept.add_file(part.media_type or BINARY, part.raw)})
            case "url":
                files.append({"name": part.filename, "uri": part.url, "content_type": part.media_type})
            case "raw":
                files.append({"name": part.filename, "path": None, "lost": f"one outcome may bring {MAX_FILES} files"})
            case _:
                pass  # the text, or nothing
    text = text_of(parts)
    content = data[0] if len(data) == 1 and not text else text if not data else {"text": text, "data": data}
    result = {"content": content, **({"files": files} if files else {}), "context_id": context_id}
    return ToolOutcome(result=result, media=tuple(kept.media), artifacts=tuple(kept.paths))


def _with_whole_numbers(value: Any) -> Any:
    """Return a JSON value whose whole numbers are integers: those of protobuf are all floats."""
    match value:
        case dict():
            return {name: _with_whole_numbers(each) for name, each in value.items()}
        case list():
            return [_with_whole_numbers(each) for each in value]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value
