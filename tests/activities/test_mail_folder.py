"""The folder of a mailbox, among whatever others put there."""

import errno
import json
import os
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from perdure.activities.storage.workspace import SafeDir, WrongFileTypeError
from perdure.features.mailbox.activities import folder as mail_folder
from perdure.features.mailbox.activities.folder import (
    DEAD,
    PENDING,
    PROCESSED,
    ArrivedFile,
    ClaimedFile,
    MailFolder,
    MailFolderError,
    format_os_error,
)
from perdure.features.mailbox.activities.message import FRESH


@pytest.fixture
def folder(tmp_path: Path) -> MailFolder:
    found = MailFolder(tmp_path / "box", "writer")
    found.open_folder()
    return found


def put_file(folder: MailFolder, plan: str, name: str, data: bytes = b"x", age: float = 5) -> Path:
    path = folder.root / folder.incoming / plan / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (time.time() - age,) * 2)
    return path


def names_in(folder: MailFolder, plan: str, where: str) -> list[str]:
    return sorted(each.name.partition("~")[2] for each in (folder.root / folder.incoming / plan / where).iterdir())


def claim_one(folder: MailFolder) -> ClaimedFile:
    found = folder.claim(folder.scan(1)[0])
    assert found is not None
    return found


def test_a_folder_belongs_to_one_agent(folder: MailFolder) -> None:
    again = MailFolder(folder.root, "writer")
    again.open_folder()
    assert again.id == folder.id != ""
    with pytest.raises(MailFolderError, match="is the mailbox of agent 'writer', not of 'other'"):
        MailFolder(folder.root, "other").open_folder()


@pytest.mark.parametrize(
    "broken", [b"", b"{}", b"[]", b'{"id": "../x", "agent": "writer"}', b'{"id": 1, "agent": 2}', b"\xff"]
)
def test_an_invalid_identity_is_reported(folder: MailFolder, broken: bytes) -> None:
    (folder.root / ".mailbox.json").write_bytes(broken)
    with pytest.raises(MailFolderError, match="not a valid mailbox identity"):
        MailFolder(folder.root, "writer").open_folder()


def test_of_many_that_open_a_folder_at_once_all_learn_the_same_id(tmp_path: Path) -> None:
    found = [MailFolder(tmp_path / "box", "writer") for _ in range(8)]
    threads = [threading.Thread(target=each.open_folder) for each in found]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len({each.id for each in found}) == 1


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "box").write_text("")
    with pytest.raises(MailFolderError, match="is not a folder"):
        MailFolder(tmp_path / "box", "writer").open_folder()


def test_an_inbox_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "box" / "inbox").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MailFolderError, match="not a link"):
        MailFolder(tmp_path / "box", "writer").open_folder()


def test_what_is_not_ready_is_left(folder: MailFolder) -> None:
    for name in (".hidden", "a.tmp", "a~", "a.part", "a.md.swp", "a.envelope.json"):
        put_file(folder, "p", name)
    put_file(folder, "p", "fresh.md", age=0)
    assert folder.scan(10) == []
    assert folder.has_fresh
    put_file(folder, "p", "ready.md")
    put_file(folder, "p", "from the future.md", age=-3600)
    assert [each.name for each in folder.scan(10)] == ["ready.md"]
    time.sleep(FRESH)
    (folder.root / folder.incoming / "p" / "fresh.md").unlink()
    assert {each.name for each in folder.scan(10)} == {"ready.md", "from the future.md"}
    assert not folder.has_fresh


def test_what_is_no_regular_file_is_never_opened(folder: MailFolder, tmp_path: Path) -> None:
    place = put_file(folder, "p", "ok.md").parent
    os.mkfifo(place / "pipe.md")
    (place / "link.md").symlink_to("/etc/passwd")
    (place / "folder.md").mkdir()
    for name in ("pipe.md", "link.md", "folder.md"):
        os.utime(place / name, (1, 1), follow_symlinks=False)
    found = {each.name: each.fault for each in folder.scan(10)}
    strange = "not a regular file"
    assert found == {"ok.md": None, "pipe.md": strange, "link.md": strange, "folder.md": strange}
    for each in folder.scan(10):
        got = folder.claim(each)
        assert got is not None
        folder.put_away("p", got.file, DEAD, b"{}")
    kept = [name for name in names_in(folder, "p", DEAD) if not name.endswith(".reason.json")]
    assert kept == ["folder.md", "link.md", "ok.md", "pipe.md"]


