import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.security import Secrets
from perdure.activities.storage.workspace import OutsideWorkspaceError, Workspace, folder_name, run_id_in


def read_bytes(workspace: Workspace, path: str, limit: int) -> bytes:
    with workspace.open(path) as file:
        return file.read(limit)


REFUSED = [
    "",
    ".",
    "/",
    "/etc/passwd",
    "//etc/passwd",
    "..",
    "../x",
    "../../etc/passwd",
    "artifacts/../../x",
    "artifacts/..",
    "~",
    "~/x",
    "~root/x",
    "artifacts/~/x",
    "a\0b",
    "..\\x",
    "a\\b",
    "C:/x",
    "c:x",
    "%2e%2e/x",
    "%2E%2E%2Fx",
    "%252e%252e/x",
    "a%2fb",
    "%5c..",
    "a\nb",
    "a\u202eb",
    "\ud800",
    ".store/ledger",
    ".git/hooks/post-commit",
    ".GIT/config",
    "a/.env",
    ".ssh/id_rsa",
    "\uff0eenv",
    "x" * 256,
    "a/" * 40 + "x",
    "é" * 200 + "/" + "é" * 100 + "/" + "x" * 500,
]


def names_in(folder: Path) -> list[str]:
    return sorted(found.name for found in folder.iterdir())


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "run-1")
    workspace.create()
    return workspace


@pytest.mark.parametrize("path", REFUSED, ids=ascii)
def test_a_path_that_leads_out_or_is_hidden_is_refused_everywhere_in_one_line(workspace: Workspace, path: str) -> None:
    for use in (
        lambda: workspace.resolve(path),
        lambda: read_bytes(workspace, path, 10),
        lambda: workspace.write(path, b""),
    ):
        with pytest.raises(OutsideWorkspaceError) as refusal:
            use()
        assert str(refusal.value).isprintable()


def test_a_refused_path_leaves_nothing_on_the_disk(workspace: Workspace) -> None:
    for path in REFUSED:
        with pytest.raises(OutsideWorkspaceError):
            workspace.write(path, b"x")
    assert [found.name for found in workspace.root.rglob("*")] == ["artifacts"]
    assert names_in(workspace.root.parent) == ["run-1"]


def test_the_folder_whose_name_begins_alike_is_out_of_reach(workspace: Workspace) -> None:
    twin = workspace.root.parent / "run-1-evil"
    twin.mkdir()
    (twin / "x").write_text("secret")
    for path in (f"{twin}/x", "../run-1-evil/x", f"{workspace.root}-evil/x"):
        with pytest.raises(OutsideWorkspaceError):
            read_bytes(workspace, path, 10)


@pytest.mark.parametrize("name", ["trace.jsonl", "context.md", "memory.md", "plan.md", "Plan.MD", "./plan.md"])
def test_a_tool_may_read_but_not_write_what_the_runtime_writes(workspace: Workspace, name: str) -> None:
    workspace.write_own(name, b"ours")
    with pytest.raises(OutsideWorkspaceError):
        workspace.write(name, b"theirs")
    with pytest.raises(OutsideWorkspaceError):
        workspace.resolve(name, writing=True)
    assert read_bytes(workspace, name, 100) == b"ours"


def test_only_the_runtime_reaches_its_store(workspace: Workspace) -> None:
    workspace.write_own(".store/segments/0", b"x")
    assert workspace.read_own(".store/segments/0") == b"x"
    with pytest.raises(OutsideWorkspaceError):
        read_bytes(workspace, ".store/segments/0", 1)
    with pytest.raises(OutsideWorkspaceError):
        workspace.write_own("../x", b"")


