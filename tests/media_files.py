"""Images and PDF for tests."""

import io
from random import Random

from PIL import Image
from pypdf import PdfWriter


def image_bytes(kind: str = "PNG", size: tuple[int, int] = (40, 30), **options: object) -> bytes:
    """An image of noise, other noise on each call."""
    buffer = io.BytesIO()
    Image.effect_noise(size, 90).convert("RGB").save(buffer, kind, **options)
    return buffer.getvalue()


def same_image(number: int, size: tuple[int, int] = (60, 40)) -> bytes:
    """A PNG of noise, the same one for the same number."""
    buffer, (width, height) = io.BytesIO(), size
    noise = Random(number).randbytes(3 * width * height)  # noqa: S311 - it must give the same again
    Image.frombytes("RGB", size, noise).save(buffer, "PNG")
    return buffer.getvalue()


def pdf_bytes(pages: int = 2, password: str = "") -> bytes:
    writer, buffer = PdfWriter(), io.BytesIO()
    for _ in range(pages):
        writer.add_blank_page(200, 300)
    if password:
        writer.encrypt(password)
    writer.write(buffer)
    return buffer.getvalue()