def test_a_huge_file_is_refused_by_its_size(folder: MailFolder) -> None:
    path = put_file(folder, "p", "huge.md")
    os.truncate(path, 2 * 1024**3)
    os.utime(path, (1, 1))
    (found,) = folder.scan(10)
    assert found.fault is not None
    assert "2,147,483,648 bytes" in found.fault


def test_a_link_that_comes_between_check_and_read_is_not_followed(folder: MailFolder, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    path = put_file(folder, "p", "a.md")
    (found,) = folder.scan(1)
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    got = folder.claim(found)
    assert got is not None
    with pytest.raises(WrongFileTypeError):
        folder.read_message_file("p", got.file)


def test_a_plan_that_is_a_link_is_left_alone(folder: MailFolder, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.md").write_text("x")
    os.utime(tmp_path / "other" / "a.md", (1, 1))
    (folder.root / "inbox" / "linked").symlink_to(tmp_path / "other")
    put_file(folder, "p", "b.md")
    assert [each.name for each in folder.scan(10)] == ["b.md"]


def test_of_several_that_claim_a_file_one_has_it(folder: MailFolder) -> None:
    for number in range(50):
        put_file(folder, "p", f"{number}.md")
    others = [MailFolder(folder.root, "writer", id=folder.id) for _ in range(4)]
    got: list[str] = []

    def work(bridge: MailFolder) -> None:
        while found := bridge.scan(7):
            got.extend(each.file for one in found if (each := bridge.claim(one)))

    threads = [threading.Thread(target=work, args=(each,)) for each in others]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(got) == len(set(got)) == 50
    assert sorted(got) == folder.below.names("inbox", "p", PENDING)


def test_the_envelope_follows(folder: MailFolder) -> None:
    put_file(folder, "p", "a.md")
    put_file(folder, "p", "a.envelope.json", b"{}")
    got = claim_one(folder)
    assert names_in(folder, "p", PENDING) == ["a.envelope.json", "a.md"]
    assert [each.file for each in folder.pending_files()] == [got.file]
    assert folder.read_envelope_file("p", got.file, 100) == b"{}"
    folder.put_away("p", got.file, PROCESSED)
    assert names_in(folder, "p", PROCESSED) == ["a.envelope.json", "a.md"]


def test_what_is_done_again_is_the_same(folder: MailFolder) -> None:
    put_file(folder, "p", "a.md")
    got = claim_one(folder)
    for _ in range(2):
        folder.put_away("p", got.file, DEAD, b'{"why": "so"}')
    assert names_in(folder, "p", DEAD) == ["a.md", "a.md.reason.json"]
    assert folder.dead_letter_reason("p", got.file) == "so"
    folder.below.write(b"[" * 200_000, "inbox", "p", DEAD, f"{got.file}.reason.json")
    assert folder.dead_letter_reason("p", got.file) == "no reason recorded"
    for _ in range(2):
        folder.restore_file("p", got.file)
    assert [each.name for each in folder.scan(10)] == ["a.md"]
    assert names_in(folder, "p", DEAD) == []


def test_nothing_is_overwritten(folder: MailFolder) -> None:
    put_file(folder, "p", "a.md", b"first")
    got = claim_one(folder)
    other = folder.root / "inbox" / "p" / PROCESSED / got.file
    other.parent.mkdir()
    other.write_bytes(b"somebody else's")
    folder.put_away("p", got.file, PROCESSED)
    assert {each.read_bytes() for each in other.parent.iterdir()} == {b"first", b"somebody else's"}


@pytest.mark.parametrize(
    "name", ["x" * 250 + ".md", "é" * 120 + ".md", "a\nb.md", "~.md", "-rf.md", "a b%2F.json", "noend"]
)
def test_strange_names_become_printable_names(folder: MailFolder, name: str) -> None:
    put_file(folder, "p", name)
    got = claim_one(folder)
    assert got.file.isprintable()
    assert len(got.file.encode()) <= 255
    assert Path(got.file).suffix == Path(name).suffix
    assert folder.read_message_file("p", got.file) == b"x"


def test_a_name_that_is_no_text_does_not_stop_the_others(folder: MailFolder) -> None:
    put_file(folder, "p", "ok.md")
    strange = (folder.root / "inbox" / "p").joinpath(os.fsdecode(b"\xff.md"))
    strange.write_bytes(b"x")
    os.utime(strange, (1, 1))
    (folder.root / "inbox" / os.fsdecode(b"\xff")).mkdir()
    got = [folder.claim(each) for each in folder.scan(10)]
    assert len([json.dumps(each.file) for each in got if each]) == 2


def test_plans_take_turns(folder: MailFolder) -> None:
    for number in range(300):
        put_file(folder, "flood", f"{number:03}.md")
    put_file(folder, "small", "a.md")
    assert "small" in {each.plan for each in folder.scan(4)}


def test_a_flood_is_scanned_in_pieces(folder: MailFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_folder, "MAX_SCANNED", 50)
    for number in range(220):
        put_file(folder, "p", f"{number}.tmp")
    put_file(folder, "p", "ready.md")
    scans, found = 0, list[ArrivedFile]()
    while not found:
        found, scans = folder.scan(10), scans + 1
        assert scans < 10
    while not folder.is_through:
        folder.scan(10)
    assert [each.name for each in found] == ["ready.md"]


def test_a_missing_inbox_comes_back(folder: MailFolder) -> None:
    (folder.root / "inbox").rmdir()
    assert folder.scan(10) == []
    assert (folder.root / "inbox").is_dir()


def fail_as_full(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_what_was_there(folder: MailFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    below = folder.below
    below.write(b"old", "outbox", "p", "a.json")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail_as_full)
        for act in (below.write, below.create, below.append):
            with pytest.raises(OSError, match="No space") as raised:
                act(b"new", "outbox", "p", "a.json")
        assert format_os_error(raised.value) == "the disk is full"
    assert below.names("outbox", "p") == ["a.json"]
    assert below.read("outbox", "p", "a.json", most=10) == b"old"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "/etc"])
def test_only_names_are_names(tmp_path: Path, name: str) -> None:
    below = SafeDir(tmp_path)
    for act in (lambda: below.read(name, most=1), lambda: below.write(b"", name), lambda: below.remove(name)):
        with pytest.raises(ValueError, match="not the name of a file"):
            act()


def test_links_are_neither_read_nor_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("theirs")
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "link").symlink_to(tmp_path / "target")
    (tmp_path / "box" / "way").symlink_to(tmp_path)
    below = SafeDir(tmp_path / "box")
    for act in (
        lambda: below.read("link", most=9),
        lambda: below.append(b"x", "link"),
        lambda: below.write(b"x", "way", "target"),
    ):
        with pytest.raises(WrongFileTypeError):
            act()
    below.write(b"ours", "link")  # the name is replaced, not what it leads to
    assert ((tmp_path / "target").read_text(), (tmp_path / "box" / "link").read_text()) == ("theirs", "ours")


