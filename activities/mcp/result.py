"""What an MCP tool answered, as the outcome of a call: JSON and text as they are, the rest as files of the run."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from mcp import ClientSession
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from activities.storage.workspace import OutsideWorkspace, Workspace
from contracts.failures import ToolFault
from contracts.tool import ToolOutcome, failed

MOST_FILES = 50  # of one answer


TEXT_ONLY = "the tool declares structured output and sent text only"


class UnfitAnswerError(RuntimeError):
    """An answer that does not fit the `outputSchema` of its tool, with the answer; the message says what is wrong."""

    def __init__(self, answer: CallToolResult, why: str) -> None:
        super().__init__(why)
        self.answer = answer


def keep_unfit_answers(session: ClientSession) -> None:
    """Make the session hand an unfit answer over with its complaint: alone, that would lose what the call brought."""
    validate = session.validate_tool_result

    async def validate_or_keep(name: str, result: CallToolResult) -> None:
        try:
            await validate(name, result)
        except RuntimeError as error:
            raise UnfitAnswerError(result, str(error)) from None

    session.validate_tool_result = validate_or_keep  # type: ignore[method-assign]


def flaw_of(answer: CallToolResult, why: str) -> str:
    """Return what the model is told of an answer that does not fit the tool's `outputSchema`."""
    if answer.structured_content is None:
        return TEXT_ONLY if any(isinstance(block, TextContent) for block in answer.content) else why[:500]
    return f"the structured output does not fit what the tool declares: {why.partition(chr(10))[0][:500]}"


def outcome_of(answer: CallToolResult, stem: str, workspace: Workspace, flaw: str = "") -> ToolOutcome:
    """Structured content where there is some, else the text. With files: `{"content", "files": [...]}`.

    What does not fit the tool's `outputSchema` is given all the same, with its flaw: `{"content", "note"}`.

    A file is told by path, content type and bytes, so that none of its base64 gets into history. `stem` is what the
    files are named after.
    """
    text = "\n".join(block.text for block in answer.content if isinstance(block, TextContent))
    if answer.is_error:
        return failed(ToolFault.tool_error, text or "the tool failed, and did not say why")
    content = text if answer.structured_content is None else answer.structured_content
    files = [_kept(block, number, stem, workspace) for number, block in enumerate(_others(answer.content), start=1)]
    if flaw and not content and not files:
        return failed(ToolFault.tool_error, f"the call was made, but its answer is empty: {flaw}")
    if not files and not flaw:
        return ToolOutcome(result=content)
    paths = tuple(file["path"] for file in files if file.get("path"))
    beside = ({"files": files} if files else {}) | ({"note": flaw} if flaw else {})
    return ToolOutcome(result={"content": content, **beside}, artifacts=paths)


def _others(content: Iterable[ContentBlock]) -> list[ContentBlock]:
    return [block for block in content if not isinstance(block, TextContent)]


def _kept(block: ContentBlock, number: int, stem: str, workspace: Workspace) -> dict[str, Any]:
    if isinstance(block, ResourceLink):
        return {"uri": block.uri, "name": block.name, "content_type": block.mime_type}
    content_type, data, uri = _data_of(block)
    told: dict[str, Any] = {"uri": uri} if uri else {}
    told |= {"path": None, "content_type": content_type}
    if data is None:
        return told | {"lost": "what came was no base64"}
    told["bytes"] = len(data)
    if number > MOST_FILES:
        return told | {"lost": f"one answer may bring {MOST_FILES} files"}
    try:
        path = workspace.keep(f"{stem}-{number}" if number > 1 else stem, content_type, data)
    except (OSError, OutsideWorkspace) as error:  # the call was made: only this file is lost
        return told | {"lost": f"the disk refused it: {error}"}
    return told | {"path": path}


def _data_of(block: ContentBlock) -> tuple[str, bytes | None, str | None]:
    """Content type, bytes (None where they cannot be read), and the URI of a resource."""
    match block:
        case ImageContent() | AudioContent():
            return block.mime_type, _decoded(block.data), None
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            return resource.mime_type or "application/octet-stream", _decoded(resource.blob), resource.uri
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.mime_type or "text/plain", resource.text.encode(errors="replace"), resource.uri
        case _:
            return "application/octet-stream", None, None


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
