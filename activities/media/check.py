"""The type, size and pages of an image or a PDF, by its content.

Pillow is imported here and in `fit` only, at first use: commands that see no media do not pay for it.
"""

import asyncio
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.contracts.media import (
    MAX_IMAGE_FRAMES,
    MAX_IMAGE_PIXELS,
    MAX_IMAGE_SIDE,
    MAX_MEDIA_BYTES,
    MAX_PDF_BYTES,
    MAX_PDF_PAGES,
    MEDIA_TYPES,
    PDF,
    MediaType,
    StoredMedia,
)
from perdure.extras import install_command

if TYPE_CHECKING:
    from PIL.Image import Image


CHECK_SECONDS = 30.0
PDF_HEAD = b"%PDF-"
HEAD_BYTES = 1024  # in which a PDF begins, and the pointer to its last table ends it
MAX_IMAGE_PARTS = 20_000  # the library reads each in Python: four million comments took 10 s and 700 MB
_ORIENTATION = 0x0112  # the tag of EXIF; 1 is an image that lies as people see it
_TURNED = range(2, 9)
_ACROSS = range(5, 9)  # these exchange width and height
_PAGES = Path(__file__).with_name("pages.py")
_CHILDREN = BoundedSemaphore(2)
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
    return PDF if _find_pdf(data) is not None else None


def _find_pdf(data: bytes) -> int | None:
    """Return where the PDF begins: at the start, or within its first 1,024 bytes, as readers take it.

    The end must be one too in the second case: a text may tell of PDF.
    """
    start = data.find(PDF_HEAD, 0, HEAD_BYTES)
    is_one = start == 0 or (start > 0 and b"startxref" in data[-HEAD_BYTES:])
    return start if is_one else None


def trim_head(data: bytes) -> bytes:
    """Return a PDF without the bytes before it, and any other file as it is."""
    return data[_find_pdf(data) or 0 :] if media_type_of(data) == PDF else data


def is_media_type(content_type: str) -> bool:
    """Return whether a content type is one of the accepted types."""
    return content_type.partition(";")[0].strip().lower() in MEDIA_TYPES


def check_media(data: bytes, name: str) -> tuple[MediaType, dict[str, Any]]:
    """Return the type, and the fields of `StoredMedia` about its size. Blocking. Raises MediaError."""
    kind = media_type_of(data)
    if kind is None:
        raise MediaError(f"{name}: not an image or a PDF that is taken; taken are {_ACCEPTED}")
    limit = MAX_PDF_BYTES if kind == PDF else MAX_MEDIA_BYTES
    if len(data) > limit:
        raise MediaError(f"{name}: {len(data):,} bytes; the limit of {kind} is {limit:,}")
    if find_spec("pypdf" if kind == PDF else "PIL") is None:
        raise MediaError(f"{name}: images and PDF are not read here: {install_command('media')}")
    if kind == PDF:
        return kind, {"pages": _count_pages(data, name)}
    return kind, _measure_image(data, name, kind)


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


def _measure_image(data: bytes, name: str, kind: MediaType) -> dict[str, Any]:
    """Return `pixels`, as people see the image, and `is_turned` if it must be turned."""
    parts = _PARTS[kind](data) if kind in _PARTS else iter(())
    if next(islice(parts, MAX_IMAGE_PARTS, None), None) is not None:
        raise MediaError(f"{name}: more than {MAX_IMAGE_PARTS:,} comments and other parts beside the picture")
    with open_image(data, name) as image:
        width, height = image.size
        if max(width, height) > MAX_IMAGE_SIDE or width * height > MAX_IMAGE_PIXELS:
            limits = f"{MAX_IMAGE_SIDE:,} a side and {MAX_IMAGE_PIXELS:,} in all"
            raise MediaError(f"{name}: {width:,}x{height:,} pixels; the limits are {limits}")
        frames = getattr(image, "n_frames", 1)
        if frames > MAX_IMAGE_FRAMES:
            raise MediaError(f"{name}: {frames:,} frames; the limit is {MAX_IMAGE_FRAMES:,}")
        image.load()  # only this finds a truncated file
        orientation = image.getexif().get(_ORIENTATION, 1)
    size = {"pixels": (height, width) if orientation in _ACROSS else (width, height)}
    return size | {"is_turned": True} if orientation in _TURNED else size


