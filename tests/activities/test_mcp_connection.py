"""A connection to an MCP server survives whatever the server does; what comes of a call is typed."""

import asyncio
import base64
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Any
from unittest.mock import patch

import pytest

from perdure.activities.security import Secrets
from perdure.activities.tools.interface import TransientToolError
from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import ToolOutcome
from perdure.features.mcp.activities import stdio
from perdure.features.mcp.activities.config import HttpServer, StdioServer
from perdure.features.mcp.activities.connection import Connection, McpUnreachableError
from perdure.features.mcp.activities.tool import TEXT_ONLY
from tests.activities.calls import error_of
from tests.mcp.client import PATIENCE, McpClient, check
from tests.waiting import until

HOSTILE = Path(__file__).parents[1] / "mcp" / "hostile.py"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(64))).decode()


class Rig(McpClient):
    """A hostile server, the connection to it, and its two tools `look` (a read) and `act` (once)."""

    def __init__(self, folder: Path, mode: str, secrets: Secrets) -> None:
        self.state = folder / "state"
        self.state.mkdir()
        args = (str(HOSTILE), str(self.state), mode)
        env = {"HOSTILE_TOKEN": "token-canary-5521"}
        super().__init__(Connection(StdioServer("h", sys.executable, args, env, folder), secrets.redact), folder)

    async def do(self, what: str, *, tool: str = "look", timeout: float = PATIENCE, **arguments: Any) -> ToolOutcome:
        return await self.run(tool, timeout, do=what, **arguments)

    def calls(self) -> list[dict[str, Any]]:
        path = self.state / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def pids(self) -> list[int]:
        path = self.state / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def define(self, *tools: dict[str, Any]) -> None:
        (self.state / "tools.json").write_text(json.dumps(tools))


@asynccontextmanager
async def open_rig(folder: Path, mode: str = "plain", secrets: Secrets | None = None) -> AsyncIterator[Rig]:
    rig = Rig(folder, mode, secrets or Secrets())
    try:
        yield rig
    finally:
        async with asyncio.timeout(60):
            await rig.connection.close()


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not end by itself is killed after this long, instead of 2 s."""
    monkeypatch.setattr(stdio, "EXIT_GRACE", 0.5)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(tmp_path) as it:
        yield it


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_nothing_is_started_before_the_first_call_and_one_server_serves_all(rig: Rig) -> None:
    assert rig.pids() == []
    outcomes = await asyncio.gather(*(rig.do("x", n=n) for n in range(20)))
    assert [outcome.result for outcome in outcomes] == ["done"] * 20
    assert len(rig.pids()) == 1


async def test_the_server_ends_with_its_connection(rig: Rig) -> None:
    await rig.do("x")
    await rig.connection.close()
    assert not is_alive(rig.pids()[0])


@pytest.mark.parametrize("do", ["stays", "deaf"])
async def test_a_server_that_does_not_mind_is_killed(tmp_path: Path, do: str) -> None:
    async with open_rig(tmp_path, "stays" if do == "stays" else "plain") as rig:
        with suppress(TransientToolError):
            await rig.do(do, timeout=0.5)
        await rig.connection.close()
        assert not is_alive(rig.pids()[0])


HOLDS = """
import asyncio, sys
from perdure.features.mcp.activities.connection import Connection
from perdure.features.mcp.activities.config import StdioServer

async def main():
    await Connection(StdioServer("h", sys.executable, tuple(sys.argv[1:]))).tools()
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_server_ends_when_its_worker_is_killed(tmp_path: Path) -> None:
    async with open_rig(tmp_path) as rig:
        command = (sys.executable, "-c", HOLDS, str(HOSTILE), str(rig.state), "plain")
        worker = await asyncio.create_subprocess_exec(*command, cwd=HOSTILE.parents[2])
        try:
            await until((rig.state / "lists").exists)
        finally:
            worker.kill()
            await worker.wait()
        await until(lambda: not is_alive(rig.pids()[0]))


