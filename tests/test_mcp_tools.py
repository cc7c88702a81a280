"""`.mcp.json`, `mcp.lock.json` and perdure.toml together: which tools a worker offers, and to which agents."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.contracts.tool import Approval, Effect, PinState, ToolKind
from perdure.features.mcp.activities.config import HttpServer, StdioServer
from perdure.features.mcp.activities.lock import change_lock
from perdure.features.mcp.offer import accept_tools, offer_accepted_tools, offered_tools, read_accepted, server_statuses
from perdure.features.mcp.rules import pin_tool
from perdure.settings import ProjectError, Settings, load_settings
from perdure.settings.problems import raise_all

HOSTILE = Path(__file__).parent / "mcp" / "hostile.py"
LOOK = {"name": "look", "description": "A tool.", "inputSchema": {"type": "object"}}
READ = {"annotations": {"readOnlyHint": True}}
NOBODY = {"command": "/nowhere/at-all"}


class Folder:
    """A project with the hostile server under the name `h`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        self.state.mkdir()
        (path / "agents").mkdir()
        self.servers(h={"command": sys.executable, "args": [str(HOSTILE), str(self.state), "plain"]})
        self.agent("h__*")

    def servers(self, **entries: Any) -> None:
        (self.path / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))

    def agent(self, *tools: str) -> None:
        (self.path / "agents" / "a.md").write_text(f"---\ntools: [{', '.join(tools)}]\n---\n")

    def toml(self, text: str) -> None:
        (self.path / "perdure.toml").write_text(text)

    def define(self, *tools: dict[str, Any]) -> None:
        (self.state / "tools.json").write_text(json.dumps(tools))

    def load(self, **env: str) -> Settings:
        settings = load_settings(env, self.path)
        raise_all([*settings.roster.faults.values()])
        return settings

    def started(self) -> int:
        path = self.state / "pids"
        return len(path.read_text().split()) if path.exists() else 0

    async def see(self) -> None:
        async with offered_tools(self.load()):
            pass


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def test_a_server_is_started_when_it_is_first_seen_and_then_only_when_it_is_called(folder: Folder) -> None:
    for _ in range(2):
        async with offered_tools(folder.load()) as offer:
            assert list(offer.tools) == ["h__look", "h__act"] or sorted(offer.tools) == ["h__act", "h__look"]
            routes = {tool.route.name: tool.route for tool in offer.tools.values()}
            assert {route.kind for route in routes.values()} == {ToolKind.mcp}
            assert (routes["h__look"].effect, routes["h__act"].effect) == (Effect.read, Effect.once)
            assert sorted(offer.agents["a"].tools) == ["h__act", "h__look"]
            assert not set(offer.agents["default"].tools) & set(offer.tools)
    assert folder.started() == 1
    assert sorted(read_accepted(folder.load())["h"]) == ["act", "look"]


async def test_pinned_tools_are_offered_while_their_server_is_down(folder: Folder) -> None:
    await folder.see()
    folder.servers(h=NOBODY)
    async with offered_tools(folder.load()) as offer:
        assert sorted(offer.tools) == ["h__act", "h__look"]


async def test_a_server_that_was_never_seen_and_is_down_stops_a_worker_whose_agent_uses_it(folder: Folder) -> None:
    folder.servers(h=NOBODY)
    with pytest.raises(ProjectError, match="MCP server h cannot be reached: there is no '/nowhere/at-all' here"):
        await folder.see()


async def test_a_server_that_no_agent_uses_is_not_started(folder: Folder) -> None:
    folder.agent("fetch")
    await folder.see()
    assert folder.started() == 0


async def test_an_allow_list_names_tools_one_by_one(folder: Folder) -> None:
    folder.agent("h__look", "fetch")
    async with offered_tools(folder.load()) as offer:
        assert offer.agents["a"].tools == ("h__look", "fetch")


async def test_a_tool_that_is_not_in_the_lock_file_is_refused_by_name(folder: Folder) -> None:
    folder.agent("h__lok")
    with pytest.raises(
        ProjectError,
        match=r"a\.md, line 2: .*\.json has no 'h__lok' \(did you mean h__look\?\); of h it has: h__(look|act), h__",
    ):
        await folder.see()


