"""`perdure agents`: the agents of the project."""

import json
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from activities.project import Project
from contracts.agent import Agent
from contracts.model_settings import ModelOptions
from perdure.terminal.command import as_json_option, async_command, console, format_examples, print_error
from perdure.terminal.report import format_path
from settings import Settings, load_settings


@click.command("agents", epilog=format_examples("agents"))
@as_json_option
@async_command()
async def agents_command(as_json: bool) -> int:
    """List the project's agents: models, settings, tools, limits.

    Each tool is shown with its effect. If a file in agents/ does not load, its error is printed and the exit code is 1.
    """
    from perdure.process.project import display_project

    settings = load_settings(strict=False)
    async with display_project(settings) as project:
        rows = [agent_row(agent, settings, project) for agent in project.agents.values()]
    errors = settings.roster.faults
    if as_json:
        broken = [{"file": str(path), "error": str(error)} for path, error in errors.items()]
        click.echo(json.dumps([*rows, *broken]))
    else:
        console.print(agent_table(rows))
        for error in errors.values():
            print_error(str(error))
    return 1 if errors else 0


def agent_row(agent: Agent, settings: Settings, project: Project) -> dict[str, Any]:
    """Return the JSON row of an agent. `file` is None for the built-in one, `models` is empty for an external one."""
    from activities.run.definition import estimate_tools, split_tools

    searched = () if agent.mailbox else split_tools(project, agent)[1]
    path = settings.roster.files.get(agent.name)
    return {
        "agent": agent.name,
        "description": agent.description,
        "models": [] if agent.mailbox else list(project.models_of(agent)),
        "settings": {} if agent.mailbox else dict(project.options.override(agent.options)),
        "tools": {} if agent.mailbox else {name: project.tools[name].route.effect for name in agent.tools},
        "searched": {"tools": len(searched), "tokens": estimate_tools(searched) if searched else 0},
        "peers": list(agent.peers),
        "follow_ups": None if agent.follow_ups is None else {"sessions": list(agent.follow_ups)},
        "limits": agent.limits.model_dump(mode="json", exclude_none=True),
        "mailbox": agent.mailbox,
        "file": str(path) if path else None,
    }


def agent_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("agent", no_wrap=True)
    for heading in ("model", "tools", "peers", "limits"):
        table.add_column(heading, overflow="fold")
    table.add_column("file", overflow="fold")
    for row in rows:
        tools = ", ".join(f"{name} ({effect})" for name, effect in row["tools"].items())
        if row["searched"]["tools"]:
            tools += "; {tools} of them searched ({tokens:,} tokens)".format(**row["searched"])
        limits = ", ".join(f"{name} {_format_limit(value)}" for name, value in row["limits"].items())
        file = format_path(Path(row["file"])) if row["file"] else "built in"
        options = [f"{name} {_format_option(value)}" for name, value in _changed(row["settings"]).items()]
        cells = (", ".join([*row["models"], *options]), tools, ", ".join(row["peers"]), limits, file)
        if row["mailbox"]:
            cells = ("", "external: a mailbox", "", "", file)
        table.add_row(escape(row["agent"]), *map(escape, cells))
    return table


def _changed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of model calls that differ from the defaults."""
    defaults = dict(ModelOptions())
    return {name: value for name, value in options.items() if value != defaults[name]}


def _format_option(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _format_limit(limit: Any) -> str:
    """Format a limit as in an agent file: "5m", "0.5"."""
    return limit.removeprefix("PT").lower() if isinstance(limit, str) and limit.startswith("PT") else f"{limit}"
