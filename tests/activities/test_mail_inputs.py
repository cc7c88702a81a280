import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.storage.workspace import SafeDir
from perdure.features.mailbox.activities import inputs as mail_inputs
from perdure.features.mailbox.activities.inputs import InputsError, resolve_inputs
from perdure.features.mailbox.activities.message import FRESH, RestTracker
from perdure.features.mailbox.contract import InputWanted, PickPolicy, TaskHead
from perdure.features.mailbox.rules.inputs import split_pattern


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "inputs").mkdir()
    return tmp_path


def put_input(box: Path, path: str, text: str = "x", at: int = 1) -> None:
    place = box / "inputs" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    os.utime(place, (at, at))


def arrived(box: Path, path: str, *, after: str) -> None:
    """Put it there once the clock of the disk has moved on."""
    while not (box / "inputs" / path).exists() or changed(box, path) <= changed(box, after):
        put_input(box, path, at=20)


def changed(box: Path, path: str) -> int:
    return (box / "inputs" / path).stat().st_ctime_ns


def task_with_inputs(*wanted: str, policy: PickPolicy | None = None, waits: bool = True) -> TaskHead:
    inputs = tuple(InputWanted(name=f"i{number}", match=match) for number, match in enumerate(wanted))
    return TaskHead(
        type="task", message_id="m", plan_id="p", task_id="t", sender="a", inputs=inputs, pick_policy=policy,
        wait_for_inputs=waits,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("match", "path"),
    [
        ("a.csv", "a.csv"),
        ("*.csv", "a.csv"),
        ("sub/b.csv", "sub/b.csv"),
        ("sub/*.csv", "sub/b.csv"),
        ("s?b/b.*", "sub/b.csv"),
        ("**/b.csv", "sub/b.csv"),
        ("**/deep/*.txt", "sub/deep/c.txt"),
        ("**/**/b.csv", "sub/b.csv"),
        ("**/sub/**/d.txt", "sub/sub/d.txt"),
        ("./a.csv", "a.csv"),
        ("[a-b].csv", "a.csv"),
    ],
)
def test_a_pattern_finds_the_file_that_it_fits(box: Path, match: str, path: str) -> None:
    for each in ("a.csv", "sub/b.csv", "sub/deep/c.txt", "sub/sub/d.txt"):
        put_input(box, each)
    assert resolve_inputs(SafeDir(box), task_with_inputs(match)).chosen == {"i0": path}


@pytest.mark.parametrize("match", ["A.csv", "*.pdf", "sub/*.txt", "b.csv", "nowhere/*", "a.csv/x"])
def test_what_fits_nothing_is_missing(box: Path, match: str) -> None:
    for each in ("a.csv", "sub/b.csv"):
        put_input(box, each)
    assert resolve_inputs(SafeDir(box), task_with_inputs("a.csv", match)).missing == ("i1",)
    with pytest.raises(InputsError, match="does not wait: i0"):
        resolve_inputs(SafeDir(box), task_with_inputs(match, waits=False))


@pytest.mark.parametrize(
    "match",
    ["/etc/passwd", "../x", "a/../../x", ".hidden", "~/x", "a\\b", "C:/x", "/", ".", "a\nb", "a/" * 9 + "x", "é" * 128],
)
def test_a_pattern_stays_below_the_inputs(box: Path, match: str) -> None:
    with pytest.raises(InputsError, match="inputs: i0: "):
        resolve_inputs(SafeDir(box), task_with_inputs(match))


def test_several_stars_in_a_row_lead_down_once() -> None:
    assert split_pattern("**/**/**/a/**/**") == ("**", "a", "**")


@given(st.text(min_size=1, max_size=60))
def test_no_pattern_leads_outside(match: str) -> None:
    parts = split_pattern(match)
    if not isinstance(parts, str):
        assert not any(part in {"", ".", ".."} or "/" in part or "\0" in part for part in parts)


def test_links_and_what_is_not_ready_are_no_inputs(box: Path) -> None:
    (box / "secret.csv").write_text("secret")
    (box / "inputs" / "a.csv").symlink_to(box / "secret.csv")
    (box / "inputs" / "sub").symlink_to(box)
    os.mkfifo(box / "inputs" / "b.csv")
    put_input(box, ".c.csv")
    put_input(box, "d.csv.tmp")
    (box / "inputs" / "fresh.csv").write_text("half")
    assert resolve_inputs(SafeDir(box), task_with_inputs("*.csv", "a.csv", "sub/*.csv", "**/*.csv")).missing == (
        "i0",
        "i1",
        "i2",
        "i3",
    )


def test_a_hard_link_is_no_input(box: Path) -> None:
    """It may lead to any file of the same disk that the bridge's user can read."""
    put_input(box, "sub/own.csv")
    (box / "secret.csv").write_text("secret")
    os.utime(box / "secret.csv", (1, 1))
    (box / "inputs" / "a.csv").hardlink_to(box / "secret.csv")
    (box / "inputs" / "sub" / "b.csv").hardlink_to(box / "secret.csv")
    found = resolve_inputs(SafeDir(box), task_with_inputs("a.csv", "*.csv", "sub/b.csv", "**/*.csv"))
    assert (found.chosen, found.missing) == ({"i3": "sub/own.csv"}, ("i0", "i1", "i2"))


