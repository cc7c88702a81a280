from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure.activities.storage.workspace import Workspace
from perdure.activities.tools.files import MAX_LISTED_FILES, MAX_READ_CHARACTERS, ListFiles, ReadFile, WriteFile
from perdure.activities.tools.interface import CallContext, Tool, TransientToolError
from perdure.contracts.tool import Effect, ToolKind, ToolOutcome
from tests.activities.calls import error_of


@pytest.fixture
def context(tmp_path: Path) -> CallContext:
    workspace = Workspace(tmp_path / "run")
    workspace.create()
    return CallContext("r", 1, "r:step:1:request", datetime.now(UTC), workspace)


def kind_of(outcome: ToolOutcome) -> str:
    assert outcome.status == "error"
    assert error_of(outcome).message.isprintable()
    return error_of(outcome).kind


async def test_the_tools_declare_what_they_do_to_the_world() -> None:
    tools: list[Tool] = [ReadFile(), WriteFile(), ListFiles()]
    assert [(tool.route.name, tool.route.effect) for tool in tools] == [
        ("read_file", Effect.read),
        ("write_file", Effect.keyed),
        ("list_files", Effect.read),
    ]
    for tool in tools:
        assert tool.schema.name == tool.route.name
        assert tool.route.kind is ToolKind.native
        assert tool.route.timeout.total_seconds() == 30


async def test_a_file_below_artifacts_is_reported_as_one(context: CallContext) -> None:
    outcome = await WriteFile().run({"path": "./artifacts//critique.md", "content": "é" * 617}, context)
    assert outcome.result == "wrote artifacts/critique.md (1,234 bytes)"
    assert outcome.artifacts == ("artifacts/critique.md",)
    assert (await ReadFile().run({"path": "artifacts/critique.md"}, context)).result == "é" * 617


async def test_a_note_elsewhere_is_no_artifact_and_a_second_write_replaces_it(context: CallContext) -> None:
    for content in ("longer", "short"):
        outcome = await WriteFile().run({"path": "notes.txt", "content": content}, context)
        assert outcome.artifacts == ()
    assert (await ReadFile().run({"path": "notes.txt"}, context)).result == "short"


async def test_a_large_file_is_read_in_stretches_that_lose_nothing(context: CallContext) -> None:
    text = "".join(chr(0x100 + i % 5000) for i in range(3 * MAX_READ_CHARACTERS + 7))
    context.workspace.write("big.txt", text.encode())
    read, offset = "", 0
    while True:
        outcome = await ReadFile().run({"path": "big.txt", "offset": offset, "limit": 10**9}, context)
        stretch, _, note = outcome.result.partition("\n[cut: ")
        read += stretch
        assert len(stretch.encode()) < 64 * 1024
        if not note:
            break
        offset = int(note.removesuffix("]").rpartition(" ")[2])
    assert read == text


async def test_a_limit_cuts_and_says_where_to_read_on(context: CallContext) -> None:
    context.workspace.write("a", b"0123456789")
    outcome = await ReadFile().run({"path": "a", "offset": 2, "limit": 3}, context)
    assert outcome.result == "234\n[cut: characters 2 to 5; read on with offset 5]"


async def test_line_ends_and_broken_utf8_come_as_they_are_or_replaced(context: CallContext) -> None:
    context.workspace.write("a", b"one\r\ntwo\xff\n")
    assert (await ReadFile().run({"path": "a"}, context)).result == "one\r\ntwo\ufffd\n"


async def test_an_offset_beyond_the_end_is_reported_with_the_length(context: CallContext) -> None:
    context.workspace.write("a", b"0123")
    outcome = await ReadFile().run({"path": "a", "offset": 9}, context)
    assert kind_of(outcome) == "invalid_arguments"
    assert "4 characters" in error_of(outcome).message


async def test_an_empty_file_is_said_to_be_empty(context: CallContext) -> None:
    context.workspace.write("a", b"")
    assert "nothing here" in (await ReadFile().run({"path": "a"}, context)).result


async def test_a_binary_file_is_not_poured_into_the_conversation(context: CallContext) -> None:
    context.workspace.write("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    assert kind_of(await ReadFile().run({"path": "a.png"}, context)) == "invalid_arguments"


async def test_mistakes_come_back_as_errors_the_model_can_mend(context: CallContext) -> None:
    context.workspace.write("file", b"")
    read, write = ReadFile(), WriteFile()
    assert kind_of(await read.run({"path": "nothing"}, context)) == "not_found"
    assert kind_of(await read.run({"path": "artifacts"}, context)) == "invalid_arguments"
    assert kind_of(await read.run({"path": "file/x"}, context)) == "invalid_arguments"
    assert kind_of(await write.run({"path": "artifacts", "content": ""}, context)) == "invalid_arguments"
    assert kind_of(await write.run({"path": "file/x", "content": ""}, context)) == "invalid_arguments"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "~/x", ".git/config", "%2e%2e/x", "a\0", "trace.jsonl"])
async def test_paths_that_are_not_the_agents_are_blocked(context: CallContext, path: str) -> None:
    assert kind_of(await WriteFile().run({"path": path, "content": "x"}, context)) == "blocked"
    if path != "trace.jsonl":
        assert kind_of(await ReadFile().run({"path": path}, context)) == "blocked"


async def test_a_failing_disk_may_pass_and_the_message_keeps_the_machines_paths_to_itself(
    context: CallContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device", str(context.workspace.root))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TransientToolError) as failure:
        await WriteFile().run({"path": "a", "content": "x"}, context)
    assert failure.value.message == "a: No space left on device"


async def test_lone_surrogates_from_a_model_do_not_stop_a_write(context: CallContext) -> None:
    assert (await WriteFile().run({"path": "a", "content": "\ud800x"}, context)).status == "ok"


async def test_the_list_has_a_line_a_file_and_says_when_it_is_cut(context: CallContext) -> None:
    assert "no files" in (await ListFiles().run({}, context)).result
    context.workspace.write("b.txt", b"12")
    context.workspace.write("artifacts/a.txt", b"")
    listed = (await ListFiles().run({}, context)).result
    assert [line.split() for line in listed.splitlines()] == [["0", "artifacts/a.txt"], ["2", "b.txt"]]
    for number in range(MAX_LISTED_FILES):
        (context.workspace.root / f"many-{number:04}").touch()
    lines = (await ListFiles().run({}, context)).result.splitlines()
    assert len(lines) == MAX_LISTED_FILES + 1
    assert "more" in lines[-1]
