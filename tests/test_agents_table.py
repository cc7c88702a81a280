"""`perdure agents`: what its table shows of an agent with many tools, and its pace."""

from pathlib import Path

from rich.console import Console

from perdure.commands.show import MAX_SHOWN_TOOLS, agent_row, agent_table
from perdure.process.project import display_project
from perdure.settings import load_settings

AGENT = "---\ndescription: d\npace: batch\ntools: [{tools}]\n---\nDo.\n"
TOOL = '[tools.t{number}]\nkind = "signal"\neffect = "read"\ndescription = "d"\ninput_schema = {{ type = "object" }}\n'


async def test_many_tools_are_counted_and_the_pace_is_shown(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(60)]
    (tmp_path / "perdure.toml").write_text("".join(TOOL.format(number=number) for number in range(60)))
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "a.md").write_text(AGENT.format(tools=", ".join(names)))
    settings = load_settings({"ANTHROPIC_API_KEY": "sk-test"}, tmp_path)
    async with display_project(settings) as project:
        row = agent_row(project.agents["a"], settings, project)
    assert (row["pace"], len(row["tools"])) == ("batch", 60)
    console = Console(width=4000)
    with console.capture() as captured:
        console.print(agent_table([row]))
    assert "pace batch" in captured.get()
    assert f"and {60 - MAX_SHOWN_TOOLS} more (perdure agents --json)" in captured.get()
    assert "t59" not in captured.get()
