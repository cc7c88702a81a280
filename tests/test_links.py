"""Every link of the documentation leads somewhere: files, headings and pictures. Addresses elsewhere are not asked."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from perdure import cli
from tests.reference.markdown import slug

ROOT = Path(cli.__file__).parents[1]
PLACES = ("*.md", "docs/**/*.md", "examples/**/*.md", "perdure/commands/project/*.md")
PAGES = sorted({page for place in PLACES for page in ROOT.glob(place) if "node_modules" not in page.parts})
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@cache
def tokens(page: Path) -> tuple[Token, ...]:
    """All of a page, what stands inside of lines too."""
    blocks = MarkdownIt("gfm-like", {"linkify": False}).parse(page.read_text(encoding="utf-8"))
    return tuple(token for block in blocks for token in (block, *(block.children or ())))


def links(page: Path) -> Iterator[str]:
    for token in tokens(page):
        for name in ("href", "src"):
            if target := token.attrGet(name):
                yield str(target)


@cache
def anchors(page: Path) -> frozenset[str]:
    """As GitHub makes them of headings: the same one again gets a number."""
    found: list[str] = []
    for token, following in pairwise(tokens(page)):
        if token.type == "heading_open":
            text = "".join(each.content for each in following.children or () if each.type in ("text", "code_inline"))
            first = slug(text)
            again = sum(re.fullmatch(rf"{re.escape(first)}(-\d+)?", each) is not None for each in found)
            found.append(f"{first}-{again}" if again else first)
    return frozenset(found)


def fault(page: Path, link: str) -> str | None:
    """What is wrong with a link to something of ours."""
    named, _, anchor = unquote(link).partition("#")
    target = (page.parent / named).resolve() if named else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return f"{link}: there is no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return f"{link}: no heading there has this anchor"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    ours = [link for link in links(page) if not ELSEWHERE.match(link)]
    assert [wrong for link in ours if (wrong := fault(page, link))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    """After `tests/a/test_one.py`, a name alone is in the same folder; before, it is the reader's own."""
    folder, lost = "", []
    for place, name in re.findall(r"`(tests/(?:\w+/)*)?(test_\w+\.py)`", page.read_text(encoding="utf-8")):
        folder = place or folder
        if folder and not (ROOT / folder / name).is_file():
            lost.append(f"{folder}{name}")
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    ours = "|".join(path.parent.name for path in ROOT.glob("*/__init__.py"))
    named = re.findall(rf"`((?:{ours})/(?:\w+/)*\w+\.py)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if "NAME" not in name and not (ROOT / name).is_file()] == []


def test_there_are_links_to_look_at() -> None:
    assert sum(1 for page in PAGES for _ in links(page)) > 150


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    assert fault(page, "docs/nothing.md") == "docs/nothing.md: there is no such file"
    assert fault(page, "docs/mcp.md#nothing") == "docs/mcp.md#nothing: no heading there has this anchor"
    assert fault(page, "../outside.md") == "../outside.md: there is no such file"
    twice = tmp_path / "twice.md"
    twice.write_text("# `a.b` and *c*\n\n## Same\n\n## Same\n\n```\n# no heading\n```\n", encoding="utf-8")
    assert anchors(twice) == {"ab-and-c", "same", "same-1"}


def test_every_page_of_the_docs_is_linked_from_another() -> None:
    linked = {(page.parent / unquote(link).partition("#")[0]).resolve() for page in PAGES for link in links(page)}
    folders = {place for place in linked if place.is_dir()}
    lost = {page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.parent not in folders} - linked
    assert {str(page.relative_to(ROOT)) for page in lost} <= {"docs/README.md"}
