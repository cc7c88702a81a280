"""`agents/*.md`: an agent is Markdown with front matter, and the body is its prompt."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml
from pydantic import Field, ValidationError, model_validator

from contracts.agent import DEFAULT_AGENT, Agent
from contracts.limits import LimitOverrides
from contracts.value import Edge
from decisions import builtins
from decisions.mcp import server_of
from settings.file import NATIVE_TOOLS, ModelNames
from settings.problems import ProjectError, first_fault, text_of


class _FrontMatter(Edge):
    name: str | None = Field(default=None, min_length=1, max_length=200)
    description: str = ""
    model: ModelNames = ()
    tools: tuple[str, ...] = NATIVE_TOOLS
    peers: tuple[str, ...] = ()
    limits: LimitOverrides = LimitOverrides()
    mailbox: bool = False  # it lives outside Temporal, and exchanges files

    @model_validator(mode="after")
    def _is_told_nothing_outside(self) -> Self:
        if self.mailbox and (idle := self.model_fields_set - {"name", "description", "mailbox"}):
            raise ValueError(f"an agent behind a mailbox lives outside, and takes no {min(idle)} from here")
        return self


@dataclass(frozen=True)
class Roster:
    """The agents of a project by name, the files they come from, and what of these does not load, a line each."""

    agents: Mapping[str, Agent]
    files: Mapping[str, Path]
    faults: Mapping[Path, ProjectError]

    def check(self) -> None:
        """Raises ProjectError, the first fault."""
        for fault in self.faults.values():
            raise fault


def read_agents(folder: Path, tools: tuple[str, ...], servers: Collection[str] = ()) -> Roster:
    """`servers` are MCP servers, whose tools are looked up where they are offered."""
    default = Agent(name=DEFAULT_AGENT, description="fetches pages and writes files", tools=NATIVE_TOOLS)
    agents, files, faults = {default.name: default}, dict[str, Path](), dict[Path, ProjectError]()
    for path in sorted(folder.glob("*.md")):
        try:
            agent = _read_agent(path)
            _must_be_new(agent, path, files)
            ours = tuple(name for name in agent.tools if server_of(name) not in servers)
            _must_be_known("tool", "tools", ours, tools, path)
        except ProjectError as fault:
            faults[path] = fault
        else:
            agents[agent.name] = agent
            files[agent.name] = path
    there = tuple(sorted({*agents, *(path.stem for path in faults)}))  # a peer whose file is broken is told of once
    for name, path in files.items():
        try:
            _must_be_known("agent", "peers", agents[name].peers, there, path)
        except ProjectError as fault:
            faults[path] = fault
    return Roster(agents, files, faults)


def _must_be_new(agent: Agent, path: Path, files: Mapping[str, Path]) -> None:
    if agent.name in files:
        raise ProjectError(f"{path}: name: agent {agent.name!r} is in {files[agent.name].name} already")


def _must_be_known(kind: str, setting: str, named: tuple[str, ...], there: tuple[str, ...], path: Path) -> None:
    strangers = [name for name in named if name not in there]
    if strangers:
        known = ", ".join(there)
        raise ProjectError(f"{path}: {setting}: there is no {kind} {strangers[0]!r}; the {kind}s are: {known}")


def _read_agent(path: Path) -> Agent:
    """Markdown with front matter; the body is the system prompt."""
    parts = re.match(r"\A---\s*\n(.*?\n)?---\s*\n?(.*)\Z", text_of(path), re.DOTALL)
    if parts is None:
        raise ProjectError(f'{path}: expected front matter between two lines "---"')
    try:
        head = _FrontMatter.model_validate(yaml.safe_load(parts[1] or "") or {})
    except yaml.YAMLError as error:
        raise ProjectError(f"{path}: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        where, expected = first_fault(error)
        raise ProjectError(f"{path}: {'.'.join(where)}: {expected}") from None
    return Agent(
        name=head.name or path.stem,
        description=head.description,
        model=head.model[0] if head.model else None,
        fallbacks=head.model[1:],
        tools=tuple(dict.fromkeys(name for name in head.tools if name not in builtins.NAMES)),
        peers=tuple(dict.fromkeys(head.peers)),
        limits=head.limits,
        prompt=parts[2],
        mailbox=head.mailbox,
    )
