"""Images and PDF: what is taken, what is refused in one line, and how they fit a provider's limits."""

import io
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from perdure.activities.media import check
from perdure.activities.media.check import MediaError, check_media, fit_image, media_type_of
from perdure.activities.media.pages import count_pages
from perdure.activities.media.store import MediaReader, ResultFiles, keep_media, put_upload, read_media
from perdure.activities.providers.media import MediaLimits, fill_media
from perdure.activities.providers.openai import to_chat_messages
from perdure.activities.providers.options import visible_blocks
from perdure.activities.providers.port import ModelCall
from perdure.activities.storage.store import LocalStores, StoredFileChangedError
from perdure.activities.storage.workspace import Workspace
from perdure.activities.tools.python import _to_outcome
from perdure.contracts.agent import Definition
from perdure.contracts.media import MAX_PDF_PAGES, StoredMedia
from perdure.contracts.model_settings import ModelOptions
from perdure.decisions.ids import UPLOADS_STORE
from perdure.decisions.text.media import media_block
from tests.media_files import image_bytes, pdf_bytes

PAGES = check._PAGES


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_an_image_has_its_type_by_content_and_its_size(kind: str) -> None:
    assert check_media(image_bytes(kind), "notes.txt") == (f"image/{kind.lower()}", {"pixels": (40, 30)})


def test_a_pdf_has_its_pages() -> None:
    assert check_media(pdf_bytes(3), "x") == ("application/pdf", {"pages": 3})


def huge_png(width: int, height: int) -> bytes:
    """A small file that says that it is a large image."""
    data = bytearray(image_bytes(size=(1, 1)))
    data[16:24] = width.to_bytes(4) + height.to_bytes(4)
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a.bin: not an image or a PDF that is taken; taken are PNG, JPEG, WebP, GIF and PDF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "a.bin: not an image or a PDF"),
        (b"II*\0" + bytes(100), "a.bin: not an image or a PDF"),
        (image_bytes("JPEG")[:-300], "a.bin: the image cannot be read"),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 50, "a.bin: the image cannot be read"),
        (huge_png(8_000, 8_000), "a.bin: 8,000x8,000 pixels; the limits are 20,000 a side and 50,000,000 in all"),
        (huge_png(60_000, 10), "a.bin: 60,000x10 pixels"),
        (b"%PDF-1.7\n" + b"x" * 50, "a.bin: the PDF cannot be read"),
        (pdf_bytes(1)[:200], "a.bin: the PDF cannot be read"),
        (pdf_bytes(1, "secret"), "a.bin: the PDF is encrypted; attach it without its password"),
        (pdf_bytes(MAX_PDF_PAGES + 1), "a.bin: 101 pages; a PDF may have 1 to 100"),
        (pdf_bytes(0), "a.bin: 0 pages; a PDF may have 1 to 100"),
        (
            b"%PDF-1.7\n" + bytes(21 * 1024 * 1024),
            "a.bin: 22,020,105 bytes; the limit of application/pdf is 20,971,520",
        ),
    ],
)
def test_what_is_not_taken_is_refused_in_one_line(data: bytes, reason: str) -> None:
    with pytest.raises(MediaError) as refused:
        check_media(data, "a.bin")
    assert str(refused.value).startswith(reason)
    assert "\n" not in str(refused.value)
    assert "<" not in str(refused.value)


@given(st.binary(max_size=300))
def test_any_pdf_has_pages_or_a_reason(data: bytes) -> None:
    assert len(count_pages(b"%PDF-" + data)) == 1


@given(st.binary(max_size=300), st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b""]))
def test_any_bytes_are_taken_or_refused(data: bytes, head: bytes) -> None:
    try:
        kind, _ = check_media(head + data, "x")
    except MediaError as refused:
        assert str(refused).startswith("x: ")  # noqa: PT017 - either may happen
    else:
        assert kind == media_type_of(head + data)


def stored(data: bytes, kind: str) -> StoredMedia:
    return StoredMedia.model_validate({"sha256": "0", "media_type": kind, "bytes": len(data), "name": "x"})


