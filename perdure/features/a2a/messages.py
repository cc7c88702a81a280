"""A message of a caller as a goal or an answer, and the messages of a task.

Only text answers, and only questions that take a text: a message decides about no call.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from a2a.types import Message, Part, Role, TaskPushNotificationConfig
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import MessageToDict

from perdure.activities.media.check import MediaError
from perdure.activities.media.store import put_upload
from perdure.activities.storage.store import Stores
from perdure.contracts.media import Attachment
from perdure.contracts.run.state import QuestionView
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.visible_text import render_visible
from perdure.features.pushes.contract import PushTarget
from perdure.features.pushes.sender import check_address

MAX_TOKEN = 1000  # characters
MAX_CONTEXT = 170  # characters: a conversation's id has 200
_CONTEXT = re.compile(rf"[!-~]{{1,{MAX_CONTEXT}}}")
_CREDENTIALS = re.compile(r"[!-~ ]{0,4000}")
_UPLOADED = re.compile(r"(?:https?://[^/]+)?/v1/files/([0-9a-f]{64})")


@dataclass(frozen=True)
class Said:
    """The content of a caller's message: its texts, its one JSON object, and its files."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    files: tuple[Attachment, ...] = ()


async def read_message(message: Message, stores: Stores) -> Said:
    """Read a message, and store its files. Raises InvalidParamsError, ContentTypeNotSupportedError, OSError."""
    if message.role != Role.ROLE_USER:
        raise InvalidParamsError("message.role: a message to the agent has the role ROLE_USER")
    if message.context_id and not _CONTEXT.fullmatch(message.context_id):
        raise InvalidParamsError(f"message.contextId: 1 to {MAX_CONTEXT} printable ASCII characters without spaces")
    texts, data, files = list[str](), dict[str, Any](), list[Attachment]()
    for part in message.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data" if not data and part.data.HasField("struct_value"):
                data = MessageToDict(part.data)
            case "raw":
                files.append(await _store(part, stores))
            case "url" if uploaded := _UPLOADED.fullmatch(part.url):
                files.append(Attachment(name=part.filename or "file", sha256=uploaded[1]))
            case "url":
                reason = "a file by its address is not fetched: send it in the message, or upload it to /v1/files"
                raise ContentTypeNotSupportedError(reason)
            case _:
                raise InvalidParamsError("message.parts: texts, files, and at most one JSON object")
    text = "\n\n".join(texts)
    if not text.strip():
        raise InvalidParamsError("message.parts: the message has no text")
    return Said(text, data, tuple(files))


async def _store(part: Part, stores: Stores) -> Attachment:
    name = part.filename or "file"
    try:
        media = await put_upload(stores, part.raw, name)
    except MediaError as error:
        raise ContentTypeNotSupportedError(f"the file {name[:100]!r}: {error}") from None
    return Attachment(name=name, media_type=media.media_type, sha256=media.sha256)


def takes_text(question: QuestionView) -> bool:
    """Return whether a message may answer the question: no call, login or change of the run hangs on it."""
    return QUESTIONS[question.kind].is_textual


def find_asked(questions: Sequence[QuestionView], message: Message) -> QuestionView | None:
    """Return the question that a message answers; None if a person must answer all that are open.

    Raises InvalidParamsError if several take a text and the message names none of them.
    """
    textual = {question.id: question for question in questions if takes_text(question)}
    named = str(message.metadata["question_id"]) if "question_id" in message.metadata.fields else None
    if named is None and len(textual) <= 1:
        return next(iter(textual.values()), None)
    if named not in textual:
        listed = ", ".join(textual) or "none that takes a message"
        raise InvalidParamsError(f"message.metadata.question_id: name an open question; there are: {listed}")
    return textual[named]


def page_link(page: str, name: str) -> str:
    """Return the address of a run or a project question on the gateway's page."""
    return f"{page}/#{quote(name, safe='')}"


def describe_question(question: QuestionView, link: str) -> Part:
    """Return a question as a part of a message. The text of one for a person says where they answer it."""
    row = QUESTIONS[question.kind]
    text = render_visible(question.text)
    about: dict[str, Any] = {"question_id": question.id, "kind": question.kind}
    if takes_text(question):
        text = f"{text}\nOptions: {', '.join(question.options)}" if question.options else text
        return Part(text=text, metadata=about | {"options": list(question.options)})
    text = f"{row.title}: {text}\nA person decides at {link}; a message does not."
    return Part(text=text, metadata=about | {"link": link})


def read_target(config: TaskPushNotificationConfig, allow_hosts: frozenset[str]) -> PushTarget:
    """Return the address of a push notification. Raises InvalidParamsError."""
    given = config.authentication
    for name, value in (("id", config.id), ("token", config.token), ("scheme", given.scheme)):
        if len(value) > MAX_TOKEN or not (value.isascii() and value.isprintable()):
            raise InvalidParamsError(f"{name}: at most {MAX_TOKEN} printable ASCII characters")
    if not _CREDENTIALS.fullmatch(given.credentials) or " " in given.scheme:
        raise InvalidParamsError("authentication: one scheme, such as Bearer, and its credentials")
    try:
        check_address(config.url, allow_hosts)
    except ValueError as error:
        raise InvalidParamsError(f"url: {error}") from None
    return PushTarget(
        id=config.id, url=config.url, token=config.token, scheme=given.scheme, credentials=given.credentials
    )


def to_config(task_id: str, target: PushTarget) -> TaskPushNotificationConfig:
    """Return a push notification as its owner reads it: without token and credentials."""
    return TaskPushNotificationConfig(id=target.id, task_id=task_id, url=target.url)
