"""`input_schema` and `output_schema` of an agent: its forms, and the one line with which a wrong one is rejected."""

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.process.project import display_project
from perdure.settings import ProjectError
from tests.projects import load_project

SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
MODULE = """
from pydantic import BaseModel


class Order(BaseModel):
    total: int


totals = dict[str, int]
answer = 42


class Odd:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with a module, whose name is this test's own: modules are imported once in a process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{module_of(tmp_path)}.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "order.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    (tmp_path / "deep.json").write_text('{"not":' * 60 + "{}" + "}" * 60, encoding="utf-8")
    (tmp_path / "text.json").write_text("{total", encoding="utf-8")
    return tmp_path


def module_of(folder: Path) -> str:
    return "orders_of_" + folder.name.replace("-", "_")


async def load_schema(folder: Path, written: str, setting: str = "output_schema") -> Any:
    written = written.replace("orders:", f"{module_of(folder)}:")
    settings = load_project(folder, head=f"description: tests\n{setting}: {written}")
    async with display_project(settings) as project:
        return getattr(project.agents["a"], setting)


@pytest.mark.parametrize("setting", ["input_schema", "output_schema"])
@pytest.mark.parametrize("written", [json.dumps(SCHEMA), "order.json"], ids=["inline", "file"])
async def test_a_schema_is_written_in_place_or_in_a_file(folder: Path, written: str, setting: str) -> None:
    assert await load_schema(folder, written, setting) == SCHEMA


async def test_a_schema_is_that_of_a_pydantic_model_or_of_any_type_that_pydantic_knows(folder: Path) -> None:
    assert (await load_schema(folder, "orders:Order"))["required"] == ["total"]
    assert await load_schema(folder, "orders:totals") == {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("{type: sentence}", "not a JSON Schema: 'sentence' is not valid"),
        ("{$ref: 'http://127.0.0.1:9/s'}", "'$ref' refers to 'http://127.0.0.1:9/s', which is not in the schema"),
        ("missing.json", "missing.json"),
        ("list.json", "list.json holds no JSON Schema"),
        ("text.json", "text.json"),
        ("some words", "expected a JSON Schema, the path of a .json file, or module:Model"),
        ("no_such_module:Order", "no_such_module"),
        ("orders:Missing", "Missing"),
        ("orders:answer", "answer has no JSON Schema"),
        ("orders:Odd", "Odd has no JSON Schema"),
        ("deep.json", "nested more than 50 levels deep"),
        (f"{{title: {'x' * 70_000}}}", "70,012 bytes; the maximum is 65,536"),
    ],
    ids=[
        "schema",
        "outside",
        "no-file",
        "list",
        "no-json",
        "words",
        "module",
        "name",
        "number",
        "class",
        "nested",
        "large",
    ],
)
async def test_a_wrong_schema_is_rejected_with_file_and_line(folder: Path, written: str, reason: str) -> None:
    with pytest.raises(ProjectError) as error:
        await load_schema(folder, written)
    message = str(error.value)
    assert reason in message
    assert "a.md, line 3: output_schema" in message
    assert "\n" not in message
