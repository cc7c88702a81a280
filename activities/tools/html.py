"""Convert a fetched body to text for a model. Markup may be hostile: CPU time and output are bounded."""

import codecs
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from typing import Any
from urllib.parse import urljoin

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString
from markdownify import ATX, MarkdownConverter

_TEXT_TYPES = re.compile(
    r"text/.*|.*[/+](?:json|xml|yaml|x-yaml|toml|javascript|x-javascript|x-ndjson|ndjson|jsonl|json5)"
    r"|application/(?:x-www-form-urlencoded|sql|graphql|x-sh|rtf|x-subrip)"
)
_HTML_TYPES = {"text/html", "application/xhtml+xml"}
_UNSPECIFIED_TYPES = {"", "application/octet-stream", "application/unknown", "binary/octet-stream"}
_LOOKS_LIKE_HTML = re.compile(rb"\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_META_CHARSET = re.compile(rb"<meta\b[^<>]*?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
# Web encodings only: some of Python's others (punycode) take very long on crafted input.
_WEB_ENCODING = re.compile(r"(utf-(8|16|32)|cp\d|iso8859|iso2022|koi8|gb|big5|euc_|shift_|mac|hz|johab|tis)")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DROPPED_TAGS = ["script", "style", "noscript", "svg", "template", "title"]
# markdownify's patterns take the square of a run's length.
_LONG_BLANK = re.compile(r"[ \t\r\n\f\v]{64,}")
_MAX_TITLE = 300
_MAX_MUTE_IMAGES = 50  # images without a text alternative; the model need not see every pixel


class TangledPageError(Exception):
    """The markup takes too much CPU time or output."""


@dataclass(frozen=True)
class Webpage:
    """A page as text. Not every page has a title, and not every body is text."""

    title: str | None
    text: str | None


def read_webpage(body: bytes, content_type: str, url: str, patience: timedelta) -> Webpage:
    """Convert HTML to Markdown with absolute links; return other text unchanged.

    Blocks for up to `patience` of CPU time, then raises `TangledPageError`.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    declared = _CHARSET.search(content_type)
    text = _decode_body(body, media_type, declared[1] if declared else None)
    if text is None:
        return Webpage(None, None)
    if media_type in _HTML_TYPES or (media_type in _UNSPECIFIED_TYPES and _LOOKS_LIKE_HTML.match(body)):
        return _Reader(patience).read(text, url)
    return Webpage(None, text)


def _decode_body(body: bytes, media_type: str, declared: str | None) -> str | None:
    """Decode a text body by byte order mark, header or meta tag, else as UTF-8."""
    if media_type not in _UNSPECIFIED_TYPES and not _TEXT_TYPES.fullmatch(media_type):
        return None
    mark = next((encoding for mark, encoding in _BYTE_ORDER_MARKS if body.startswith(mark)), None)
    meta = _META_CHARSET.search(body[:4096])
    encoding = mark or _web_encoding(declared) or _web_encoding(meta[1].decode() if meta else None)
    if b"\0" in body[:4096] and not (encoding or "").startswith(("utf-16", "utf-32")):
        return None
    if encoding is not None:
        return body.decode(encoding, errors="replace")
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None if media_type in _UNSPECIFIED_TYPES else body.decode("cp1252", errors="replace")


def _web_encoding(name: str | None) -> str | None:
    try:
        canonical = codecs.lookup(name or "").name
    except LookupError:
        return None
    if canonical == "iso8859-1":
        return "cp1252"  # as every browser reads it
    return canonical if _WEB_ENCODING.match(canonical) else None


class _CpuLimit:
    """A limit on CPU time of this thread, so that a busy machine does not fail a good page."""

    def __init__(self, patience: timedelta) -> None:
        self._end = time.thread_time() + patience.total_seconds()

    def check(self) -> None:
        if time.thread_time() > self._end:
            raise TangledPageError


class _Reader:
    def __init__(self, patience: timedelta) -> None:
        self._effort = _CpuLimit(patience)

    def read(self, html: str, url: str) -> Webpage:
        # Processing instructions are removed since bs4 warns about them as XML. A file, not a string: bs4 also
        # warns about strings that look like an address.
        soup = _Soup(StringIO(re.sub(r"<\?(?:[^<>]*>)?", " ", html)), self._effort)
        title = " ".join(soup.title.get_text().split())[:_MAX_TITLE] if soup.title else ""
        self._tidy_markup(soup, url)
        try:
            markdown = _Converter(self._effort, len(html)).convert_soup(soup)
        except TangledPageError:
            raise
        except Exception:  # noqa: BLE001 - a page that breaks the converter still has its text
            markdown = soup.get_text("\n", strip=True)
        lines = (line.rstrip() for line in markdown.splitlines())
        return Webpage(title or None, re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip())

    def _tidy_markup(self, soup: BeautifulSoup, url: str) -> None:
        """Remove unread elements and make links absolute."""
        for tag in self._find_tags(soup, _DROPPED_TAGS):
            tag.decompose()
        for tag in self._find_tags(soup, ["td", "th"]):
            tag.attrs.pop("colspan", None)  # each asks for up to a thousand columns
        base = soup.find("base", href=True)
        start = _absolute_url(url, str(base["href"])) if isinstance(base, Tag) else url
        for tag in self._find_tags(soup, ["a"]):
            _make_absolute(tag, "href", start or url)
        self._tidy_images(soup, start or url)
        for text in soup.find_all(string=_LONG_BLANK):
            self._effort.check()
            if type(text) is NavigableString:  # and no comment, which would turn into text
                text.replace_with(_LONG_BLANK.sub(_shorten_blank, text))

    def _tidy_images(self, soup: BeautifulSoup, start: str) -> None:
        """Keep images with a text alternative and the first ones without; an empty alternative marks decoration."""
        mute = 0
        for tag in self._find_tags(soup, ["img"]):
            _make_absolute(tag, "src", start)
            alt, src = tag.get("alt"), str(tag.get("src") or "")
            if alt and not src:
                tag.replace_with(str(alt))
            elif alt or (alt is None and src and mute < _MAX_MUTE_IMAGES):
                tag["src"] = src.replace(" ", "%20")  # a blank would end the address in Markdown
                mute += alt is None
            else:
                tag.decompose()

    def _find_tags(self, soup: BeautifulSoup, names: list[str]) -> Iterator[Tag]:
        for tag in soup.find_all(names):
            self._effort.check()
            if not tag.decomposed:  # together with its parent
                yield tag


class _Soup(BeautifulSoup):
    """A soup that checks the limit between parser steps, since the parser can take quadratic time."""

    def __init__(self, html: StringIO, effort: _CpuLimit) -> None:
        self._effort = effort
        super().__init__(html, "html.parser")

    def handle_starttag(self, *args: Any, **kwargs: Any) -> Tag | None:
        self._effort.check()
        return super().handle_starttag(*args, **kwargs)

    def handle_endtag(self, *args: Any, **kwargs: Any) -> None:
        self._effort.check()
        super().handle_endtag(*args, **kwargs)

    def handle_data(self, data: str) -> None:
        self._effort.check()
        super().handle_data(data)


class _Converter(MarkdownConverter):
    """A converter with bounded output, which deep nesting can blow up. `size`: characters of the HTML."""

    def __init__(self, effort: _CpuLimit, size: int) -> None:
        # Unescaped, names_like_this stay readable; without stripping, `pre` needs none of its slow patterns.
        super().__init__(
            heading_style=ATX,
            bullets="-",
            escape_asterisks=False,
            escape_underscores=False,
            strip_pre=None,
            table_infer_header=True,
        )
        self._effort = effort
        self._limit = 4 * size + 100_000

    def process_tag(self, node: Tag, parent_tags: set[str] | None = None) -> str:
        self._effort.check()
        text = str(super().process_tag(node, parent_tags=parent_tags))  # type: ignore[misc] # missing in the stub
        if len(text) > self._limit:
            raise TangledPageError
        return text

    def convert_pre(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return str(super().convert_pre(el, text.strip("\n"), parent_tags))  # type: ignore[misc] # missing in the stub


def _shorten_blank(blank: re.Match[str]) -> str:
    return "\n\n" if "\n" in blank[0] else " "


def _absolute_url(base: str, reference: str) -> str | None:
    """Return the absolute address of a reference, if it can be followed."""
    with suppress(ValueError):
        address = urljoin(base, reference.strip())
        if not address.lower().startswith(("javascript:", "data:", "vbscript:")):
            return address
    return None


def _make_absolute(tag: Tag, attribute: str, base: str) -> None:
    if (reference := tag.get(attribute)) is None:
        return
    if (address := _absolute_url(base, str(reference))) is None:
        del tag[attribute]
    else:
        tag[attribute] = address
