"""MCP servers as a user meets them: `.mcp.json`, `perdure tools`, a run, and no process left behind."""

import json
import os
import sys
from pathlib import Path

from perdure.testkit.model_server import ScriptedModel, calls, says
from tests.e2e.projects import MakeProject, Project

HOSTILE = Path(__file__).parents[1] / "mcp" / "hostile.py"
LOOK = {"name": "look", "description": "A tool.", "inputSchema": {"type": "object"}}


def with_server(project: Project) -> Path:
    """Gives the project the server `h` and an agent that may use it. The folder by which a test speaks to it."""
    state: Path = project.folder / "state"
    state.mkdir()
    entry = {"command": sys.executable, "args": [str(HOSTILE), str(state), "plain"], "env": {"H_TOKEN": "${H_TOKEN}"}}
    project.write(".mcp.json", json.dumps({"mcpServers": {"h": entry}}))
    project.write("agents/looker.md", "---\ntools: [h__look]\n---\n")
    return state


def test_tools_are_listed_checked_and_accepted(make_project: MakeProject) -> None:
    project = make_project(H_TOKEN="canary-h-token-99")
    state = with_server(project)
    unseen = project.perdure("tools")
    assert unseen.code == 0
    assert "MCP servers without accepted tools: h;" in unseen.out
    assert not (state / "pids").exists()
    met = project.perdure("tools", "--check")
    assert (met.code, met.out.count("\n")) == (1, 6)  # a new tool takes two lines
    assert "    read ()  A tool.\n" in met.out
    taken = project.perdure("tools", "--accept", "h")
    assert taken.code == 0
    assert "h__look  accepted" in taken.out
    checked = project.perdure("tools", "--check")
    assert (checked.code, checked.out.split("\n")[1:3]) == (0, ["  h__act  as accepted", "  h__look  as accepted"])
    (state / "tools.json").write_text(json.dumps([{**LOOK, "description": "Else.\x1b[2J"}]))
    changed = project.perdure("tools", "--check")
    assert changed.code == 1
    assert "+description: Else.[U+001B][2J" in changed.out
    assert "h__act  removed: its calls fail" in changed.out
    diff = json.loads(project.perdure("tools", "--check", "--json").out)
    assert diff[0]["tools"] == {"act": "gone", "look": "changed"}
    examined = project.perdure("doctor")
    assert examined.code == 1
    assert "h: act gone, look changed" in " ".join(examined.out.split())
    assert project.perdure("tools", "--accept").code == 0
    assert project.perdure("tools", "--check").code == 0
    assert "canary" not in (project.folder / "mcp.lock.json").read_text()


def test_a_tool_that_cannot_be_accepted_is_reported_in_one_line(make_project: MakeProject) -> None:
    project = make_project(H_TOKEN="canary-h-token-99")
    with_server(project)
    for what in ("nope", "h__nope"):
        refused = project.perdure("tools", "--accept", what)
        assert refused.code == 1
        assert refused.err.startswith("perdure: ")
        assert refused.err.count("\n") == 1
    (project.folder / ".mcp.json").write_text('{"mcpServers": {"h": {"command": "no-such-program"}}}')
    down = project.perdure("tools", "--accept", "h")
    assert (down.code, down.out.count("\n")) == (1, 1)  # no word of a lock file that nothing was written to


def test_a_missing_variable_is_reported_where_its_server_is_needed(make_project: MakeProject) -> None:
    project = make_project()
    state = with_server(project)
    assert project.perdure("tools").code == 0
    checked = project.perdure("tools", "--check")
    assert checked.code == 1
    assert "the environment has no H_TOKEN; set it, or write a default" in checked.out
    assert not (state / "pids").exists()


def test_a_run_uses_a_server_and_leaves_none_behind(make_project: MakeProject) -> None:
    script = [calls(("h__look", {"do": "image", "data": "iVBORw0KGgo="})), says("I have looked.")]
    with ScriptedModel(script) as model:
        project = make_project(H_TOKEN="canary-h-token-99", ANTHROPIC_BASE_URL=model.base_url)
        state = with_server(project)
        done = project.perdure("run", "--json", "--agent", "looker", "look at it")
    assert done.code == 0, done.err
    end = json.loads(done.out.splitlines()[-1])
    assert end["event"]["payload"]["outcome"] == "I have looked."
    assert (project.folder / "mcp.lock.json").exists()
    [picture] = project.home.glob("runs/*/artifacts/h__look-01.png")
    assert picture.read_bytes() == b"\x89PNG\r\n\x1a\n"
    offered = [tool["name"] for tool in model.requests[0]["tools"]]
    assert "h__look" in offered
    assert "h__act" not in offered
    assert not any(_lives(int(pid)) for pid in (state / "pids").read_text().split())


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
