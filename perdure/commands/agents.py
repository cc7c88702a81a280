"""`agents`: whom a run can be, and whom it can ask."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from activities.tools.interface import Tool
from contracts.agent import Agent
from perdure.terminal.command import as_json_option, complain, console, examples, go
from perdure.terminal.report import near
from settings import Settings, load


@click.command(epilog=examples("agents"))
@as_json_option
def agents(as_json: bool) -> None:
    """Show the agents of the project: models, tools, peers, limits.

    Of a tool it says what it does to the world. A file of agents/ that does not load is told of in one line, and the
    exit code is 1.
    """
    from perdure.process.project import looked_at

    async def main() -> int:
        settings = load(strict=False)
        async with looked_at(settings) as project:
            rows = [agent_row(agent, settings, project.tools) for agent in project.agents.values()]
        faults = settings.roster.faults
        if as_json:
            broken = [{"file": str(path), "error": str(fault)} for path, fault in faults.items()]
            click.echo(json.dumps([*rows, *broken]))
        else:
            console.print(agent_table(rows))
            for fault in faults.values():
                complain(str(fault))
        return 1 if faults else 0

    go(main)


def agent_row(agent: Agent, settings: Settings, offered: Mapping[str, Tool]) -> dict[str, Any]:
    """An agent for a program. `file` is None of the default one that no file defines, `models` empty of one outside."""
    path = settings.roster.files.get(agent.name)
    return {
        "agent": agent.name,
        "description": agent.description,
        "models": [] if agent.mailbox else _models(agent, settings),
        "tools": {} if agent.mailbox else {name: offered[name].route.effect for name in agent.tools},
        "peers": list(agent.peers),
        "follow_ups": None if agent.follow_ups is None else {"sessions": list(agent.follow_ups)},
        "limits": agent.limits.model_dump(mode="json", exclude_none=True),
        "mailbox": agent.mailbox,
        "file": str(path) if path else None,
    }


def _models(agent: Agent, settings: Settings) -> list[str]:
    """Who answers first, and who is asked where it cannot."""
    return [agent.model, *agent.fallbacks] if agent.model else [settings.model, *settings.fallbacks]


def agent_table(rows: list[dict[str, Any]]) -> Table:
    """What a row does not say is as the project has it."""
    table = Table(box=None, pad_edge=False)
    table.add_column("agent", no_wrap=True)
    for heading in ("model", "tools", "peers", "limits"):
        table.add_column(heading, overflow="fold")
    table.add_column("file", overflow="fold")
    for row in rows:
        tools = ", ".join(f"{name} ({effect})" for name, effect in row["tools"].items())
        limits = ", ".join(f"{name} {_written(value)}" for name, value in row["limits"].items())
        file = near(Path(row["file"])) if row["file"] else "comes with Perdure"
        told = (", ".join(row["models"]), tools, ", ".join(row["peers"]), limits, file)
        if row["mailbox"]:
            told = ("", "lives outside: a mailbox", "", "", file)
        table.add_row(escape(row["agent"]), *(escape(each) for each in told))
    return table


def _written(limit: Any) -> str:
    """As people write it: "5m", "0.5"."""
    return limit.removeprefix("PT").lower() if isinstance(limit, str) and limit.startswith("PT") else f"{limit}"
