"""What the code says of its own names: the docstring below a field or a member, else the comment at its end."""

import ast
import inspect
import io
import re
import tokenize
from functools import cache
from types import ModuleType

REQUIREMENT = r"[A-E]\d{1,2}"


def docstring(thing: object) -> str:
    """Without the ids of the requirements it meets."""
    return re.sub(rf" \({REQUIREMENT}(?:(?: to|,) {REQUIREMENT})*\)", "", inspect.cleandoc(thing.__doc__ or ""))


def meanings(owner: type) -> dict[str, str]:
    """By name, those that a class has from its bases among them. A name of which nothing is said is left out."""
    found: dict[str, str] = {}
    for each in reversed(owner.__mro__):
        if module := inspect.getmodule(each):
            found |= _of_module(module).get(each.__qualname__, {})
    return found


@cache
def _of_module(module: ModuleType) -> dict[str, dict[str, str]]:
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError):
        return {}
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa")
    }
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_of_class(node, comments)) for node in classes}


def _of_class(node: ast.ClassDef, comments: dict[int, str]) -> list[tuple[str, str]]:
    found = []
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        name = _named_by(statement)
        said = _text_of(following) or comments.get(statement.end_lineno or 0)
        if name and said:
            found.append((name, said))
    return found


def _named_by(statement: ast.stmt) -> str | None:
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case _:
            return None


def _text_of(statement: ast.stmt | None) -> str | None:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
        case _:
            return None
