"""Built-in and native tools: a project can remove them and require approvals for them."""

import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pytest

from perdure.activities.project import Project
from perdure.activities.run.definition import build_definition
from perdure.contracts.run.state import Call, RunState
from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.decisions.run.next_calls import needs_approval
from perdure.decisions.tools import FOLLOW_UP_TOOLS, JOURNAL_TOOLS, gated_routes
from perdure.process.project import build_project
from perdure.settings import ProjectError
from perdure.settings.agents import read_agents
from perdure.settings.tools import NATIVE_TOOLS
from tests.projects import load_project

ALWAYS = 'approval = "always"\n'


async def project(folder: Path, toml: str = "", agent: str = "") -> Project:
    async with httpx.AsyncClient() as client:
        return build_project(load_project(folder, toml, head=agent), client)


@pytest.mark.parametrize("name", ["fetch", "read_file", "write_file", "list_files"])
async def test_a_native_tool_takes_an_approval_and_its_timeout(tmp_path: Path, name: str) -> None:
    made = await project(tmp_path, f'[tools.{name}]\n{ALWAYS}approval_timeout = "1h"\n')
    route = made.tools[name].route
    assert (route.approval, route.approval_timeout) == (Approval.always, timedelta(hours=1))
    others = (tool.route.approval for other, tool in made.tools.items() if other != name)
    assert set(others) == {Approval.never}


@pytest.mark.parametrize(
    ("gate", "tool", "kind", "asks"),
    [
        ("notify", "workflow_task_create", "notify", True),
        ("notify", "workflow_task_create", "wait", False),
        ("notify", "workflow_create", None, False),
        ("workflow_task_create", "workflow_task_create", "wait", True),
        ("workflow_create", "workflow_create", None, True),
        ("workflow_wait_for_reply", "workflow_wait_for_reply", None, True),
        ("delegate", "delegate", None, True),
    ],
)
async def test_built_in_tools_that_reach_beyond_the_run_can_need_approval(
    tmp_path: Path, gate: str, tool: str, kind: str | None, *, asks: bool
) -> None:
    made = await project(tmp_path, f"[tools.{gate}]\n{ALWAYS}")
    call = Call(
        tool_use_id="u", tool=tool, kind=ToolKind.builtin, effect=Effect.keyed, step=1, arguments={"kind": kind}
    )
    state = SimpleNamespace(tools=made.builtins, approved_tools=(), planned=None)
    assert needs_approval(cast("RunState", state), call) is asks


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        (f'[tools.fetch]\n{ALWAYS}timeout = "1h"\n', "tools.fetch.timeout: no such setting"),
        (f'[tools.notify]\n{ALWAYS}effect = "read"\n', "tools.notify.effect: no such setting"),
        (
            '[tools.fetch]\nkind = "python"\ntarget = "a:b"\n',
            "'fetch' is the name of a built-in tool",
        ),
        (f"[tools.finish]\n{ALWAYS}", "'finish' takes no approval; those that do: fetch,"),
        (f"[tools.get_run_journal]\n{ALWAYS}", "'get_run_journal' takes no approval"),
        (f'[tools.mine]\nkind = "builtin"\n{ALWAYS}', "'mine' takes no approval"),
        ('[tools.fetch]\napproval_timeout = "1h"\n', 'approval_timeout needs approval = "always"'),
        ('[fetch]\nonly_hosts = ["https://example.com/"]\n', "expected a host such as example.com"),
    ],
)
async def test_a_wrong_tool_table_is_rejected_in_one_line(tmp_path: Path, toml: str, words: str) -> None:
    with pytest.raises(ProjectError, match=re.escape(words)):
        await project(tmp_path, toml)


async def test_an_agent_without_a_journal_has_no_journal_tools(tmp_path: Path) -> None:
    made = await project(tmp_path, agent="tools: []\njournal: false")
    without = build_definition(made, made.agents["a"], may_delegate=True)
    with_one = build_definition(made, made.agents["default"], may_delegate=True)
    assert {tool.name for tool in without.tools}.isdisjoint({*JOURNAL_TOOLS, "fetch", "read_file", "write_file"})
    assert {tool.name for tool in with_one.tools}.issuperset(JOURNAL_TOOLS)
    assert "journal" not in without.system


