"""The type, size and pages of an image or a PDF, by its content.

Pillow and pypdf are imported here only, and at first use: commands that see no media do not pay for them.
"""

import asyncio
import io
import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from contracts.media import (
    MAX_IMAGE_FRAMES,
    MAX_IMAGE_PIXELS,
    MAX_IMAGE_SIDE,
    MAX_MEDIA_BYTES,
    MAX_PDF_BYTES,
    MAX_PDF_PAGES,
    MEDIA_TYPES,
    PDF,
    MediaType,
)

if TYPE_CHECKING:
    from PIL.Image import Image

CHECK_SECONDS = 30.0
_THREADS = ThreadPoolExecutor(2, "media")  # an image of the largest size takes 200 MB while it is decoded
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # of Pillow, which reads forty more
_ACCEPTED = "PNG, JPEG, WebP, GIF and PDF"

R = TypeVar("R")


class MediaError(ValueError):
    """A file that is not taken. The message is one line with its name and the reason."""


def media_type_of(data: bytes) -> MediaType | None:
    """Return the type that the first bytes show, None for any other file."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return PDF if data.startswith(b"%PDF-") else None


def is_media_type(content_type: str) -> bool:
    """Return whether a content type is one of the accepted types."""
    return content_type.partition(";")[0].strip().lower() in MEDIA_TYPES


def check_media(data: bytes, name: str) -> tuple[MediaType, dict[str, Any]]:
    """Return the type, and `pixels` or `pages`. Blocking. Raises MediaError."""
    kind = media_type_of(data)
    if kind is None:
        raise MediaError(f"{name}: not an image or a PDF that is taken; taken are {_ACCEPTED}")
    limit = MAX_PDF_BYTES if kind == PDF else MAX_MEDIA_BYTES
    if len(data) > limit:
        raise MediaError(f"{name}: {len(data):,} bytes; the limit of {kind} is {limit:,}")
    if kind == PDF:
        return kind, {"pages": _count_pages(data, name)}
    return kind, {"pixels": _measure_image(data, name)}


async def within_time(work: Callable[..., R], *args: object) -> R:
    """Run the work on a file in a thread. Raises MediaError if it takes too long, and what it raises."""
    try:
        running = asyncio.get_running_loop().run_in_executor(_THREADS, partial(work, *args))
        return await asyncio.wait_for(running, CHECK_SECONDS)
    except TimeoutError:
        raise MediaError(f"a file could not be read within {CHECK_SECONDS:g} s; attach a simpler one") from None


@contextmanager
def open_image(data: bytes, name: str) -> Iterator["Image"]:
    """Open an image within the limits, undecoded. Raises MediaError, also for what its use in the block raises."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            yield image
    except MediaError:
        raise
    except Exception as error:  # noqa: BLE001 - a hostile file can make the library raise anything
        raise MediaError(f"{name}: the image cannot be read: {_first_line(error)}") from None


def _measure_image(data: bytes, name: str) -> tuple[int, int]:
    with open_image(data, name) as image:
        width, height = image.size
        if max(width, height) > MAX_IMAGE_SIDE or width * height > MAX_IMAGE_PIXELS:
            limits = f"{MAX_IMAGE_SIDE:,} a side and {MAX_IMAGE_PIXELS:,} in all"
            raise MediaError(f"{name}: {width:,}x{height:,} pixels; the limits are {limits}")
        frames = getattr(image, "n_frames", 1)
        if frames > MAX_IMAGE_FRAMES:
            raise MediaError(f"{name}: {frames:,} frames; the limit is {MAX_IMAGE_FRAMES:,}")
        image.load()  # only this finds a truncated file
    return width, height


def _count_pages(data: bytes, name: str) -> int:
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of what it repairs
    try:
        reader = PdfReader(io.BytesIO(data))
        pages = None if reader.is_encrypted else len(reader.pages)
    except Exception as error:  # noqa: BLE001 - as in `open_image`
        raise MediaError(f"{name}: the PDF cannot be read: {_first_line(error)}") from None
    if pages is None:
        raise MediaError(f"{name}: the PDF is encrypted; attach it without its password")
    if not 0 < pages <= MAX_PDF_PAGES:
        raise MediaError(f"{name}: {pages:,} pages; a PDF may have 1 to {MAX_PDF_PAGES}")
    return pages


def _first_line(error: Exception) -> str:
    """Return the reason, without the memory addresses that Pillow puts into it."""
    return re.sub(r" <.*>", "", str(error)).partition("\n")[0][:200] or type(error).__name__