def test_a_tool_of_no_server_is_refused_by_name(folder: Folder) -> None:
    folder.agent("g__*")
    with pytest.raises(ProjectError, match=r"there is no tool 'g__\*'"):
        folder.load()


def test_offering_accepted_tools_starts_no_server(folder: Folder) -> None:
    assert offer_accepted_tools(folder.load()).tools == {}
    assert folder.started() == 0


@pytest.mark.parametrize("effect", ["keyed", "once"])
async def test_local_settings_make_stricter(folder: Folder, effect: str) -> None:
    folder.toml(f'[tools.h__look]\nkind = "mcp"\neffect = "{effect}"\napproval = "always"\ntimeout = "5s"\n')
    async with offered_tools(folder.load()) as offer:
        route = offer.tools["h__look"].route
        assert (route.effect, route.approval, route.timeout.seconds) == (Effect(effect), Approval.always, 5)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('[tools.h__act]\nkind = "mcp"\neffect = "read"\n', "make it once, and read would be looser"),
        ('[tools.h__act]\nkind = "mcp"\neffect = "keyed"\n', "make it once, and keyed would be looser"),
        ('[tools.h__atc]\nkind = "mcp"\n', "has no 'h__atc'"),
        ('[tools.g__act]\nkind = "mcp"\n', "there is no MCP server 'g'"),
        ('[tools.act]\nkind = "mcp"\n', "there is no MCP server 'act'"),
        ('[tools.h__act]\nkind = "mcp"\nurl = "http://x"\n', "tools.h__act.url: no such setting"),
        ('[tools.h__act]\nkind = "mcp"\napproval_timeout = "1m"\n', "approval_timeout needs"),
        (
            '[tools.h__act]\nkind = "python"\ntarget = "m:f"\n',
            'its kind must be "mcp"',
        ),
    ],
)
async def test_settings_that_cannot_hold_are_refused_in_a_line(folder: Folder, toml: str, said: str) -> None:
    folder.toml(toml)
    with pytest.raises(ProjectError) as caught:
        await folder.see()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_server_status_lists_new_changed_and_gone_tools(folder: Folder) -> None:
    folder.define({**LOOK, **READ}, {**LOOK, "name": "act"}, {**LOOK, "name": "left"})
    await folder.see()
    assert [each.is_settled for each in await server_statuses(folder.load())] == [True]
    folder.define({**LOOK, **READ}, {**LOOK, "name": "act", "description": "Else."}, {**LOOK, "name": "come"})
    [standing] = await server_statuses(folder.load())
    assert standing.tools == {
        "act": PinState.changed,
        "come": PinState.new,
        "left": PinState.gone,
        "look": PinState.pinned,
    }
    assert "+description: Else." in standing.differences["act"]
    assert not standing.is_settled


async def test_one_tool_is_accepted_and_the_others_stay(folder: Folder) -> None:
    await folder.see()
    folder.define({**LOOK, **READ, "description": "1"}, {**LOOK, "name": "act", "description": "2"})
    [before] = await accept_tools(folder.load(), "h__act")
    assert before.tools == {"act": PinState.changed}
    [now] = await server_statuses(folder.load())
    assert now.tools == {"act": PinState.pinned, "look": PinState.changed}


async def test_a_tool_that_is_gone_is_taken_out(folder: Folder) -> None:
    await folder.see()
    folder.define({**LOOK, **READ})
    await accept_tools(folder.load(), "h__act")
    assert sorted(read_accepted(folder.load())["h"]) == ["look"]


async def test_a_server_that_is_down_keeps_what_it_had(folder: Folder) -> None:
    await folder.see()
    folder.servers(h=NOBODY)
    [standing] = await accept_tools(folder.load(), None)
    assert standing.down is not None
    assert sorted(read_accepted(folder.load())["h"]) == ["act", "look"]


@pytest.mark.parametrize(("what", "said"), [("g", "no MCP server 'g'"), ("h__none", "has no tool 'none'")])
async def test_unknown_tools_cannot_be_accepted(folder: Folder, what: str, said: str) -> None:
    with pytest.raises(ProjectError, match=said):
        await accept_tools(folder.load(), what)


