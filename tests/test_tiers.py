"""The tiers of the tests: each entry of the lists names something, and each group has its target."""

import re
from pathlib import Path

import pytest

from tests.conftest import GROUPS, KEPT, SLOW, SLOW_TESTS, group_of
from tests.test_house import ROOT, project

TESTS = Path(__file__).parent
ENTRIES = [*SLOW, *(entry for entries in GROUPS.values() for entry in entries), KEPT]


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_entry_names_a_place_that_is_there(entry: str) -> None:
    place, _, test = entry.partition("::")
    path = TESTS / place
    assert path.is_dir() if place.endswith("/") else path.is_file()
    assert not test or f"def {test.partition('[')[0]}(" in path.read_text(encoding="utf-8")


def test_each_slow_test_is_there() -> None:
    there = {name for path in TESTS.glob("*/test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    there |= {name for path in TESTS.glob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert there >= SLOW_TESTS


def test_each_group_has_a_marker_and_a_target_and_only_the_release_has_them_all() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = dict(re.findall(r"^([a-z-]+): ([^#\n]*)", makefile, re.MULTILINE))
    markers = {text.partition(":")[0] for text in project()["tool"]["pytest"]["ini_options"]["markers"]}
    assert GROUPS.keys() <= markers
    assert {"test-all", "crossing", "chaos", *GROUPS} <= set(targets["release-check"].split())
    assert "".join(f" and not {group}" for group in GROUPS) in makefile
    for group in GROUPS:
        assert re.search(rf"^{group}:[^\n]*\n(\t.*\n)*\t@\$\(SUITE\) -m {group}$", makefile, re.MULTILINE)


def test_one_scenario_of_kills_is_in_no_group() -> None:
    assert group_of(KEPT) is None
    assert group_of(KEPT.replace("[R1]", "[R1f]")) == "kills"
