"""`evolve` changes a copy, and the type checker knows the fields of each class."""

import re
from pathlib import Path

import pytest
from mypy import api
from pydantic import ValidationError

from perdure.contracts.models import FrozenModel
from perdure.contracts.run.turn import Usage

ROOT = Path(__file__).parents[1]
CHANGES = {
    "call.evolve(generation=2, outcome=None)": "",
    "call.evolve(genration=2)": 'Unexpected keyword argument "genration"',
    'call.evolve(generation="2")': 'incompatible type "str"; expected "int"',
    "call.evolve(step=None).evolve(tool=None)": 'incompatible type "None"; expected "str"',
}


class Point(FrozenModel):
    across: int = 0
    up: int = 0


def test_a_copy_has_the_changes_and_the_original_stays() -> None:
    point = Point(up=1)
    moved = point.evolve(across=2)
    assert (moved, point) == (Point(across=2, up=1), Point(up=1))
    assert moved.model_fields_set == {"across", "up"}
    assert Point.model_validate_json(moved.model_dump_json()) == moved
    with pytest.raises(ValidationError):
        setattr(moved, "up", 3)  # noqa: B010 - a copy is frozen, too
    assert Usage(input=3).evolve(output=4).total == 7


def test_the_type_checker_knows_the_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [*(f"    {expression}" for expression in CHANGES), "    return call"]
    head = "from perdure.contracts.run.state import Call\n\n\ndef change(call: Call) -> Call:\n"
    module = tmp_path / "changes.py"
    module.write_text(head + "\n".join(lines) + "\n")
    monkeypatch.chdir(ROOT)  # with the settings and the cache of `make check`
    report, _, status = api.run([str(module)])
    found = dict(re.findall(rf"{module.name}:(\d+): error: (.*)", report))
    wanted = {str(number): error for number, error in enumerate(CHANGES.values(), head.count("\n") + 1) if error}
    assert (status, found.keys()) == (1, wanted.keys()), report
    assert all(error in found[number] for number, error in wanted.items()), report


def test_no_change_of_a_value_passes_the_type_checker_unseen() -> None:
    """`model_copy` takes any name and any value, under strict mypy, too."""
    product = [*ROOT.glob("perdure/**/*.py"), *ROOT.glob("workflows/**/*.py"), *ROOT.glob("activities/**/*.py")]
    assert [str(path) for path in product if "model_copy(" in path.read_text(encoding="utf-8")] == []
