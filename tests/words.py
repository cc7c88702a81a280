"""The house language: patterns to avoid in pages, docstrings and strings that people read, and words of names.

`python -m tests.words PATH...` prints a line for each match, with the rule and its advice, and exits with 1 if any.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

FOR_MODELS = "prompts"  # folders whose texts are no prose for people, and stay as they are for caches' sake
CODE = "□"  # stands for inline code
# Calls whose arguments people read; exceptions are found by the end of their names.
SHOWN = {"secho", "echo", "ClickException", "UsageError", "BadParameter", "option", "argument", "HTTPException"}
KEYWORDS = {"help", "description", "epilog"}


@dataclass(frozen=True)
class Rule:
    name: str
    pattern: re.Pattern[str]
    advice: str


TABLES = tomllib.loads((Path(__file__).with_suffix(".toml")).read_text(encoding="utf-8"))
RULES = [
    Rule(row["name"], re.compile(row["match"], 0 if row.get("case") else re.IGNORECASE), row["say"])
    for row in TABLES["rule"]
]
NAME_RULES = [Rule("name", re.compile(f"(?:^|_)({row['match']})(?:_|$)"), row["say"]) for row in TABLES["name"]]


def matches(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    for line, prose in _page(text) if path.suffix == ".md" else _module(text):
        for rule in RULES:
            for match in rule.pattern.finditer(prose):
                yield f"{path}:{line}: {rule.name}: {match[0].strip()!r}: {rule.advice}"
    for line, name in _names(text) if path.suffix == ".py" else ():
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        yield from (f"{path}:{line}: name: {name}: {rule.advice}" for rule in NAME_RULES if rule.pattern.search(words))


def _page(text: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a page by line, without code, addresses and front matter."""
    text = re.sub(r"\A---\n.*?\n---\n", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "inline" and token.map:
            line, words = token.map[0] + 1, ""
            for child in token.children or ():
                if child.type in {"softbreak", "hardbreak"}:
                    yield line, words
                    line, words = line + 1, ""
                else:
                    words += {"text": child.content, "code_inline": CODE}.get(child.type, "")
            yield line, words


def _module(text: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings, messages of exceptions, and what click and the reference show."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                yield from _lines(node.body[0])
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            shown = node.args if name in SHOWN or name.endswith(("Error", "Exception")) else []
            for part in [*shown, *(keyword.value for keyword in node.keywords if keyword.arg in KEYWORDS)]:
                yield from _lines(part)


def _names(text: str) -> Iterator[tuple[int, str]]:
    """Yield the names that a module gives: of functions, classes, parameters, variables and fields."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case _:
                pass


def _lines(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for offset, line in enumerate(node.value.split("\n")):
                yield node.lineno + offset, re.sub(r"`[^`]*`", CODE, line)


def main(paths: list[str]) -> int:
    files = [Path(name) for name in paths]
    files = [file for path in files for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    files = [file for file in files if file.suffix in {".md", ".py"} and FOR_MODELS not in file.parts]
    found = [line for file in files for line in matches(file)]
    print("\n".join(found), end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