def _count_pages(data: bytes, name: str) -> int:
    """Count the pages in a process, which alone can be ended if a file keeps it busy."""
    child = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", str(_PAGES)]
    try:
        with _CHILDREN:
            ended = subprocess.run(
                command,
                input=data,
                capture_output=True,
                env=child,
                timeout=CHECK_SECONDS,
                check=True,
                start_new_session=True,
            )
        found = json.loads(ended.stdout)
    except (subprocess.SubprocessError, ValueError):
        found = {"error": "it takes too long, or too much memory"}
    if reason := found.get("error"):
        raise MediaError(f"{name}: the PDF cannot be read: {reason}")
    if found.get("is_encrypted"):
        raise MediaError(f"{name}: the PDF is encrypted; attach it without its password")
    if not 0 < (count := found["pages"]) <= MAX_PDF_PAGES:
        raise MediaError(f"{name}: {count:,} pages; a PDF may have 1 to {MAX_PDF_PAGES}")
    return int(count)


def _parts_of_png(data: bytes) -> Iterator[int]:
    """Yield the position of each chunk."""
    at = 8
    while at + 8 <= len(data):
        yield at
        at += 12 + int.from_bytes(data[at : at + 4])


def _parts_of_jpeg(data: bytes) -> Iterator[int]:
    """Yield the position of each marker before the picture, and of each byte that fills up before one."""
    at = 2
    while at + 1 < len(data) and data[at] == _MARKER and data[at + 1] != _PICTURE:
        yield at
        if data[at + 1] == _MARKER:
            at += 1
        elif data[at + 1] in _MARKERS_ALONE:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4])


def _parts_of_gif(data: bytes) -> Iterator[int]:
    """Yield the position of each block beside the pictures, and of each piece of one."""
    at = 13 + _color_bytes(data[10:11])
    while data[at : at + 1] in (b"!", b","):
        is_picture = data[at] == ord(",")
        at += 10 + _color_bytes(data[at + 9 : at + 10]) + 1 if is_picture else 2
        while size := int.from_bytes(data[at : at + 1]):
            if not is_picture or size < _WHOLE_PIECE:
                yield at
            at += 1 + size
        yield at
        at += 1


def _color_bytes(flags: bytes) -> int:
    return 3 << ((flags[0] & 7) + 1) if flags and flags[0] & 0x80 else 0


_WHOLE_PIECE = 32  # bytes; encoders write pieces of 255, and the last of a picture is shorter
_MARKER, _PICTURE = 0xFF, 0xDA  # of JPEG: the byte before each name, and the name that the picture follows
_MARKERS_ALONE = (0x00, 0x01, *range(0xD0, 0xD9))  # without a length
_PARTS: dict[str, Callable[[bytes], Iterator[int]]] = {
    "image/png": _parts_of_png,
    "image/jpeg": _parts_of_jpeg,
    "image/gif": _parts_of_gif,
}


def _first_line(error: Exception) -> str:
    """Return the reason, without the memory addresses that Pillow puts into it."""
    return re.sub(r" <.*>", "", str(error)).partition("\n")[0][:200] or type(error).__name__


JPEG_QUALITIES = (85, 70, 50)
MIN_SIDE = 256  # pixels; a smaller copy shows nothing


def fit_image(data: bytes, media: StoredMedia, side: int, max_bytes: int) -> tuple[bytes, MediaType]:
    """Return the image within the limits; upright, and of a moving one the first frame. Blocking. Raises MediaError."""
    from PIL import Image as Images
    from PIL import ImageOps

    with open_image(data, media.name) as image:
        is_as_seen = not media.is_turned and not getattr(image, "is_animated", False)
        if max(image.size) <= side and len(data) <= max_bytes and is_as_seen:
            return data, media.media_type
        image.draft("RGB", (side, side))  # a JPEG is decoded at a fraction of its size: less time and memory
        profile = image.info.get("icc_profile") if image.mode in ("RGB", "RGBA", "P") else None
        frame = _widen_mode(ImageOps.exif_transpose(image))
        frame.thumbnail((side, side))
        if media.media_type != "image/jpeg":  # text and drawings stay sharp
            sharp = _encode_image(frame.convert("RGBA"), "PNG", icc_profile=profile)
            if len(sharp) <= max_bytes:
                return sharp, "image/png"
        frame = frame.convert("RGBA")
        plain = Images.new("RGB", frame.size, "white")
        plain.paste(frame, mask=frame)
        while True:
            for quality in JPEG_QUALITIES:
                small = _encode_image(plain, "JPEG", quality=quality, icc_profile=profile)
                if len(small) <= max_bytes or max(plain.size) <= MIN_SIDE:
                    return small, "image/jpeg"
            plain.thumbnail((max(plain.size) * 3 // 4,) * 2)


def _widen_mode(image: "Image") -> "Image":
    """Return the image in a mode that can be scaled smoothly, with its whole range of values."""
    if image.mode.startswith("I"):  # 16 bits, of which `convert` would cut off all above 255
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    return image.convert({"1": "L", "P": "RGBA"}.get(image.mode, image.mode))


def _encode_image(image: "Image", kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
