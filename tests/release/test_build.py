"""What is released: the same bytes from any folder, all of the sources, and no licence that is not allowed."""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.release.build import ROOT, build_release, copy_sources, list_sources
from tests.release.licences import licences_page, list_licences, list_vendored, refused

GENERATED = {"PKG-INFO", "setup.cfg"}  # in an archive, beside the folder `perdure.egg-info`


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build_release(ROOT, tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def unpacked(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, in a folder of its own, with its links as `make links` makes them."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(built[0]) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    subprocess.run([shutil.which("make") or "make", "--silent", "links"], cwd=source, check=True)
    return source


def test_a_build_in_another_folder_and_one_from_the_source_distribution_have_the_same_bytes(
    built: list[Path], unpacked: Path, tmp_path: Path
) -> None:
    copy_sources(ROOT, tmp_path / "another place")
    bytes_of = [path.read_bytes() for path in built]
    assert [path.read_bytes() for path in build_release(tmp_path / "another place", tmp_path / "second")] == bytes_of
    assert [path.read_bytes() for path in build_release(unpacked, tmp_path / "third")] == bytes_of


def test_the_source_distribution_has_all_that_the_checkout_keeps(unpacked: Path) -> None:
    there = {name for name in list_sources(unpacked) if name not in GENERATED and ".egg-info/" not in name}
    assert there == set(list_sources(ROOT))


def test_the_source_distribution_passes_tests_of_its_own(unpacked: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    files = ["tests/test_house.py", "tests/test_links.py", "tests/reference", "tests/decisions/test_loop.py"]
    done = subprocess.run([*command, *files], cwd=unpacked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_archives_hold_nothing_of_a_machine(built: list[Path]) -> None:
    with tarfile.open(built[0]) as archive:
        members = archive.getmembers()
    assert {(each.mtime, each.uid, each.gid, each.uname, each.gname) for each in members} == {(315532800, 0, 0, "", "")}
    with zipfile.ZipFile(built[1]) as wheel:
        assert {info.date_time for info in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        text = b"".join(wheel.read(name) for name in wheel.namelist() if name.endswith(("METADATA", "RECORD", ".py")))
    assert str(ROOT).encode() not in text


def test_the_wheel_holds_one_import_name_and_what_commands_copy_and_serve(built: list[Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
    assert {name.partition("/")[0] for name in names} == {"perdure", "perdure-0.1.0.dist-info"}
    for name in (
        "commands/site/index.html",
        "commands/project/guide.txt",
        "gateway/page/index.html",
        "gateway/page/vendor/LICENSE-htm",
        "gateway/page/vendor/preact.mjs",
        "workflows/rotation.py",
    ):
        assert f"perdure/{name}" in names


def test_an_index_page_can_show_the_metadata(built: list[Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built[:2])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(built[1]) as wheel:
        metadata = wheel.read("perdure-0.1.0.dist-info/METADATA").decode()
    for line in (
        "License-Expression: MIT",
        "Classifier: Typing :: Typed",
        "Provides-Extra: all",
        "Requires-Python: >=3.11",
    ):
        assert f"\n{line}\n" in metadata


def test_the_bill_of_materials_has_what_the_image_pins_and_the_page_has_with_hashes(built: list[Path]) -> None:
    materials = json.loads(built[2].read_text(encoding="utf-8"))
    assert (materials["bomFormat"], materials["metadata"]["component"]["name"]) == ("CycloneDX", "perdure")
    pinned = {(name, version) for name, version, _ in (*list_licences(), *list_vendored())}
    assert {(each["name"].lower().replace("_", "-"), each["version"]) for each in materials["components"]} == pinned
    assert all("SHA-256" in json.dumps(each) or "SHA-512" in json.dumps(each) for each in materials["components"])


def test_each_licence_is_allowed_and_on_the_page() -> None:
    assert [row for row in (*list_licences(), *list_vendored()) if refused(row[2])] == []
    assert (ROOT / "docs" / "licences.md").read_text(encoding="utf-8") == licences_page(), "run make licences"


@pytest.mark.parametrize("licence", ["GPL-3.0-only", "UNKNOWN", "MIT AND GPL-3.0-only", "GPL-2.0-only OR SSPL-1.0"])
def test_a_licence_that_asks_for_more_is_refused(licence: str) -> None:
    assert refused(licence)


@pytest.mark.parametrize("licence", ["MIT", "GPL-3.0-only OR MIT", "Apache-2.0 AND CNRI-Python"])
def test_a_licence_that_asks_for_a_notice_alone_is_not(licence: str) -> None:
    assert not refused(licence)