def test_what_was_written_is_read_back_and_makes_its_folders(workspace: Workspace) -> None:
    workspace.write("notes/a/b.txt", b"12345")
    workspace.write("notes/a/b.txt", b"1234567")
    assert read_bytes(workspace, "./notes//a/b.txt", 100) == b"1234567"
    assert read_bytes(workspace, "notes/a/b.txt", 3) == b"123"
    assert workspace.resolve("notes/./a/b.txt") == workspace.root / "notes/a/b.txt"


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.write("a.txt", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        workspace.write("a.txt", b"new")
    assert read_bytes(workspace, "a.txt", 10) == b"old"
    assert names_in(workspace.root) == ["a.txt", "artifacts"]


def test_a_reader_sees_the_old_or_the_new_file_never_a_part(workspace: Workspace) -> None:
    versions = [bytes([65 + i]) * 200_000 for i in range(2)]
    workspace.write("a", versions[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for version in versions:
                workspace.write("a", version)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(read_bytes(workspace, "a", 10**6) in versions for _ in range(200))
    finally:
        stop.set()
        writer.join()


def test_links_are_never_followed(workspace: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (workspace.root / "folder").symlink_to(outside)
    (workspace.root / "file").symlink_to(outside / "secret")
    (workspace.root / "dangling").symlink_to(outside / "new")
    for path in ("folder/secret", "folder/new", "file", "dangling", "folder"):
        for use in (
            lambda path=path: workspace.resolve(path),
            lambda path=path: read_bytes(workspace, path, 10),
            lambda path=path: workspace.write(path, b"x"),
            lambda path=path: workspace.append_line(path, "x"),
        ):
            with pytest.raises(OutsideWorkspaceError):
                use()
    assert workspace.list_files(10) == []
    assert names_in(outside) == ["secret"]
    assert (outside / "secret").read_text() == "secret"


def test_a_link_swapped_in_while_we_read_leads_nowhere(workspace: Workspace, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", workspace.root / "a"
    outside.mkdir()
    (outside / "x").write_text("secret")
    inside.mkdir()
    (inside / "x").write_text("mine")
    (tmp_path / "link").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            inside.rename(tmp_path / "aside")
            (tmp_path / "link").rename(inside)
            inside.rename(tmp_path / "link")
            (tmp_path / "aside").rename(inside)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(2000):
            with suppress(OutsideWorkspaceError, FileNotFoundError, NotADirectoryError):
                assert read_bytes(workspace, "a/x", 100) == b"mine"
    finally:
        stop.set()
        swapper.join()


def test_a_link_swapped_in_before_the_write_leads_nowhere(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    make = os.mkdir

    def make_and_swap(name: str, *, mode: int = 0o777, dir_fd: int) -> None:
        make(name, dir_fd=dir_fd)
        os.rmdir(name, dir_fd=dir_fd)
        os.symlink(outside, name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", make_and_swap)
    with pytest.raises(OutsideWorkspaceError):
        workspace.write("a/x", b"x")
    assert names_in(outside) == []


def test_pipes_and_folders_are_not_opened(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "pipe")
    with pytest.raises(OutsideWorkspaceError):
        read_bytes(workspace, "pipe", 1)
    with pytest.raises(IsADirectoryError):
        read_bytes(workspace, "artifacts", 1)
    with pytest.raises(IsADirectoryError):
        workspace.write("artifacts", b"")
    assert names_in(workspace.root) == ["artifacts", "pipe"]


def test_a_file_on_the_way_is_said_to_be_one(workspace: Workspace) -> None:
    workspace.write("a", b"")
    with pytest.raises(NotADirectoryError):
        workspace.write("a/b", b"")
    with pytest.raises(NotADirectoryError):
        read_bytes(workspace, "a/b", 1)


def test_lines_of_many_writers_stay_whole(workspace: Workspace) -> None:
    def write(number: int) -> None:
        for _ in range(50):
            workspace.append_line("trace.jsonl", str(number) * 5000)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = workspace.read_own("trace.jsonl").decode().splitlines()
    assert sorted(lines) == sorted(str(number) * 5000 for number in range(4) for _ in range(50))


def test_a_line_with_a_break_inside_is_not_appended(workspace: Workspace) -> None:
    with pytest.raises(ValueError, match="line break"):
        workspace.append_line("trace.jsonl", "a\nb")


def test_the_listing_is_sorted_bounded_and_shows_nothing_hidden(workspace: Workspace) -> None:
    for path in ("b.txt", "a/z.txt", "a.txt", "a/b/c.txt", "artifacts/x.md"):
        workspace.write(path, path.encode())
    workspace.write_own(".store/x", b"")
    workspace.write_own("a/.hidden", b"")
    everything = workspace.list_files(100)
    assert everything == [(path, len(path)) for path in ("a.txt", "a/b/c.txt", "a/z.txt", "artifacts/x.md", "b.txt")]
    assert everything == sorted(everything)
    assert workspace.list_files(2) == everything[:2]


def test_no_descriptor_is_left_open(workspace: Workspace) -> None:
    def descriptors() -> int:
        return len(names_in(Path("/dev/fd")))

    before = descriptors()
    for _ in range(5):
        workspace.write("a/b/c", b"x")
        read_bytes(workspace, "a/b/c", 1)
        workspace.append_line("t", "x")
        workspace.list_files(1)
        for path in ("a", "a/b/c/d", "nothing/here"):
            with pytest.raises(OSError):
                read_bytes(workspace, path, 1)
    assert descriptors() == before


def test_a_result_is_kept_under_one_name_and_never_replaced_by_another(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "run", Secrets([("DB_PASSWORD", "hunter2hunter2")]))
    workspace.create()
    secret = b"say hunter2hunter2"
    first = workspace.write_artifact("fetch-01", "text/plain", secret)
    other = workspace.write_artifact("fetch-01", "text/plain", b"else")
    assert (first, workspace.write_artifact("fetch-01", "text/plain", secret)) == ("artifacts/fetch-01.txt",) * 2
    assert other == workspace.write_artifact("fetch-01", "text/plain", b"else") != first
    assert workspace.read_own(other) == b"else"
    assert workspace.write_artifact("x" * 200, "text/plain", b"1") != workspace.write_artifact(
        "x" * 200, "text/plain", b"2"
    )


@pytest.mark.parametrize(
    ("stem", "content_type", "path"),
    [
        ("fetch-01", "text/html", "artifacts/fetch-01.html"),
        ("fetch-01", "text/html; charset=utf-8", "artifacts/fetch-01.html"),
        ("a", "application/json", "artifacts/a.json"),
        ("a", "application/ld+json", "artifacts/a.json"),
        ("a", "text/plain", "artifacts/a.txt"),
        ("a", "image/png", "artifacts/a.png"),
        ("a", "who/knows", "artifacts/a.bin"),
        ("../x y/z", "text/plain", "artifacts/-x-y-z.txt"),
        ("", "", "artifacts/artifact.bin"),
    ],
)
def test_an_artifact_has_a_name_by_its_type(workspace: Workspace, stem: str, content_type: str, path: str) -> None:
    assert workspace.artifact_path(stem, content_type) == path
    workspace.write(path, b"")


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("critique-2024_05.v1", "critique-2024_05.v1"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("..", "%2E%2E"),
        (".hidden", "%2Ehidden"),
        ("", "%empty"),
        ("é", "%C3%A9"),
        ("x" * 100, "x" * 100),
    ],
)
def test_ordinary_run_ids_are_folder_names_as_they_are_and_others_are_encoded(run_id: str, name: str) -> None:
    assert folder_name(run_id) == name


def test_long_ids_are_cut_and_stay_different() -> None:
    names = {folder_name("x" * 1000 + tail) for tail in "abc"} | {folder_name("x" * 101)}
    assert len(names) == 4
    assert all(len(name) == 100 for name in names)
    assert folder_name(folder_name("x" * 1000)) not in names


ids = st.text(st.one_of(st.sampled_from("./%~-e\\:\0 mpty2E"), st.characters()))


@given(ids, ids)
def test_different_ids_never_share_a_folder(one: str, other: str) -> None:
    assert (folder_name(one) == folder_name(other)) == (one == other)


@given(ids)
def test_any_id_gives_one_harmless_folder_name(run_id: str) -> None:
    name = folder_name(run_id)
    assert name
    assert not name.startswith(".")
    assert len(name.encode()) <= 100
    assert not set(name) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.%empty")


@given(st.text())
def test_whatever_is_written_stays_below_the_root(path: str) -> None:
    workspace = Workspace(Path("/nowhere/run"))
    try:
        resolved = workspace.resolve(path)
    except OutsideWorkspaceError:
        return
    assert Path(os.path.normpath(resolved)).is_relative_to("/nowhere/run")
    assert resolved != workspace.root


@given(st.text(st.characters(), min_size=1))
def test_a_folder_tells_its_run_except_where_the_id_was_too_long(run_id: str) -> None:
    found = run_id_in(folder_name(run_id))
    assert found == (None if "%-" in folder_name(run_id) else run_id)


@pytest.mark.parametrize("name", ["", "%empty", "%FF", "%2e", ".hidden", "a b", "%41", "x" * 101, "a%"])
def test_a_foreign_folder_name_has_no_run(name: str) -> None:
    assert run_id_in(name) is None