@pytest.mark.parametrize(
    ("front", "sessions"),
    [
        ("tools: []", None),
        ("follow_ups: false", None),
        ("follow_ups:", ()),
        ("follow_ups: true", ()),
        ("follow_ups: {}", ()),
        ("follow_ups: {sessions: [ops, x-*, ops]}", ("ops", "x-*")),
    ],
)
async def test_only_an_agent_with_follow_ups_is_offered_their_tools(
    tmp_path: Path, front: str, sessions: tuple[str, ...] | None
) -> None:
    made = await project(tmp_path, agent=front)
    offered = {tool.name for tool in build_definition(made, made.agents["a"], may_delegate=True).tools}
    by_default = {tool.name for tool in build_definition(made, made.agents["default"], may_delegate=True).tools}
    assert made.agents["a"].follow_ups == sessions
    assert offered & {*FOLLOW_UP_TOOLS} == (set() if sessions is None else {*FOLLOW_UP_TOOLS})
    assert by_default.isdisjoint(FOLLOW_UP_TOOLS)


@pytest.mark.parametrize(
    ("front", "words"),
    [
        ("follow_ups: [ops]", "line 2: follow_ups: expected {}, or {sessions: [...]}"),
        ("follow_ups: {session: [ops]}", "line 2: follow_ups.session: no such setting"),
        ("follow_ups: {sessions: ops}", "line 2: follow_ups.sessions: "),
        ("follow_ups: {sessions: ['']}", "line 2: follow_ups.sessions.0: "),
        ("mailbox: true\nfollow_ups: {}", "lives outside and takes no follow_ups"),
    ],
)
async def test_front_matter_that_misstates_follow_ups_is_refused_in_a_line(
    tmp_path: Path, front: str, words: str
) -> None:
    (tmp_path / "a.md").write_text(f"---\n{front}\n---\nYou are A.\n", encoding="utf-8")
    [error] = read_agents(tmp_path, NATIVE_TOOLS).faults.values()
    assert words in str(error)


async def test_a_gate_that_never_asks_changes_nothing(tmp_path: Path) -> None:
    made = await project(tmp_path, '[tools.fetch]\napproval = "never"\n[tools.notify]\n')
    assert made.builtins == gated_routes({})
    assert made.tools["fetch"].route.approval is Approval.never


HTTP = '[tools.look]\nkind = "http"\nurl = "http://127.0.0.1:9/"\ndescription = "looks"\n'


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{ type = "object", anyOf = [{ required = ["a"] }] }', "anyOf is not supported at the root"),
        ('{ type = "object", properties = { "filter[id]" = {} } }', "names of properties must match"),
        ('{ type = "object", minProperties = "many" }', "'many' is not of type"),
        ('{ type = "object", "$ref" = "file:///a.json" }', "input_schema: '$ref' refers to 'file:///a.json', which"),
    ],
)
async def test_a_tool_of_the_project_that_no_model_takes_is_refused_by_name(
    tmp_path: Path, schema: str, words: str
) -> None:
    with pytest.raises(ProjectError, match=rf"tools\.look: models do not accept this tool: .*{re.escape(words)}"):
        await project(tmp_path, f"{HTTP}input_schema = {schema}\n")


async def test_a_python_tool_is_held_to_the_same_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_names.py").write_text('def look(größe: int) -> int:\n    """Looks."""\n', "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ProjectError, match="names of properties must match"):
        await project(tmp_path, '[tools.look]\nkind = "python"\ntarget = "odd_names:look"\n')


async def test_an_agent_may_have_its_tools_searched_and_a_python_without_fts5_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = '[tools.ask]\nkind = "signal"\ndescription = "Asks."\ninput_schema = {type = "object"}\n'
    made = await project(tmp_path, toml, "tools: [fetch, ask]\nsearch_tools: true")
    definition = build_definition(made, made.agents["a"], may_delegate=False)
    assert [tool.name for tool in definition.searched] == ["ask"]
    assert [tool.name for tool in definition.tools][-3:] == ["search_tools", "call_tool", "fetch"]
    assert "There are 1: 1 of this project." in definition.tools[-3].description
    monkeypatch.setattr("perdure.process.project.has_full_text_search", lambda: False)
    with pytest.raises(
        ProjectError, match=r"agent a: its tools are searched, and the SQLite of this Python has no FTS5"
    ):
        await project(tmp_path, toml, "tools: [fetch, ask]\nsearch_tools: true")
    made = await project(tmp_path, toml, "tools: [fetch, ask]\nsearch_tools: false")
    assert build_definition(made, made.agents["a"], may_delegate=False).tools[-1].name == "ask"
