"""Images within the limits of a provider: scaled down and encoded again, the original unchanged in the store."""

import io
from typing import TYPE_CHECKING

from activities.media.check import open_image
from contracts.media import MediaType, StoredMedia

if TYPE_CHECKING:
    from PIL.Image import Image

JPEG_QUALITIES = (85, 70, 50)
MIN_SIDE = 256  # pixels; a smaller copy shows nothing


def fit_image(data: bytes, media: StoredMedia, side: int, max_bytes: int) -> tuple[bytes, MediaType]:
    """Return the image within the limits; of a moving one, the first frame. Blocking. Raises MediaError."""
    from PIL import Image as Images
    from PIL import ImageOps

    with open_image(data, media.name) as image:
        if max(image.size) <= side and len(data) <= max_bytes and not getattr(image, "is_animated", False):
            return data, media.media_type
        image.draft("RGB", (side, side))  # a JPEG is decoded at a fraction of its size: less time and memory
        frame = ImageOps.exif_transpose(image)
        frame.thumbnail((side, side))
        if media.media_type != "image/jpeg":  # text and drawings stay sharp
            sharp = _encode_image(frame.convert("RGBA"), "PNG")
            if len(sharp) <= max_bytes:
                return sharp, "image/png"
        frame = frame.convert("RGBA")
        plain = Images.new("RGB", frame.size, "white")
        plain.paste(frame, mask=frame)
        while True:
            for quality in JPEG_QUALITIES:
                small = _encode_image(plain, "JPEG", quality=quality)
                if len(small) <= max_bytes or max(plain.size) <= MIN_SIDE:
                    return small, "image/jpeg"
            plain.thumbnail((max(plain.size) * 3 // 4,) * 2)


def _encode_image(image: "Image", kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
