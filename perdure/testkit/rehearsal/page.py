"""A fetched page in measurable parts: sections, sentences, links, images."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urljoin, urlsplit

_HEAD_LINE = re.compile(
    r"[*_> -]*(final url|url|source|status|content[- ]type|title|fetched|size|bytes|note)\b[*_]*:[*_]* *(.*)",
    re.IGNORECASE,
)
# Lengths are bounded in these patterns: pages are untrusted, and unbounded runs would take quadratic time.
_TARGET = r"\(<?((?:[^()\s>]++|\([^()\s]{0,100}\)){0,20}+)>?(?:\s[^()]{0,300})?\)"
_IMAGE = re.compile(rf"!\[([^\[\]]{{0,500}})\]{_TARGET}")
_LINK = re.compile(rf"\[([^\[\]]{{0,500}})\]{_TARGET}")
_WORD = re.compile(r"[^\W\d_][\w’'-]*|\d[\d.,]*")
_NO_TITLES = {"", "untitled", "untitled document", "document", "index", "home", "new page"}
_MEASURED = 100_000  # characters of a page; more would not change the review
_COMMON = re.compile(r"the|and|of|to|a|in|is|it|that|for|with|on|are|as|this|you|at|by|or|be|not|we|from")


@dataclass(frozen=True)
class PageSection:
    """The paragraphs under one heading; level 0 is the text before the first heading."""

    level: int
    title: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class DemoPage:
    """A fetched page. `links` are text and absolute target, `images` their text alternatives."""

    url: str
    title: str
    source: str
    sections: tuple[PageSection, ...]
    links: tuple[tuple[str, str], ...]
    images: tuple[str, ...]

    @property
    def headings(self) -> list[PageSection]:
        return [section for section in self.sections if section.level]

    @cached_property
    def paragraphs(self) -> list[str]:
        return [text for section in self.sections for text in section.paragraphs]

    @cached_property
    def sentences(self) -> list[str]:
        return [sentence for text in self.paragraphs for sentence in split_sentences(text)]

    @cached_property
    def words(self) -> int:
        return sum(map(count_words, self.paragraphs))

    @property
    def has_title(self) -> bool:
        return self.title.lower() not in _NO_TITLES

    @property
    def name(self) -> str:
        """The title in quotes, else the address."""
        return quote_text(self.title) if self.has_title else f"The page at {urlsplit(self.url).path or self.url}"


def open_page(url: str, text: str) -> DemoPage:
    """Read the result of a fetch: Markdown below header lines, or the same in JSON or between tags."""
    lines = _unwrap_text(text).strip()[:_MEASURED].splitlines()
    head: dict[str, str] = {}
    while lines and ((field := _HEAD_LINE.fullmatch(lines[0])) or not lines[0].strip("-` ")):
        if field:
            head.setdefault(field[1].lower(), field[2].strip().strip('"'))
        lines.pop(0)
    addresses = (_absolute_url(known, "") for known in (head.get("final url"), head.get("url"), url) if known)
    address = next((known for known in addresses if known.startswith("http")), "about:blank")
    body = re.sub(r"\A\[(not text|the page has no text)[^\n]*\]\Z", "", "\n".join(lines))
    return _read_markdown(address, head.get("title"), body)


def _absolute_url(base: str, target: str) -> str:
    """Return the absolute address; empty if it is not valid."""
    try:
        return urlsplit(urljoin(base, target)).geturl()
    except ValueError:
        return ""


def _unwrap_text(text: str) -> str:
    """Return the text without enclosing tags; of a JSON object, its longest field below the others."""
    text = re.sub(r"\A\s*<[^<>\n]+>[ \t]*\n|\n[ \t]*</[^<>\n]+>\s*\Z", "", text)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(fields, dict):
        return str(fields)
    *head, body = sorted(fields, key=lambda name: len(str(fields[name]))) or [""]
    return "\n".join([*(f"{name}: {fields[name]}" for name in head), "", str(fields.get(body, ""))])


def _read_markdown(url: str, title: str | None, markdown: str) -> DemoPage:
    """Split a page into its parts. If its title is unknown, use the first main heading."""
    body = re.sub(r"(?m)^([^\n#|>*+-][^\n]*)\n(=+|-{2,})[ \t]*$", _to_atx, re.sub(r"(?s)```.*?```", "", markdown))
    images = tuple(alt.strip() for alt, _ in _IMAGE.findall(body))
    body = _IMAGE.sub(lambda image: image[1], body)
    targets = [*_LINK.findall(body), *((target, target) for target in re.findall(r"<(https?:[^>\s]+)>", body))]
    absolute = ((_to_plain(label), _absolute_url(url, target)) for label, target in targets)
    links = tuple((label, target) for label, target in absolute if target.startswith("http"))
    sections = tuple(_split_sections(body, title or ""))
    if title is None:
        title = next((section.title for section in sections if section.level == 1), "")
    return DemoPage(url, title, body, sections, links, images)


def _to_atx(heading: re.Match[str]) -> str:
    return f"{'#' if heading[2].startswith('=') else '##'} {heading[1]}"


def _split_sections(body: str, title: str) -> Iterator[PageSection]:
    level, name, paragraphs = 0, "", list[str]()
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:#{1,6}\s|[*+-]\s|\d+\.\s))|(?<=\n)(?=\|)", f"{body}\n"):
        if heading := re.match(r"\s*(#{1,6})\s+(.*)", block):
            if level or paragraphs:
                yield PageSection(level, name, tuple(paragraphs))
            level, name, paragraphs = len(heading[1]), _to_plain(heading[2]), []
        rest = block[heading.end() :] if heading else block  # text may follow a heading on the next line
        text = _to_plain(rest)
        is_navigation = not re.sub(r"[\W_]+", "", _LINK.sub("", rest))
        if text and not is_navigation and not text.startswith("|") and (level or text != title):
            paragraphs.append(text)
    yield PageSection(level, name, tuple(paragraphs))


def _to_plain(markdown: str) -> str:
    """Return Markdown as plain text on one line."""
    text = re.sub(r"^\s*(?:[*+-]|\d+\.|>)\s+", "", _LINK.sub(r"\1", markdown))
    return " ".join(re.sub(r"\*+|`+|\\(?=\W)|(?<!\w)_+|_+(?!\w)|<((?:https?|mailto):[^>\s]+)>", r"\1", text).split())


def split_sentences(text: str) -> list[str]:
    """Split one paragraph into sentences."""
    return [part for part in re.split(r"(?<=[.!?])[\"”’)]*\s+(?=[\"“‘(]*[A-ZÀ-Þ0-9])", text) if part]


def count_words(text: str) -> int:
    return len(_WORD.findall(text))


def reading_ease(page: DemoPage) -> int | None:
    """Return the Flesch reading ease of an English text that is long enough."""
    words = [word.lower() for text in page.paragraphs for word in _WORD.findall(text)]
    if len(words) < 10 or sum(_COMMON.fullmatch(word) is not None for word in words) < 0.12 * len(words):
        return None
    syllables = sum(map(_count_syllables, words))
    return round(206.835 - 1.015 * len(words) / len(page.sentences) - 84.6 * syllables / len(words))


def _count_syllables(word: str) -> int:
    stem = re.sub(r"(?<=[^aeiouyl])e$|(?<=[^aeioutd])ed$|(?<=[^aeiouscxzgh])es$", "", word)
    return max(1, len(re.findall(r"[aeiouy]+", stem)))


def quote_text(text: str, words: int = 12) -> str:
    """Return the text in quotation marks, cut after so many words."""
    parts = text.split()
    shown = " ".join(parts[:words]).rstrip(",;:") + (" …" if len(parts) > words else "")
    return f"“{shown.replace('“', '‘').replace('”', '’')}”"
