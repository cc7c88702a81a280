"""Conversion of an MCP answer to a tool outcome: JSON and text as they are, the rest as files of the run."""

import base64
import binascii
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

from activities.media.result import ResultFiles
from activities.tools.json_schema import SchemaNotApplicableError, SchemaValidator
from contracts.failures import ToolFault
from contracts.tool import ToolOutcome, error_outcome

MAX_ANSWER_FILES = 50  # in one answer
TEXT_ONLY = "the tool declares structured output and sent text only"


def flaw_of(answer: CallToolResult, declared: SchemaValidator | None) -> str:
    """Return the note for the model on an answer that does not match the `outputSchema` of its tool."""
    if declared is None or answer.is_error:
        return ""
    if answer.structured_content is None:
        is_text = any(isinstance(block, TextContent) for block in answer.content)
        return TEXT_ONLY if is_text else "the tool declares structured output and sent none"
    try:
        error = declared.find_error(answer.structured_content)
    except SchemaNotApplicableError as reason:
        error = f"its schema cannot be applied: {reason}"
    return f"the structured output does not fit what the tool declares: {error}" if error else ""


def to_mcp_outcome(answer: CallToolResult, kept: ResultFiles, declared: SchemaValidator | None = None) -> ToolOutcome:
    """Return structured content if there is any, else the text. With files: `{"content", "files": [...]}`.

    Content that does not match the tool's `outputSchema` is returned with a note: `{"content", "note"}`.

    A file is described by path, content type and bytes, so that no base64 gets into history. The model sees images and
    PDF.
    """
    text = "\n".join(block.text for block in answer.content if isinstance(block, TextContent))
    if answer.is_error:
        return error_outcome(ToolFault.tool_error, text or "the tool failed, and did not say why")
    flaw = flaw_of(answer, declared)
    content = text if answer.structured_content is None else answer.structured_content
    others = [block for block in answer.content if not isinstance(block, TextContent)]
    files = [_store_block(block, number, kept) for number, block in enumerate(others, start=1)]
    if flaw and not content and not files:
        return error_outcome(ToolFault.tool_error, f"the call was made, but its answer is empty: {flaw}")
    if not files and not flaw:
        return ToolOutcome(result=content)
    extras = ({"files": files} if files else {}) | ({"note": flaw} if flaw else {})
    media, paths = tuple(kept.media), tuple(kept.paths)
    return ToolOutcome(result={"content": content, **extras}, media=media, artifacts=paths)


def _store_block(block: ContentBlock, number: int, kept: ResultFiles) -> dict[str, Any]:
    if isinstance(block, ResourceLink):
        return {"uri": block.uri, "name": block.name, "content_type": block.mime_type}
    content_type, data, uri = _block_data(block)
    entry: dict[str, Any] = {"uri": uri} if uri else {}
    if data is not None and number <= MAX_ANSWER_FILES:
        return entry | kept.add_file(content_type, data)
    lost = "what came was no base64" if data is None else f"one answer may bring {MAX_ANSWER_FILES} files"
    return entry | {"path": None, "content_type": content_type, "lost": lost}


def _block_data(block: ContentBlock) -> tuple[str, bytes | None, str | None]:
    """Return content type, bytes if they can be decoded, and the URI of a resource."""
    match block:
        case ImageContent() | AudioContent():
            return block.mime_type, _decode_base64(block.data), None
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            return resource.mime_type or "application/octet-stream", _decode_base64(resource.blob), resource.uri
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.mime_type or "text/plain", resource.text.encode(errors="replace"), resource.uri
        case _:
            return "application/octet-stream", None, None


def _decode_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