async def test_a_call_has_its_own_time_and_the_session_survives_it(rig: Rig) -> None:
    with pytest.raises(TransientToolError, match=r"did not answer within 0\.3 s") as caught:
        await rig.do("hang", timeout=0.3)
    assert caught.value.kind == ToolFault.timeout
    assert (await rig.do("x")).result == "done"
    assert len(rig.pids()) == 1


async def test_a_server_that_dies_in_a_read_is_restarted_and_asked_again(rig: Rig) -> None:
    with pytest.raises(TransientToolError, match="ended the connection") as caught:
        await rig.do("die")
    assert caught.value.kind == ToolFault.unreachable
    assert (await rig.do("x")).result == "done"
    assert len(rig.pids()) == 2


async def test_a_server_that_dies_in_a_once_call_leaves_it_in_doubt(rig: Rig) -> None:
    error = error_of(await rig.do("die", tool="act"))
    assert (error.kind, error.retryable) == (ToolFault.in_doubt, False)
    assert "may have happened" in error.message
    assert len(rig.calls()) == 1


async def test_a_server_that_refuses_to_list_its_tools_goes_on_with_the_calls_of_others(rig: Rig) -> None:
    acting = asyncio.create_task(rig.do("later", tool="act"))
    await until(lambda: bool(rig.calls()))
    (rig.state / "refuse").touch()
    with pytest.raises(McpUnreachableError, match="does not say which tools it has: not just now"):
        await rig.connection.tools(refresh=True)
    assert (await acting).result == "done"
    (rig.state / "refuse").unlink()
    assert (await rig.do("x")).result == "done"
    assert len(rig.pids()) == 1


async def test_a_once_call_that_was_not_sent_is_said_not_to_have_been_made(rig: Rig) -> None:
    tool = await rig.tool("act")
    await rig.connection.close()
    rig.connection.server = StdioServer("h", "/nowhere/at-all")
    error = error_of(await tool.run({}, rig.context))
    assert error.kind == ToolFault.unreachable
    assert error.message.endswith("there is no '/nowhere/at-all' here; the call was not made")
    assert rig.calls() == []


async def test_a_server_that_dies_by_every_call_is_not_started_by_every_call(rig: Rig) -> None:
    tool = await rig.tool("look")
    started = 0
    for _ in range(30):
        with suppress(TransientToolError):
            await check(tool)
            await tool.run({"do": "die"}, rig.context)
        started = len(rig.pids())
    assert started < 10
    with pytest.raises(McpUnreachableError, match=r"it is tried again in"):
        await rig.connection.tools()


async def test_a_server_that_has_been_away_for_long_is_still_tried_again(tmp_path: Path) -> None:
    connection = Connection(StdioServer(name="gone", command=str(tmp_path / "nowhere")))
    connection._failures = 2000
    with pytest.raises(McpUnreachableError, match="nowhere"):
        await connection.tools()


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with open_rig(tmp_path, "dead") as rig:
        with pytest.raises(
            McpUnreachableError, match=r"cannot be reached: .*its last words: cannot read the configuration"
        ):
            await rig.connection.tools()


async def test_a_server_that_hangs_at_its_start_is_given_up_and_ended(tmp_path: Path) -> None:
    async with open_rig(tmp_path, "silent") as rig:
        rig.connection.server = replace(rig.connection.server, start_timeout=3.0)
        with pytest.raises(McpUnreachableError, match="did not get ready within 3 s"):
            await rig.connection.tools()
        await until(lambda: bool(rig.pids()) and not is_alive(rig.pids()[0]))


async def test_the_guard_of_a_call_does_not_wait_longer_than_it_may(tmp_path: Path, rig: Rig) -> None:
    tool = await rig.tool("look")
    (tmp_path / "slow").mkdir()
    async with open_rig(tmp_path / "slow", "silent") as slow:
        tool.connection = slow.connection
        with pytest.raises(TransientToolError, match=r"did not get ready within 0\.5 s") as caught:
            await check(tool, timeout=0.5)
        assert caught.value.kind == ToolFault.unreachable


