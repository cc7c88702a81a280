"""Images and PDF in a conversation: their blocks, their text for those that do not see them, and their tokens."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from perdure.contracts.media import PDF, StoredMedia

Block = dict[str, Any]

PIXELS_PER_TOKEN = 750  # from the Claude docs, "Vision", not tried
MAX_IMAGE_TOKENS = 4_784  # of the models that see most; the same page
PAGE_TOKENS = 3_000  # from the Claude docs, "PDF support": 1,500 to 3,000 a page; not tried


def media_block(media: StoredMedia) -> Block:
    """Return the content block of stored media. A request has the bytes in place of its source."""
    fields = media.model_dump(mode="json", exclude_defaults=True)
    return {"type": "document" if media.media_type == PDF else "image", "source": {"type": "stored", **fields}}


def media_of(block: Block) -> StoredMedia | None:
    """Return the stored media of a content block, if it has one."""
    match block:
        case {"type": "image" | "document", "source": {"type": "stored", **fields}}:
            return StoredMedia.model_validate(fields)
        case _:
            return None


def list_media(content: Iterable[Block]) -> list[StoredMedia]:
    """Return the stored media of a message's content, those in tool results included, in their order."""
    found: list[StoredMedia] = []
    for block in content:
        inner = block.get("content")
        if block.get("type") == "tool_result" and isinstance(inner, list):
            found += list_media(inner)
        elif media := media_of(block):
            found.append(media)
    return found


def describe_media(media: StoredMedia) -> str:
    """Describe media in a few words: "inputs/invoice.pdf (application/pdf, 3 pages, 120,331 bytes)"."""
    if media.pages:
        size = f"{media.pages} page{'s' if media.pages != 1 else ''}"
    else:
        size = "x".join(map(str, media.pixels or ()))
    return f"{media.path or media.name} ({media.media_type}, {size}, {media.bytes:,} bytes)"


def media_stub(media: StoredMedia, reason: str = "not shown here") -> str:
    """Return the text in place of media."""
    kind = "document" if media.media_type == PDF else "image"
    again = f"; read_file shows {media.path} again" if media.path else ""
    return f"[{kind} {describe_media(media)}: {reason}{again}]"


def media_content(media: Sequence[StoredMedia]) -> list[Block]:
    """Return the blocks of attached media, each after a text that names it."""
    named = ([{"type": "text", "text": f"Attached: {describe_media(item)}"}, media_block(item)] for item in media)
    return [block for blocks in named for block in blocks]


def render_content(content: str | Sequence[Block]) -> str:
    """Return the text of a message or a result, with stubs in place of its media."""
    if isinstance(content, str):
        return content
    lines: list[str] = []
    for block in content:
        if media := media_of(block):
            lines.append(media_stub(media))
        elif block.get("type") == "text":
            lines.append(str(block["text"]))
    return "\n".join(lines).strip()


def media_tokens(media: StoredMedia) -> int:
    """Estimate the tokens of an image or a PDF in a request."""
    if media.pages is not None:
        return PAGE_TOKENS * media.pages
    return min(round(prod(media.pixels or (0,)) / PIXELS_PER_TOKEN), MAX_IMAGE_TOKENS)
