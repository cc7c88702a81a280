"""What a page tells its reader to do: the commands to type and the files to write, in the order of the page."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perdure import cli

ROOT = Path(cli.__file__).parents[1]
BASH = shutil.which("bash") or "/bin/bash"
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
WRITTEN = {"toml", "python", "markdown", "yaml", "json", "ini", "js"}
COMMENTED = re.compile(r"(?:#|//|<!--)\s*([\w./-]+\.\w+)\b")  # "# shop.py, beside perdure.toml"
NAMED = re.compile(r"`([\w./-]+\.(?:toml|py|md|ya?ml|json|ini))`")


@dataclass(frozen=True)
class Command:
    """`text` as a shell takes it, `shown` the lines that the page prints below it."""

    page: str
    line: int
    text: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class File:
    """A block that says, in its first line or in the paragraph above it, which file it is; `added`: to its end."""

    page: str
    name: str
    text: str
    added: bool


def pages() -> list[str]:
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def commands_of(page: str) -> list[Command]:
    return [each for each in steps_of(page) if isinstance(each, Command)]


def steps_of(page: str) -> list[Command | File]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[Command | File] = []
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start("text")) + 1
        if block["kind"] == "console":
            found += _typed(page, line, block["text"].splitlines())
        elif block["kind"] in {"bash", "sh"}:
            found += _script(page, line, block["text"].splitlines())
        elif block["kind"] in WRITTEN:
            found += _written(page, block["text"], text[: block.start()])
    return found


def _typed(page: str, line: int, lines: list[str]) -> Iterator[Command]:
    """A console: what begins with "$ " is typed, and the rest is what the computer says."""
    rest = [(line + number, each) for number, each in enumerate(lines)]
    while rest:
        at, text = rest.pop(0)
        assert text.startswith("$ "), f"{page}:{at}: a console block begins with a command, not with {text!r}"
        text = text.removeprefix("$ ")
        while not is_whole(text) and rest:
            text += "\n" + rest.pop(0)[1]
        shown = []
        while rest and not rest[0][1].startswith("$ "):
            shown.append(rest.pop(0)[1])
        yield Command(page, at, text, tuple(shown))


def _script(page: str, line: int, lines: list[str]) -> Iterator[Command]:
    text = ""
    for at, each in enumerate(lines, line):
        text = f"{text}\n{each}" if text else each
        if not text.strip() or text.startswith("#"):
            text = ""
        elif is_whole(text):
            yield Command(page, at - text.count("\n"), text)
            text = ""
    if text:
        yield Command(page, line + len(lines), text)


def _written(page: str, text: str, above: str) -> Iterator[File]:
    paragraph = above.rstrip().rpartition("\n\n")[2]
    if commented := COMMENTED.match(text):
        yield File(page, commented[1], text, added=False)
    elif named := NAMED.findall(paragraph):
        yield File(page, named[-1], text, added=bool(re.search(r"\b[Aa]dd\b", paragraph)))


def is_whole(text: str) -> bool:
    """Whether a shell would run it, and not wait for more: a line after "\\", a quote, the end of a heredoc."""
    read = subprocess.run([BASH, "-n", "-c", text], capture_output=True, check=False)
    return not (read.returncode or read.stderr or text.endswith("\\"))