async def test_an_environment_that_lacks_a_variable_starts_nothing() -> None:
    connection = Connection(StdioServer("h", sys.executable, missing="the environment has no X_TOKEN"))
    with pytest.raises(McpUnreachableError, match="the environment has no X_TOKEN"):
        await connection.tools()
    await connection.close()


async def test_a_server_gets_none_of_our_environment(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_OWN_KEY", "canary-8812")
    await rig.do("x")
    environment = environment_of(rig.pids()[0])
    assert b"canary-8812" not in environment
    assert b"token-canary-5521" in environment


@pytest.mark.parametrize("do", ["flood", "endless line"])
async def test_a_flood_ends_in_a_typed_failure_and_costs_bounded_memory(rig: Rig, do: str) -> None:
    before = getrusage(RUSAGE_SELF).ru_maxrss
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            since = process_time()
            await asyncio.sleep(0.01)
            longest = max(longest, process_time() - since)

    beating = asyncio.create_task(beat())
    with pytest.raises(TransientToolError):
        await rig.do(do, timeout=3)
    beating.cancel()
    assert longest < 4  # seconds of the processor: the worker's loop goes on
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 250 * 1024  # KiB


@pytest.mark.parametrize("do", ["not json", "stderr", "ask"])
async def test_noise_beside_the_answer_is_no_harm(rig: Rig, do: str) -> None:
    assert (await rig.do(do)).result == "done"


async def test_answers_to_nothing_are_dropped(rig: Rig) -> None:
    with pytest.raises(TransientToolError, match="did not answer"):
        await rig.do("wrong id", timeout=0.5)
    assert (await rig.do("x")).result == "done"


async def test_what_a_server_says_beside_is_logged_cut_and_counted(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await rig.do("stderr")
        await until(lambda: "are omitted" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if "noise" in record.getMessage()]
    assert 0 < len(lines) <= 100
    assert max(len(line) for line in lines) < 600


async def test_secrets_of_a_server_are_not_in_its_failures(tmp_path: Path) -> None:
    secrets = Secrets([("HOSTILE_TOKEN", "token-canary-5521")])
    async with open_rig(tmp_path, "plain", secrets) as rig:
        await rig.do("blab")
        await until(lambda: "my key is" in rig.connection._last_line)
        with pytest.raises(TransientToolError, match="HOSTILE_TOKEN") as caught:
            await rig.do("die")
        assert "token-canary" not in caught.value.message


async def test_a_large_answer_arrives_whole(rig: Rig) -> None:
    assert (await rig.do("large")).result == "x" * 3_000_000


async def test_structured_content_goes_before_text(rig: Rig) -> None:
    assert (await rig.do("structured")).result == {"n": 1}


async def test_an_answer_that_does_not_fit_its_output_schema_comes_with_a_note(rig: Rig) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    rig.define({"name": "look", "description": "A tool.", "inputSchema": {"type": "object"}, "outputSchema": schema})
    assert (await rig.do("structured")).result == {"n": 1}
    assert (await rig.do("text")).result == {"content": "done", "note": TEXT_ONLY}
    unfit = (await rig.do("unfit")).result
    assert unfit["content"] == {"n": "one"}
    assert "'one' is not of type 'integer'" in unfit["note"]
    image = (await rig.do("image", data=PNG)).result
    assert (image["files"][0]["content_type"], "structured" in image["note"]) == ("image/png", True)
    empty = (await rig.do("nothing")).error
    assert empty is not None
    assert (empty.kind, "the call was made" in empty.message) == (ToolFault.tool_error, True)


async def test_an_output_schema_that_comes_to_no_end_is_given_up(rig: Rig) -> None:
    schema = {"type": "object", "patternProperties": {"^(n|nn)+$": {}}, "additionalProperties": False}
    rig.define({"name": "look", "description": "A tool.", "inputSchema": {"type": "object"}, "outputSchema": schema})
    unfit = (await rig.do("long name")).result
    assert unfit["content"] == {"n" * 60 + "!": 1}
    assert "its schema cannot be applied: the pattern" in unfit["note"]


async def test_a_tool_that_fails_says_so_to_the_model(rig: Rig) -> None:
    error = error_of(await rig.do("fail"))
    assert (error.kind, error.message) == (ToolFault.tool_error, "no such thing")


@pytest.mark.parametrize(("do", "said"), [("error", "it broke"), ("nonsense", "the call was made, but")])
async def test_what_is_no_result_is_an_error_that_is_not_tried_again(rig: Rig, do: str, said: str) -> None:
    error = error_of(await rig.do(do))
    assert error.kind == ToolFault.tool_error
    assert said in error.message


async def test_an_image_becomes_an_artifact_and_never_base64(rig: Rig) -> None:
    outcome = await rig.do("image", data=PNG)
    assert outcome.artifacts == ("artifacts/h__look-01.png",)
    [file] = outcome.result["files"]
    assert file == {"path": "artifacts/h__look-01.png", "content_type": "image/png", "bytes": 72}
    assert (rig.workspace.root / file["path"]).read_bytes() == base64.b64decode(PNG)
    assert PNG[:20] not in outcome.model_dump_json()


async def test_resources_become_artifacts_and_links_stay_links(rig: Rig) -> None:
    outcome = await rig.do("blob", data=base64.b64encode(b"%PDF").decode())
    assert outcome.result["content"] == "see"
    pdf, page, link = outcome.result["files"]
    assert (pdf["path"], pdf["uri"], pdf["bytes"]) == ("artifacts/h__look-01.pdf", "test://blob", 4)
    assert (rig.workspace.root / page["path"]).read_text() == "# page"
    assert link == {"uri": "test://link", "name": "link", "content_type": None}
    assert outcome.artifacts == (pdf["path"], page["path"])


async def test_an_image_that_is_none_costs_only_itself(rig: Rig) -> None:
    outcome = await rig.do("broken image")
    assert outcome.result["files"] == [{"path": None, "content_type": "image/png", "lost": "what came was no base64"}]


LOOK = {"name": "look", "description": "A tool.", "inputSchema": {"type": "object"}}
READ = {"annotations": {"readOnlyHint": True}}


@pytest.mark.parametrize(
    ("now", "kind", "said"),
    [
        ([{**LOOK, **READ, "description": "Another."}], ToolFault.changed, "+description: Another."),
        ([LOOK], ToolFault.changed, "is once now, and this run would repeat it as read"),
        ([{**LOOK, "annotations": {"readOnlyHint": True, "title": "x"}}], ToolFault.changed, '+  "title": "x"'),
        ([], ToolFault.not_found, "has no tool 'look' any more"),
        (
            [{**LOOK, **READ, "inputSchema": {"type": "object", "$ref": "x"}}],
            ToolFault.not_found,
            "is not in the schema",
        ),
    ],
)
async def test_a_change_that_is_announced_stops_the_call(
    rig: Rig, now: list[dict[str, Any]], kind: ToolFault, said: str
) -> None:
    tool = await rig.tool("look")
    rig.define(*now)
    (rig.state / "announce").touch()
    await rig.do("x")  # by which the server tells of it
    await until(lambda: rig.connection._is_stale)
    refused = await check(tool)
    assert error_of(refused).kind == kind
    assert said in error_of(refused).message
    is_asked = kind == ToolFault.changed and "annotations" in now[0]
    assert (error_of(refused).definition is not None) == is_asked
    assert await check(tool, error_of(refused).definition) == (None if is_asked else refused)


async def test_a_change_between_the_check_and_the_call_is_not_called(rig: Rig) -> None:
    look, act = await rig.tool("look"), await rig.tool("act")
    rig.define({**LOOK, **READ, "description": "Another."}, {**LOOK, "name": "act", "description": "Another."})
    await rig.connection.close()
    with pytest.raises(TransientToolError, match="changed its tools just now"):
        await look.run({}, rig.context)
    error = error_of(await act.run({}, rig.context))
    assert error.message.endswith("changed its tools just now; the call was not made")
    assert rig.calls() == []
    now = (await rig.connection.tools())["act"].sha256
    assert (await act.run({}, replace(rig.context, accepts=now))).result == "done"


async def test_a_server_that_is_not_ready_yet_is_given_up_at_once_where_its_worker_stops(tmp_path: Path) -> None:
    async with open_rig(tmp_path, "silent") as rig:
        asking = asyncio.create_task(rig.connection.tools())
        await until(lambda: bool(rig.pids()))
        await rig.connection.close()
        with pytest.raises(McpUnreachableError, match="given up"):
            await asking
        assert not is_alive(rig.pids()[0])


async def test_a_change_is_seen_at_the_next_connection(rig: Rig) -> None:
    tool = await rig.tool("look")
    await rig.connection.close()
    rig.define({**LOOK, **READ, "description": "Another."})
    error = error_of(await check(tool))
    assert error.kind == ToolFault.changed


async def test_tools_that_no_model_could_call_are_refused_by_name(rig: Rig) -> None:
    rig.define(
        {**LOOK, "name": "a.b"},
        {**LOOK, "name": "n" * 62},
        {**LOOK, "name": "outside", "inputSchema": {"type": "object", "$ref": "http://169.254.169.254/"}},
        {
            **LOOK,
            "name": "result-outside",
            "outputSchema": {"type": "object", "properties": {"a": {"$ref": "file:///a"}}},
        },
        {**LOOK, "name": "invalid", "inputSchema": {"type": "object", "minProperties": "many"}},
        {**LOOK, "name": "large", "description": "x" * 70_000},
        {**LOOK, "name": "either", "inputSchema": {"type": "object", "anyOf": [{"required": ["a"]}]}},
        {**LOOK, "name": "brackets", "inputSchema": {"type": "object", "properties": {"filter[id]": {}}}},
        LOOK,
    )
    assert list(await rig.connection.tools()) == ["a.b", "n" * 62, "look"]
    refused = rig.connection.rejected_tools
    assert sorted(refused) == ["brackets", "either", "invalid", "large", "outside", "result-outside"]
    assert "$ref' refers to 'http://169.254.169.254/', which is not in the schema" in refused["outside"]
    assert refused["result-outside"].startswith("its outputSchema: 'properties/a/$ref' refers to 'file:///a'")
    assert "anyOf is not supported at the root" in refused["either"]
    assert "names of properties must match" in refused["brackets"]


async def test_more_definitions_than_any_model_takes_are_checked_up_to_a_bound(rig: Rig) -> None:
    long = {"inputSchema": {"type": "object"}, "description": "d" * (63 * 1024)}
    with patch("perdure.features.mcp.activities.listing.MAX_DEFINITION_BYTES", 5 * 64 * 1024):
        rig.define(*({"name": f"tool-{n}", **long} for n in range(8)))
        tools = await rig.connection.tools()
    assert sorted(tools) == [f"tool-{n}" for n in range(5)]
    assert "the definitions of its server are larger" in rig.connection.rejected_tools["tool-5"]


async def test_all_else_goes_on_while_a_large_listing_is_checked(rig: Rig) -> None:
    begun, end = threading.Event(), threading.Event()

    def looks_long(_: object) -> None:
        begun.set()
        assert end.wait(PATIENCE)

    rig.define(LOOK)
    with patch("perdure.features.mcp.activities.listing.find_schema_error", looks_long):
        listing = asyncio.create_task(rig.connection.tools())
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        end.set()
        assert list(await listing) == ["look"]


async def test_an_invalid_listing_is_reported_with_the_place_of_its_fault(rig: Rig) -> None:
    rig.define({**LOOK, "inputSchema": {"type": "array"}})
    with pytest.raises(McpUnreachableError, match=r"tools\.0\.inputSchema"):
        await rig.connection.tools()


async def test_a_url_without_a_listener_is_unreachable() -> None:
    connection = Connection(HttpServer("web", "http://127.0.0.1:9/mcp"))
    with pytest.raises(McpUnreachableError, match="MCP server web cannot be reached"):
        await connection.tools()
    await connection.close()