def test_an_input_that_becomes_a_hard_link_after_the_check_is_not_read(box: Path) -> None:
    put_input(box, "a.csv")
    (path,) = resolve_inputs(SafeDir(box), task_with_inputs("a.csv")).chosen.values()
    (box / "secret.csv").write_text("secret")
    (box / "inputs" / "a.csv").unlink()
    (box / "inputs" / "a.csv").hardlink_to(box / "secret.csv")
    with pytest.raises(OSError, match="hard link"):
        mail_inputs.read_input(SafeDir(box), path)


def test_policies_pick_among_several(box: Path) -> None:
    put_input(box, "a.csv", at=10)
    put_input(box, "c.csv", at=30)
    arrived(box, "b.csv", after="c.csv")
    below = SafeDir(box)
    assert resolve_inputs(below, task_with_inputs("*.csv", policy=PickPolicy.first)).chosen == {"i0": "a.csv"}
    assert resolve_inputs(below, task_with_inputs("*.csv", policy=PickPolicy.latest)).chosen == {"i0": "b.csv"}
    assert resolve_inputs(below, task_with_inputs("*.csv", policy=PickPolicy.unique)).chosen == {"i0": "a.csv"}
    assert resolve_inputs(below, task_with_inputs("*.csv")).undecided == {"i0": ("a.csv", "b.csv", "c.csv")}
    put_input(box, "c.csv", "y")
    with pytest.raises(InputsError, match=r"expected one file, and there are several: a\.csv, b\.csv, c\.csv"):
        resolve_inputs(below, task_with_inputs("*.csv", policy=PickPolicy.unique))


def test_an_input_that_is_too_large_and_too_many_names_are_refused(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_input(box, "large.bin")
    os.truncate(box / "inputs" / "large.bin", 65 * 1024 * 1024)
    os.utime(box / "inputs" / "large.bin", (1, 1))
    with pytest.raises(InputsError, match=r"large\.bin has more than 67,108,864 bytes"):
        resolve_inputs(SafeDir(box), task_with_inputs("*.bin"))
    monkeypatch.setattr(mail_inputs, "MAX_SCANNED", 10)
    for number in range(11):
        put_input(box, f"{number}.csv")
    with pytest.raises(InputsError, match="more than 10 names"):
        resolve_inputs(SafeDir(box), task_with_inputs("*.csv"))


def test_what_may_still_be_being_written_is_not_there_yet(box: Path) -> None:
    (box / "inputs" / "a.csv").write_text("1")
    found = resolve_inputs(SafeDir(box), task_with_inputs("*.csv"))
    assert (found.missing, found.is_early) == (("i0",), True)
    put_input(box, "a.csv")
    found = resolve_inputs(SafeDir(box), task_with_inputs("*.csv"))
    assert (found.chosen, found.is_early) == ({"i0": "a.csv"}, False)


def test_a_file_from_the_future_rests_when_two_checks_find_it_the_same(box: Path) -> None:
    """Nor is it the latest for ever: what arrives after it is."""
    rests, late = RestTracker(), int(time.time()) + 3600
    put_input(box, "a.csv", at=late)
    assert resolve_inputs(SafeDir(box), task_with_inputs("*.csv"), rests).is_early
    put_input(box, "a.csv", "1, and more", at=late)
    time.sleep(FRESH)
    assert resolve_inputs(SafeDir(box), task_with_inputs("*.csv"), rests).is_early
    time.sleep(FRESH)
    assert resolve_inputs(SafeDir(box), task_with_inputs("*.csv"), rests).chosen == {"i0": "a.csv"}
    arrived(box, "b.csv", after="a.csv")
    assert resolve_inputs(SafeDir(box), task_with_inputs("*.csv", policy=PickPolicy.latest), rests).chosen == {
        "i0": "b.csv"
    }


@pytest.mark.parametrize("waits", [True, False])
def test_nothing_is_decided_while_one_of_the_files_that_fit_is_being_written(box: Path, *, waits: bool) -> None:
    put_input(box, "a.csv")
    (box / "inputs" / "b.csv").write_text("1")
    head = task_with_inputs("*.csv", waits=waits)
    found = resolve_inputs(SafeDir(box), head)
    assert (found.chosen, found.missing, found.is_early) == ({}, ("i0",), True)
    put_input(box, "b.csv")
    assert resolve_inputs(SafeDir(box), head).undecided == {"i0": ("a.csv", "b.csv")}


def test_an_input_that_may_not_be_read_is_said_with_its_name(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "secret")

    monkeypatch.setattr(os, "scandir", refuses)
    with pytest.raises(InputsError, match="i0: no permission: secret: let the bridge's user read it"):
        resolve_inputs(SafeDir(box), task_with_inputs("*.csv"))
