"""The bytes in place of stored media, in the messages of a request.

If all media together exceed what a request may hold, the oldest become texts that name them.
"""

from base64 import b64encode
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.activities.media.check import MediaError
from perdure.activities.media.store import MediaReader
from perdure.activities.providers.port import ModelCall
from perdure.contracts.media import PDF, StoredMedia
from perdure.decisions.text.media import list_media, media_block, media_of, media_stub

Block = dict[str, Any]


@dataclass(frozen=True)
class MediaLimits:
    """The limits of a request. `side` is in pixels, `many_side` the same if there are more than `many` images.

    `image_bytes` are those of one image, `request_bytes` those of all media, both before base64. `pages` are those of
    all PDF together.
    """

    side: int
    many_side: int
    many: int = 20
    image_bytes: int = 3_900_000
    request_bytes: int = 21_000_000
    pages: int = 100


# From the docs of both APIs, read in November 2026 and not tried. Claude: 5 MB an image (as base64), 8000 pixels, 2000
# with more than 20 images, 32 MB a request, 100 pages; it scales down to 2576 by itself. OpenAI scales to 2048.
MESSAGES_LIMITS = MediaLimits(side=2576, many_side=2000)
CHAT_LIMITS = MediaLimits(side=2048, many_side=2048)


async def fill_media(call: ModelCall, limits: MediaLimits, seen: Collection[str]) -> ModelCall:
    """Return the call with the bytes of its media. Types of blocks that are not `seen` become texts.

    Raises OSError, and StoredFileChangedError if media do not match their hash.
    """
    media = [item for message in call.messages for item in list_media(message["content"])]
    if not media:
        return call
    images = sum(item.media_type != PDF for item in media)
    side = limits.many_side if images > limits.many else limits.side
    filling = _Filling(call.media, limits, seen, side)
    latest_first = [{**message, "content": await filling.fill(message["content"])} for message in call.messages[::-1]]
    return replace(call, messages=latest_first[::-1])


@dataclass
class _Filling:
    """A request under construction, from its end. `bytes` and `pages` count what it has so far."""

    reader: MediaReader | None
    limits: MediaLimits
    seen: Collection[str]
    side: int
    bytes: int = 0
    pages: int = 0

    async def fill(self, content: Sequence[Block]) -> list[Block]:
        return [await self._fill_block(block) for block in reversed(content)][::-1]

    async def _fill_block(self, block: Block) -> Block:
        if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
            return {**block, "content": await self.fill(block["content"])}
        media = media_of(block)
        return block if media is None else await self._load(media)

    async def _load(self, media: StoredMedia) -> Block:
        kind = media_block(media)["type"]
        if self.reader is None or kind not in self.seen:
            return _stub(media, f"this model cannot see {kind}s")
        pages = media.pages or 0
        if self.bytes >= self.limits.request_bytes or self.pages + pages > self.limits.pages:
            return _stub(media, "left out, since one request cannot hold it beside the later ones")
        try:
            data, media_type = await self.reader.read_fitted(media, self.side, self.limits.image_bytes)
        except MediaError as error:
            return _stub(media, f"not shown: {error}")
        if self.bytes + len(data) > self.limits.request_bytes:
            self.bytes = self.limits.request_bytes  # older ones are left out too: each request begins as the last did
            return _stub(media, "left out, since one request cannot hold it beside the later ones")
        self.bytes, self.pages = self.bytes + len(data), self.pages + pages
        title = {"title": media.name or media.path} if media.media_type == PDF else {}
        source = {"type": "base64", "media_type": media_type, "data": b64encode(data).decode()}
        return {"type": kind, "source": source, **title}


def _stub(media: StoredMedia, reason: str) -> Block:
    return {"type": "text", "text": media_stub(media, reason)}