STDIO = {"command": "x"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", ".mcp.json: "),
        ("[]", "expected {"),
        ('{"mcpServers": []}', "expected {"),
        ('{"mcpServers": {"a": 1}}', "mcpServers.a: expected an object"),
        ('{"mcpServers": {"a": {}}}', "mcpServers.a.command"),
        ('{"mcpServers": {"a": {"command": ["x"]}}}', "mcpServers.a.command"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"N": 1}}}}', "mcpServers.a.env.N"),
        ('{"mcpServers": {"a b": {"command": "x"}}}', "rename the server"),
        ('{"mcpServers": {"a__b": {"command": "x"}}}', "rename the server"),
        ('{"mcpServers": {"a": {"type": "sse", "url": "http://x"}}}', '"sse" is deprecated'),
        ('{"mcpServers": {"a": {"type": "ws"}}}', "not 'ws'"),
        ('{"mcpServers": {"a": {"type": "http"}}}', "mcpServers.a.url"),
        ('{"mcpServers": {"a": {"type": "http", "url": "file:///etc"}}}', "mcpServers.a.url"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "mcpServers.a: it is there twice"),
        ("[" * 100_000, "nested more than 50 levels deep"),
    ],
)
def test_a_wrong_file_of_servers_is_rejected_in_one_line(folder: Folder, text: str, said: str) -> None:
    (folder.path / ".mcp.json").write_text(text)
    with pytest.raises(ProjectError) as caught:
        folder.load()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_variables_are_expanded_and_unknown_fields_ignored(folder: Folder) -> None:
    folder.agent("fetch")
    folder.servers(
        a={"command": "${BIN}/x", "args": ["${N:-1}", "$N"], "env": {"T": "${T:-}"}, "disabled": True, "cwd": "sub"},
        b={"type": "streamable-http", "url": "https://${HOST:-h}/mcp", "headers": {"X-Key": "${K}"}, "oauth": {}},
    )
    a, b = folder.load(BIN="/bin", K="0123456789").servers.values()
    assert isinstance(a, StdioServer)
    assert isinstance(b, HttpServer)
    assert (a.command, a.args, a.env, a.cwd) == ("/bin/x", ("1", "$N"), {"T": ""}, folder.path / "sub")
    assert (b.url, b.headers, b.missing) == ("https://h/mcp", {"X-Key": "0123456789"}, None)


async def test_a_missing_variable_is_reported_when_the_server_is_needed(folder: Folder) -> None:
    folder.servers(h={**STDIO, "env": {"KEY": "${NO_SUCH}"}})
    settings = folder.load()  # commands that need no server do not mind
    [standing] = await server_statuses(settings)
    assert standing.down is not None
    assert "mcpServers.h: the environment has no NO_SUCH" in standing.down


def test_values_given_to_servers_are_secret(folder: Folder) -> None:
    folder.agent("fetch")
    folder.servers(
        a={**STDIO, "env": {"ANY": "canary-one-11", "HOME": "/home/eva/files", "N": "12345678"}},
        b={"type": "http", "url": "https://eva:canary-four@h/", "headers": {"Authorization": "Bearer canary-two-22"}},
    )
    settings = folder.load()
    text = settings.secrets.redact("canary-one-11 canary-two-22 eva:canary-four@ /home/eva/files 12345678")
    assert "canary" not in text
    assert text.endswith("/home/eva/files 12345678")
    assert "canary" not in repr(settings)


async def test_a_tool_that_models_do_not_take_is_left_out_with_its_reason(folder: Folder) -> None:
    """Of a server that nobody has seen, and of a lock file that was written before anybody looked."""
    odd: dict[str, Any] = {**LOOK, "name": "odd", "inputSchema": {"type": "object", "anyOf": [{"required": ["a"]}]}}
    folder.define(LOOK, odd)
    await folder.see()
    (found,) = await server_statuses(folder.load())
    assert list(found.tools) == ["look"]
    assert "anyOf is not supported at the root" in found.refused["odd"]
    kept = pin_tool("", odd["inputSchema"], {})
    change_lock(folder.path / "mcp.lock.json", lambda pins: pins["h"].update(odd=kept))
    for named in (["h__*"], ["h__look", "h__odd"]):
        folder.agent(*named)
        async with offered_tools(folder.load()) as offer:
            assert (list(offer.tools), offer.agents["a"].tools) == (["h__look"], ("h__look",))