def test_an_agent_outside_speaks_through_the_outbox(tmp_path: Path) -> None:
    folder = MailFolder(tmp_path / "box", "peer", outside=True)
    folder.open_folder()
    for name in ("ack_m1.json", "task_state_t.json", "t-reply.md"):
        put_file(folder, "p", name)
    assert [(each.plan, each.name) for each in folder.scan(10)] == [("p", "t-reply.md")]
    assert (folder.root / "outbox" / "p" / "t-reply.md").exists()


def test_a_scan_of_a_hundred_thousand_files_costs_as_much_as_one_of_a_few(folder: MailFolder) -> None:
    files = [put_file(folder, "p", f"{number}.md") for number in range(10)]
    for file in files:  # one file has 65,000 names at most
        for number in range(1, 10_000):
            os.link(file, file.with_stem(f"{file.stem}-{number}"))
    took = []
    for _ in range(5):
        began = time.process_time()
        assert len(folder.scan(100)) == 100
        took.append(time.process_time() - began)
    assert min(took) < 0.05
    tracemalloc.start()
    try:
        assert len(folder.scan(100)) == 100
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_plan_that_cannot_be_scanned_holds_up_no_other(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for plan in ("closed", "open"):
        put_file(folder, plan, "a.md")
    scandir = os.scandir

    def refuses(place: Any) -> Any:
        if isinstance(place, int) and Path(f"/proc/self/fd/{place}").readlink().name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refuses)
    for _ in range(3):
        assert [each.plan for each in folder.scan(10)] == ["open"]
    assert folder.refused == {"closed": "closed: no permission: let the bridge's user read, write and enter it"}
    assert len(caplog.records) == 1
    monkeypatch.undo()
    assert len(folder.scan(10)) == 2
    assert folder.refused == {}


