"""What an MCP tool answered, as the outcome of a call: JSON and text as they are, the rest as files of the run."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

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

from activities.workspace import OutsideWorkspace, Workspace
from contracts.failures import ToolFault
from contracts.tool import ToolOutcome, failed

MOST_FILES = 50  # of one answer


def outcome_of(answer: CallToolResult, stem: str, workspace: Workspace) -> ToolOutcome:
    """Structured content where there is some, else the text. With files: `{"content", "files": [...]}`.

    A file is told by path, content type and bytes, so that none of its base64 gets into history. `stem` is what the
    files are named after.
    """
    text = "\n".join(block.text for block in answer.content if isinstance(block, TextContent))
    if answer.is_error:
        return failed(ToolFault.tool_error, text or "the tool failed, and did not say why")
    content = text if answer.structured_content is None else answer.structured_content
    files = [_kept(block, number, stem, workspace) for number, block in enumerate(_others(answer.content), start=1)]
    if not files:
        return ToolOutcome(result=content)
    paths = tuple(file["path"] for file in files if file.get("path"))
    return ToolOutcome(result={"content": content, "files": files}, artifacts=paths)


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
