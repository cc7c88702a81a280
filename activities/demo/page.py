"""A page as it can be measured: what it holds and how much of it, and never how good that is."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urljoin, urlsplit

_HEAD_LINE = re.compile(
    r"[*_> -]*(final url|url|source|status|http|content[- ]type|type|title|fetched|size|bytes|length|encoding|note"
    r"|truncated|language|charset)\b(?:[*_]*:[*_]*|(?<=http)) *(.*)",
    re.IGNORECASE,
)
# Lengths are bounded in what follows: pages come from strangers, and unbounded runs would take quadratic time.
_TARGET = r"\(<?((?:[^()\s>]++|\([^()\s]{0,100}\)){0,20}+)>?(?:\s[^()]{0,300})?\)"
_IMAGE = re.compile(rf"!\[([^\[\]]{{0,500}})\]{_TARGET}")
_LINK = re.compile(rf"\[([^\[\]]{{0,500}})\]{_TARGET}")
_WORD = re.compile(r"[^\W\d_][\w’'-]*|\d[\d.,]*")
_ABBREVIATION = re.compile(r"\b(Mr|Mrs|Ms|Dr|St|No|vs|etc|e\.g|i\.e|approx|cf)\.$", re.IGNORECASE)
_NO_TITLES = {"", "untitled", "untitled document", "document", "index", "home", "new page"}
_MEASURED = 100_000  # characters of a page; more would not change what is said of it
_COMMON = re.compile(r"the|and|of|to|a|in|is|it|that|for|with|on|are|as|this|you|at|by|or|be|not|we|from")


@dataclass(frozen=True)
class Section:
    """What stands under one heading; level 0 for what comes before the first."""

    level: int
    title: str
    paragraphs: tuple[str, ...]

    @property
    def words(self) -> int:
        return sum(count_words(text) for text in self.paragraphs)


@dataclass(frozen=True)
class Page:
    """A fetched page as it can be measured. `links` are text and absolute target, `images` their text alternatives."""

    url: str
    title: str
    source: str
    sections: tuple[Section, ...]
    links: tuple[tuple[str, str], ...]
    images: tuple[str, ...]

    @property
    def headings(self) -> list[Section]:
        return [section for section in self.sections if section.level]

    @cached_property
    def paragraphs(self) -> list[str]:
        return [text for section in self.sections for text in section.paragraphs]

    @cached_property
    def sentences(self) -> list[str]:
        return [sentence for text in self.paragraphs for sentence in split_sentences(text)]

    @cached_property
    def words(self) -> int:
        return sum(section.words for section in self.sections)

    @property
    def has_title(self) -> bool:
        """Whether its title names anything."""
        return self.title.lower() not in _NO_TITLES

    @property
    def name(self) -> str:
        """Its title or first heading in quotes, else its address."""
        if self.has_title:
            return quote(self.title)
        return (
            quote(self.headings[0].title)
            if self.headings and self.headings[0].level == 1
            else f"The page at {urlsplit(self.url).path or self.url}"
        )


def open_page(url: str, text: str) -> Page:
    """A page out of what a fetch brought: Markdown under some lines of header, or the same inside JSON."""
    lines = _unwrap(text).strip()[:_MEASURED].splitlines()
    head: dict[str, str] = {}
    while lines and ((field := _HEAD_LINE.fullmatch(lines[0])) or not lines[0].strip("-` ")):
        if field:
            head.setdefault(field[1].lower(), field[2].strip().strip('"'))
        lines.pop(0)
    addresses = (_joined(known, "") for known in (head.get("final url"), head.get("url"), url) if known)
    address = next((known for known in addresses if known.startswith("http")), "about:blank")
    body = "\n".join(lines)
    if re.fullmatch(r"\[(not text|the page has no text)[^\n]*\]", body):
        body = ""
    return read_page(address, head.get("title"), body)


def _joined(base: str, target: str) -> str:
    """An absolute address; nothing for what cannot be one."""
    try:
        return urlsplit(urljoin(base, target)).geturl()
    except ValueError:
        return ""


def _unwrap(text: str) -> str:
    """The text itself, where it stands in a JSON object or between the tags of a fence."""
    text = re.sub(r"\A\s*<[^<>\n]+>[ \t]*\n|\n[ \t]*</[^<>\n]+>\s*\Z", "", text)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(found, dict):
        return str(found)
    keys = ("markdown", "text", "content", "body", "excerpt", "result")
    body = next((found[key] for key in keys if isinstance(found.get(key), str)), "")
    head = [f"{key.replace('_', ' ')}: {value}" for key, value in found.items() if value != body]
    return "\n".join([*(line for line in head if "\n" not in line), "", body])


def read_page(url: str, title: str | None, markdown: str) -> Page:
    """Measure a page. Where the title is not known (None), the first main heading stands in for it."""
    body = re.sub(r"(?m)^([^\n#|>*+-][^\n]*)\n(=+|-{2,})[ \t]*$", _atx, re.sub(r"(?s)```.*?```", "", markdown))
    images = tuple(alt.strip() for alt, _ in _IMAGE.findall(body))
    body = _IMAGE.sub(lambda image: image[1], body)
    found = [*_LINK.findall(body), *((target, target) for target in re.findall(r"<(https?:[^>\s]+)>", body))]
    absolute = ((plain(label), _joined(url, target)) for label, target in found)
    links = tuple((label, target) for label, target in absolute if target.startswith("http"))
    sections = tuple(_sections(body, title or ""))
    if title is None:
        title = next((section.title for section in sections if section.level == 1), "")
    return Page(url, title, body, sections, links, images)


def _atx(heading: re.Match[str]) -> str:
    return f"{'#' if heading[2].startswith('=') else '##'} {heading[1]}"


def _sections(body: str, title: str) -> Iterator[Section]:
    level, name, paragraphs = 0, "", list[str]()
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:#{1,6}\s|[*+-]\s|\d+\.\s))|(?<=\n)(?=\|)", f"{body}\n"):
        if heading := re.match(r"\s*(#{1,6})\s+(.*)", block):
            if level or paragraphs:
                yield Section(level, name, tuple(paragraphs))
            level, name, paragraphs = len(heading[1]), plain(heading[2]), []
        rest = block[heading.end() :] if heading else block  # text may follow a heading on the next line
        text = plain(rest)
        is_navigation = not re.sub(r"[\W_]+", "", _LINK.sub("", rest))
        if text and not is_navigation and not text.startswith("|") and (level or text != title):
            paragraphs.append(text)
    yield Section(level, name, tuple(paragraphs))


def plain(markdown: str) -> str:
    """Markdown without its marks, on one line."""
    text = re.sub(r"^\s*(?:[*+-]|\d+\.|>)\s+", "", _LINK.sub(r"\1", markdown))
    return " ".join(re.sub(r"\*+|`+|\\(?=\W)|(?<!\w)_+|_+(?!\w)|<((?:https?|mailto):[^>\s]+)>", r"\1", text).split())


def split_sentences(text: str) -> list[str]:
    """Sentences of one paragraph. A full stop after a known abbreviation ends none."""
    sentences: list[str] = []
    for part in re.split(r"(?<=[.!?])[\"”’)]*\s+(?=[\"“‘(]*[A-ZÀ-Þ0-9])", text):
        if sentences and _ABBREVIATION.search(sentences[-1]):
            sentences[-1] += f" {part}"
        elif part:
            sentences.append(part)
    return sentences


def count_words(text: str) -> int:
    """Words of a plain text; a figure is one."""
    return len(_WORD.findall(text))


def reading_ease(page: Page) -> int | None:
    """The Flesch reading ease, rounded; None where there are no sentences, or they do not look English."""
    words = [word.lower() for text in page.paragraphs for word in _WORD.findall(text)]
    if len(words) < 10 or sum(_COMMON.fullmatch(word) is not None for word in words) < 0.12 * len(words):
        return None
    syllables = sum(_syllables(word) for word in words)
    return round(206.835 - 1.015 * len(words) / len(page.sentences) - 84.6 * syllables / len(words))


def _syllables(word: str) -> int:
    stem = re.sub(r"(?<=[^aeiouyl])e$|(?<=[^aeioutd])ed$|(?<=[^aeiouscxzgh])es$", "", word)
    return max(1, len(re.findall(r"[aeiouy]+", stem)))


def quote(text: str, words: int = 12) -> str:
    """In quotation marks, cut after so many words."""
    parts = text.split()
    cut = " ".join(parts[:words]).rstrip(",;:") + (" …" if len(parts) > words else "")
    return f"“{cut.replace('“', '‘').replace('”', '’')}”"