def claim_all(folder: MailFolder) -> list[tuple[str, str]]:
    """A scan, and a claim of all that it finds: what was had, by plan and name."""
    had = [folder.claim(each) for each in folder.scan(20)]
    return sorted((each.plan, each.file.partition("~")[2]) for each in had if each is not None)


def test_a_plan_whose_files_cannot_be_claimed_holds_up_no_other_and_heals(
    folder: MailFolder, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(50):
        put_file(folder, "bad", f"{number}.md")
    put_file(folder, "bad", PENDING)
    put_file(folder, "good", "a.md")
    assert claim_all(folder) == [("good", "a.md")]
    for _ in range(5):
        assert claim_all(folder) == []
    assert folder.is_through
    assert folder.has_unclaimed
    why = {"bad": "bad/.pending: expected a folder, not a link or a device"}
    assert (folder.refused, len(caplog.records)) == (why, 1)
    (folder.root / "inbox/bad" / PENDING).unlink()
    had = [each for _ in range(5) for each in claim_all(folder)]
    assert len(had) == 50
    assert (folder.refused, folder.has_unclaimed) == ({}, False)


def test_a_file_that_cannot_be_claimed_holds_up_no_other_of_its_plan(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.md", "foreign.md", "z.md"):
        put_file(folder, "p", name)
    rename = os.rename

    def refuses(source: Any, *args: Any, **more: Any) -> None:
        if source == "foreign.md":
            raise PermissionError(errno.EPERM, "Operation not permitted", source)
        rename(source, *args, **more)

    monkeypatch.setattr(os, "rename", refuses)
    assert claim_all(folder) == [("p", "a.md"), ("p", "z.md")]
    put_file(folder, "p", "later.md")
    assert claim_all(folder) == [("p", "later.md")]
    assert folder.refused == {"p": "p: Operation not permitted: let the bridge's user read, write and enter it"}
    (folder.root / "inbox/p/foreign.md").unlink()
    assert claim_all(folder) == []
    assert (folder.refused, folder.has_unclaimed) == ({}, False)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_what_the_whole_disk_lacks_is_no_fault_of_a_plan(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    put_file(folder, "p", "a.md")

    def refuses(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "rename", refuses)
    with pytest.raises(OSError, match=os.strerror(number)):
        claim_all(folder)
    assert folder.refused == {}


def test_a_pending_folder_that_is_readable_again_is_no_longer_reported(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file(folder, "p", "a.md")
    claim_one(folder)

    def refuses(*_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(SafeDir, "names", refuses)
    assert list(folder.pending_files()) == []
    assert list(folder.refused) == ["p/.pending"]
    monkeypatch.undo()
    assert len(list(folder.pending_files())) == 1
    assert folder.refused == {}


@pytest.mark.parametrize(
    "name", ["a." + "\N{GRINNING FACE}" * 60, "x" * 93 + "." + "\N{GRINNING FACE}" * 40, "x" * 255]
)
def test_the_longest_names_can_be_claimed_and_explained(folder: MailFolder, name: str) -> None:
    put_file(folder, "p", name)
    got = claim_one(folder)
    folder.put_away("p", got.file, DEAD, b'{"why": "so"}')
    assert folder.dead_letter_reason("p", got.file) == "so"
    folder.below.write(b"[" * 200_000, "inbox", "p", DEAD, f"{got.file}.reason.json")
    assert folder.dead_letter_reason("p", got.file) == "no reason recorded"


def test_plans_that_are_not_scanned_are_reported(
    folder: MailFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mail_folder, "MAX_PLANS", 2)
    for plan in "abc":
        put_file(folder, plan, "a.md")
    for _ in range(2):
        assert len({each.plan for each in folder.scan(10)}) == 2
    assert "move finished plans away" in next(iter(folder.refused.values()))
    assert len(caplog.records) == 1
    (folder.root / "inbox" / "a").rename(folder.root / "a")
    assert [each.plan for each in folder.scan(10)] == ["b", "c"]
    assert folder.refused == {}
