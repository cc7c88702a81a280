"""The project of `tests/crossing` has every setting, field and kind of tool there is: a new one is crossed, too."""

import tomllib
from typing import get_args

import yaml

from perdure.contracts.model_settings import Pace
from perdure.contracts.policy import Verdict
from perdure.contracts.tool import ToolKind
from perdure.settings.agents import _FrontMatter
from perdure.settings.file import ProviderSettings, file_model
from tests.crossing.doors import DOORS
from tests.crossing.pairs_place import ANSWERS, STARTS
from tests.crossing.pairs_project import CONFIG as PAIRS_CONFIG
from tests.crossing.project import AGENTS, CONFIG, GITHUB_SECRET
from tests.crossing.rows import PARAMETERS, all_pairs, is_possible, make_rows, pairs_in

# Fields of an agent that only a real provider takes, or that are another form of a crossed one.
UNCROSSED_FIELDS = {
    "server_tools": "they are the provider's own; tests/workflows/test_server_tools.py",
    "thinking": "with `temperature` it is refused; the shape `thoughtful` has thoughts",
    "effort": "a part of the request body, as `extra` is",
    "top_p": "with `temperature` it is refused",
}
UNCROSSED_SECTIONS = {
    "mcp": "it needs a server with a login: tests/workflows/test_mcp_login.py",
    "push": "it needs a task of A2A: tests/a2a/test_push.py",
}
# Of the pairs of `make crossing`.
UNPAIRED_SECTIONS = {
    "budget": "no row reaches one; tests/crossing has it, and R31",
    "mcp": UNCROSSED_SECTIONS["mcp"],
    "push": UNCROSSED_SECTIONS["push"],
    "features": "none is installed; tests/e2e/test_pause_example.py plays one through the doors",
    "fetch": "no row fetches; tests/crossing has it",
    "start": "a run begins without it in each row; tests/crossing has it",
}
UNPAIRED_VERDICTS = {
    "allow": "as without a policy",
    "deny": "no effect that could be lost, and nobody is asked; tests/crossing has it",
}
CLOUDS = {"bedrock": "the Messages API with other credentials", "vertex": "same", "relay": "no model: tests/crossing"}


def read_config() -> dict[str, object]:
    return tomllib.loads(
        CONFIG.format(model="http://127.0.0.1:1", sink="http://127.0.0.1:2", elsewhere="http://127.0.0.1:3")
    )


def test_each_section_of_a_project_is_crossed() -> None:
    sections = set(file_model().model_fields) - set(UNCROSSED_SECTIONS)
    assert sections - set(read_config()) == set(), "add it to CONFIG in tests/crossing/project.py"
    assert GITHUB_SECRET


def test_each_field_of_an_agent_is_crossed() -> None:
    used = {field for head in AGENTS.values() for field in yaml.safe_load(head)} | {"description"}
    assert set(_FrontMatter.model_fields) - used - set(UNCROSSED_FIELDS) == set(), "add it to AGENTS"
    assert not used & set(UNCROSSED_FIELDS)


def test_each_kind_of_tool_is_crossed() -> None:
    tools = read_config()["tools"]
    assert isinstance(tools, dict)
    kinds = {tool["kind"] for tool in tools.values()} | {ToolKind.mcp, ToolKind.native, ToolKind.builtin}
    assert kinds == set(ToolKind)
    assert all(name in AGENTS["clerk"] for name in ("h__look", "write_file"))


def test_the_rows_have_each_pair_of_values_that_there_can_be() -> None:
    rows = make_rows()
    assert all_pairs() == {pair for row in rows for pair in pairs_in(row.values)}
    assert all(is_possible(row.values) for row in rows)


def test_the_pairs_have_each_setting_that_has_few_values() -> None:
    config = tomllib.loads(PAIRS_CONFIG.format(queue="q", model="http://127.0.0.1:1", beat=1, fuses="true"))
    sections = set(config) | {"notify", "tools"}
    assert set(file_model().model_fields) - sections - set(UNPAIRED_SECTIONS) == set(), "add it to rows.py"
    assert not sections & set(UNPAIRED_SECTIONS)
    assert set(PARAMETERS["pace"]) == set(Pace)
    assert set(PARAMETERS["policy"]) - {"none"} == set(Verdict) - set(UNPAIRED_VERDICTS)
    assert set(PARAMETERS["wire"]) == set(get_args(ProviderSettings.model_fields["kind"].annotation)) - set(CLOUDS)


def test_the_pairs_have_each_way_and_each_door() -> None:
    assert set(PARAMETERS["door"]) - set(DOORS) == {"MCP server"}
    assert set(DOORS) <= set(PARAMETERS["door"])
    assert (set(PARAMETERS["start"]), set(PARAMETERS["answer"])) == (set(STARTS), set(ANSWERS))
