"""A program is started only as it was accepted, and a listing that repeats itself is read once."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ListToolsResult, Tool

from perdure.contracts.tool import PinnedProgram
from perdure.features.mcp.activities.config import HttpServer, StdioServer, find_program, program_of
from perdure.features.mcp.activities.connection import Connection, McpUnreachableError
from perdure.features.mcp.activities.listing import list_offerable_tools
from perdure.features.mcp.settings import read_servers
from perdure.settings import ProjectError


def executable(path: Path, body: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_relative_entry_of_path_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "project" / "tool")
    executable(tmp_path / "project" / "bin" / "tool")
    good = executable(tmp_path / "good" / "tool")
    monkeypatch.chdir(tmp_path / "project")
    server = StdioServer("s", "tool", cwd=tmp_path / "project")
    for path in (".", "", "bin", ":", f".:bin:{tmp_path}/nowhere"):
        with pytest.raises(FileNotFoundError):
            find_program(server, path)
        assert find_program(server, f"{path}:{tmp_path}/good") == good
    named = StdioServer("s", "bin/tool", cwd=tmp_path / "project")
    assert find_program(named, "") == str(tmp_path / "project" / "bin" / "tool")


@pytest.mark.parametrize(
    ("command", "args", "message"),
    [("b/tool", (), "b/tool, not "), ("a/tool", ("--evil",), "other arguments"), ("a/tool", (), None)],
)
async def test_another_program_or_other_arguments_are_not_started(
    tmp_path: Path, command: str, args: tuple[str, ...], message: str | None
) -> None:
    marker = tmp_path / "started"
    for name in ("a", "b"):
        executable(tmp_path / name / "tool", f": > {marker}")
    accepted = program_of(StdioServer("s", "a/tool", cwd=tmp_path))
    connection = Connection(StdioServer("s", command, args, cwd=tmp_path), accepted=accepted)
    with pytest.raises(McpUnreachableError) as error:
        await connection.tools()
    await connection.close()
    assert marker.exists() is (message is None)
    if message is not None:
        assert message in str(error.value)
        assert "perdure tools --accept s" in str(error.value)


class Pages:
    """A client whose server names these cursors, one after the other, and then the last one for ever."""

    def __init__(self, cursors: list[str | None], names: list[list[str]]) -> None:
        self.cursors, self.names, self.asked = cursors, names, 0

    async def list_tools(self, cursor: str | None) -> ListToolsResult:
        number, self.asked = self.asked, self.asked + 1
        tools = [
            Tool(name=name, input_schema={"type": "object"}) for name in self.names[min(number, len(self.names) - 1)]
        ]
        return ListToolsResult(tools=tools, next_cursor=self.cursors[min(number, len(self.cursors) - 1)])


@pytest.mark.parametrize(
    ("cursors", "names", "tools", "asked"),
    [
        (["same"], [["a"]], ["a"], 2),
        (["same"], [["a"], ["b"], ["c"]], ["a", "b"], 2),
        (["1", "2", "1"], [["a"], ["b"], ["c"], ["d"]], ["a", "b", "c"], 3),
        ([str(n) for n in range(200)], [["a"]], ["a"], 2),
        (["1", None], [["a"], ["a", "b"]], ["a", "b"], 2),
        (["1", "2", None], [["a"], [], ["b"]], ["a", "b"], 3),
    ],
)
async def test_a_listing_that_does_not_move_is_ended(
    cursors: list[str | None], names: list[list[str]], tools: list[str], asked: int, caplog: pytest.LogCaptureFixture
) -> None:
    pages: Any = Pages(cursors, names)
    offered, *_ = await list_offerable_tools(pages, "s")
    assert (list(offered), pages.asked) == (tools, asked)
    assert ("does not end" in caplog.text) is (None not in cursors)


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_the_forms_of_other_agents_are_understood(tmp_path: Path, key: str) -> None:
    path = tmp_path / ".mcp.json"
    path.write_text(json.dumps({key: {"web": {"url": "https://x.test/mcp"}, "run": {"command": "x", "url": "y"}}}))
    servers = read_servers(path, dict(os.environ), [])
    assert isinstance(servers["web"], HttpServer)
    assert isinstance(servers["run"], StdioServer)


def test_a_program_is_pinned_without_its_arguments_in_clear(tmp_path: Path) -> None:
    executable(tmp_path / "tool")
    pinned = program_of(StdioServer("s", "./tool", ("--token", "s3cret"), cwd=tmp_path))
    assert isinstance(pinned, PinnedProgram)
    assert "s3cret" not in pinned.model_dump_json()


async def test_a_slow_first_start_gets_the_time_that_its_entry_gives(tmp_path: Path) -> None:
    executable(tmp_path / "tool", "exec sleep 30")
    path = tmp_path / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": {"s": {"command": "./tool", "start_timeout": 0.5}}}))
    connection = Connection(read_servers(path, {}, [])["s"])
    with pytest.raises(McpUnreachableError, match=r"did not get ready within 0\.5 s"):
        await connection.tools()
    await connection.close()
    path.write_text(json.dumps({"mcpServers": {"s": {"command": "./tool", "start_timeout": "never"}}}))
    faults = list[ProjectError]()
    assert read_servers(path, {}, faults) == {}
    assert "start_timeout" in str(*faults)