def test_an_image_within_the_limits_is_sent_as_it_is() -> None:
    data = image_bytes("WEBP")
    assert fit_image(data, stored(data, "image/webp"), 100, len(data)) == (data, "image/webp")


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif"])
def test_a_large_image_is_scaled_down_into_the_limits(kind: str) -> None:
    data = image_bytes(kind.upper(), (1200, 600))
    fitted, _ = fit_image(data, stored(data, f"image/{kind}"), 300, 60_000)
    taken, size = check_media(fitted, "x")
    assert (len(fitted) <= 60_000, size["pixels"][0] <= 300, taken) == (True, True, media_type_of(fitted))
    assert size["pixels"][0] == pytest.approx(2 * size["pixels"][1], abs=2)


def test_a_moving_image_is_sent_as_its_first_frame() -> None:
    frames = [Image.effect_noise((20, 20), 90 + number) for number in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    data = buffer.getvalue()
    fitted, kind = fit_image(data, stored(data, "image/gif"), 100, 100_000)
    assert kind == "image/png"
    assert Image.open(io.BytesIO(fitted)).convert("L").tobytes() == frames[0].tobytes()


def test_a_photo_is_turned_upright_before_it_is_scaled() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    data = image_bytes("JPEG", (400, 100), exif=exif)
    fitted, _ = fit_image(data, stored(data, "image/jpeg"), 200, 100_000)
    assert check_media(fitted, "x")[1] == {"pixels": (50, 200)}


def quarters(kind: str, orientation: int, size: tuple[int, int] = (60, 20)) -> bytes:
    """An image of four colours that people see with red at the top left, whatever its orientation."""
    seen = Image.new("RGB", size, "white")
    seen.paste("red", (0, 0, size[0] // 2, size[1] // 2))
    seen.paste("blue", (size[0] // 2, 0, size[0], size[1] // 2))
    back = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90"}
    back |= {7: "TRANSVERSE", 8: "ROTATE_270"}
    held = seen.transpose(Image.Transpose[back[orientation]]) if orientation in back else seen
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    held.save(buffer, kind, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("side", [100, 30], ids=["whole", "scaled"])
async def test_a_model_sees_an_image_as_people_see_it(tmp_path: Path, kind: str, side: int) -> None:
    for orientation in range(1, 9):
        stores, data = LocalStores(tmp_path / str(orientation)), quarters(kind, orientation)
        (tmp_path / str(orientation) / "run").mkdir(parents=True)
        media = keep_media(stores.of("run"), data, "x")
        assert media.pixels == (60, 20)
        fitted, _ = await MediaReader(stores, "run", no_owners).read_fitted(media, side, 100_000)
        shown = Image.open(io.BytesIO(fitted)).convert("RGB")
        assert shown.size == (min(side, 60), min(side, 60) // 3)
        width, height = shown.size
        corners = [shown.getpixel((x, y)) for x, y in ((width // 4, height // 4), (width * 3 // 4, height // 4))]
        red, blue = corners
        assert (red[0] > 180, red[2] < 80, blue[0] < 80, blue[2] > 180) == (True,) * 4, orientation  # type: ignore[index]
        assert (fitted == data) == (orientation == 1 and side == 100)


async def no_owners() -> tuple[str, ...]:
    return ()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_scaling_keeps_what_an_image_shows_in_every_mode(mode: str) -> None:
    steps, buffer = Image.linear_gradient("L").resize((100, 400)), io.BytesIO()
    image = (
        steps.convert("I").point(lambda value: value * 257).convert("I;16") if mode == "I;16" else steps.convert(mode)
    )
    image.save(buffer, "JPEG" if mode == "CMYK" else "PNG")
    data = buffer.getvalue()
    kind = media_type_of(data) or ""
    small = Image.open(io.BytesIO(fit_image(data, stored(data, kind), 100, 100_000)[0])).convert("L")
    assert [small.getpixel((12, y)) for y in (5, 50, 95)] == pytest.approx([13, 128, 242], abs=40)


def test_scaling_keeps_the_colour_space() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = image_bytes("PNG", (400, 100), icc_profile=profile)
    scaled, _ = fit_image(data, stored(data, "image/png"), 100, 100_000)
    assert Image.open(io.BytesIO(scaled)).info["icc_profile"] == profile


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\r\n\r\n", b"--x\r\nContent-Type: application/pdf\r\n\r\n"])
def test_a_pdf_behind_other_bytes_is_taken_from_its_head_on(tmp_path: Path, before: bytes) -> None:
    (tmp_path / "run").mkdir()
    store, data = LocalStores(tmp_path).of("run"), pdf_bytes(2)
    media = keep_media(store, before + data, "x.pdf")
    assert (media.media_type, media.pages, media.bytes) == ("application/pdf", 2, len(data))
    assert read_media(store, media.sha256) == data
    assert media_type_of(bytes(1030) + data) is None
    assert media_type_of(b"A text tells that %PDF-1.7 begins a PDF." + bytes(2000)) is None


def blocks(kind: str, block: bytes) -> bytes:
    """A file of 20 MB with as many blocks beside the picture as it has room for."""
    data = image_bytes(kind, (2, 2))
    at = {"PNG": 33, "JPEG": 2, "GIF": data.find(b",")}[kind]
    return data[:at] + block * (20_000_000 // len(block)) + data[at:]


TEXT_CHUNK = b"\0\0\0\3tEXta\0b" + zlib.crc32(b"tEXta\0b").to_bytes(4)


@pytest.mark.parametrize(
    ("kind", "block"),
    [
        ("GIF", b"!\xfe\1x\0"),
        ("GIF", b"!\xfe" + b"\1x" * 1_000_000 + b"\0"),
        ("JPEG", b"\xff\xfe\0\3x"),
        ("JPEG", b"\xff"),
        ("JPEG", b"\xff\xe2\0\x10ICC_PROFILE\0\1\1"),
        ("PNG", TEXT_CHUNK),
    ],
    ids=["comments", "pieces", "segments", "fill", "profiles", "chunks"],
)
def test_an_image_of_comments_is_refused_before_the_library_reads_it(kind: str, block: bytes) -> None:
    with patch("PIL.Image.open", side_effect=AssertionError), pytest.raises(MediaError, match="more than 20,000 comm"):
        check_media(blocks(kind, block), "x")


def test_a_pdf_that_keeps_its_reader_busy_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    busy = tmp_path / "pages.py"
    busy.write_text("while True: pass\n")
    monkeypatch.setattr(check, "_PAGES", busy)
    monkeypatch.setattr(check, "CHECK_SECONDS", 0.3)
    with pytest.raises(MediaError, match=r"^x: the PDF cannot be read: it takes too long, or too much memory$"):
        check_media(pdf_bytes(), "x")
    busy.write_text(
        f"import runpy\nimport pypdf\npypdf.PdfReader = lambda _: bytes(10**10)\n"
        f"runpy.run_path({str(PAGES)!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(check, "CHECK_SECONDS", 30)
    with pytest.raises(MediaError, match="too much memory"):
        check_media(pdf_bytes(), "x")


async def test_an_upload_lies_under_its_hash_and_a_changed_one_is_not_read(tmp_path: Path) -> None:
    stores, data = LocalStores(tmp_path), image_bytes()
    media = await put_upload(stores, data, "a.png")
    assert media == StoredMedia(
        sha256=sha256(data).hexdigest(), media_type="image/png", bytes=len(data), name="a.png", pixels=(40, 30)
    )
    store = stores.of(UPLOADS_STORE)
    assert read_media(store, media.sha256) == data
    store.write(f"media/{media.sha256}", b"other")
    with pytest.raises(StoredFileChangedError):
        read_media(store, media.sha256)


def test_what_is_refused_is_not_stored(tmp_path: Path) -> None:
    store = LocalStores(tmp_path).of("run")
    with pytest.raises(MediaError):
        keep_media(store, b"text", "a.txt")
    assert store.names("media") == []


class OneStore:
    """A reader whose media are these bytes."""

    def __init__(self, *files: bytes) -> None:
        self._files = {sha256(data).hexdigest(): data for data in files}

    async def read_fitted(self, media: StoredMedia, side: int, max_bytes: int) -> tuple[bytes, str]:
        return self._files[media.sha256], media.media_type


async def filled(limits: MediaLimits, *files: bytes, seen: tuple[str, ...] = ("image", "document")) -> list[str]:
    """The types of the blocks of a request with these files, each in a result of its own but the first."""
    media = [
        StoredMedia(sha256=sha256(data).hexdigest(), name="x", bytes=len(data), media_type=kind, **size)
        for data in files
        for kind, size in [check_media(data, "x")]
    ]
    first, *others = map(media_block, media)
    results = [{"type": "tool_result", "tool_use_id": "t", "content": [block]} for block in others]
    reader: Any = OneStore(*files)
    call = ModelCall(
        definition=Definition(agent="a", model="m", system="", tools=()),
        messages=[{"role": "user", "content": [first, *results]}],
        media=reader,
    )
    [message] = (await fill_media(call, limits, seen)).messages
    return [message["content"][0]["type"], *(block["content"][0]["type"] for block in message["content"][1:])]


async def test_the_oldest_media_become_texts_if_a_request_cannot_hold_all() -> None:
    files = [image_bytes() for _ in range(4)]
    room = MediaLimits(side=100, many_side=100, request_bytes=sum(map(len, files[2:])))
    assert await filled(room, *files) == ["text", "text", "image", "image"]
    pages = MediaLimits(side=100, many_side=100, pages=3)
    assert await filled(pages, pdf_bytes(2), pdf_bytes(1), pdf_bytes(2)) == ["text", "document", "document"]
    assert await filled(MediaLimits(side=100, many_side=100), pdf_bytes(1), files[0], seen=("image",)) == [
        "text",
        "image",
    ]


@pytest.mark.parametrize(
    ("model", "sees", "chat", "blocks"),
    [
        ("claude-sonnet-4-5", None, False, ("image", "document")),
        ("eu.anthropic.claude-haiku-4-5-20251001-v1:0", None, False, ("image", "document")),
        ("gpt-4o-mini", None, True, ("image", "document")),
        ("o3-mini", None, True, ()),
        ("qwen2.5-vl", None, True, ("image",)),
        ("llama3", None, True, ()),
        ("llama3", ("local:llama3",), True, ("image",)),
        ("llama3", True, False, ("image", "document")),
        ("claude-sonnet-4-5", False, False, ()),
    ],
)
def test_a_model_sees_what_is_set_or_known_of_its_name(model: str, sees: Any, chat: bool, blocks: Any) -> None:
    assert visible_blocks(model, ModelOptions(sees=sees), is_chat=chat) == blocks


def test_a_pdf_in_the_chat_completions_api_is_a_file() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
    [message] = to_chat_messages(
        [{"role": "user", "content": [{"type": "document", "title": "a.pdf", "source": source}]}]
    )
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}
    assert message["content"] == [{"type": "file", "file": file}]


def test_a_python_tool_returns_bytes_images_and_lists_of_them(tmp_path: Path) -> None:
    picture = image_bytes("JPEG")
    workspace = Workspace(tmp_path / "run")
    workspace.create()
    kept = ResultFiles("draw-01", workspace, LocalStores(tmp_path).of("run"))
    outcome = _to_outcome(["a caption", picture, Image.new("F", (5, 4))], kept)
    assert outcome.artifacts == ("artifacts/draw-01.jpg", "artifacts/draw-01-2.png")
    assert [(media.media_type, media.path) for media in outcome.media] == [
        ("image/jpeg", "artifacts/draw-01.jpg"),
        ("image/png", "artifacts/draw-01-2.png"),
    ]
    assert outcome.result[0] == "a caption"
    assert outcome.result[1]["path"] == "artifacts/draw-01.jpg"
    assert _to_outcome(b"plain", kept).result == "plain"
