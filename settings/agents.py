"""`agents/*.md`: an agent is Markdown with front matter, and the body is its prompt."""

import re
from pathlib import Path
from typing import Self

import yaml
from pydantic import Field, ValidationError, model_validator

from contracts.agent import DEFAULT_AGENT, Agent
from contracts.limits import LimitOverrides
from contracts.value import Edge
from decisions import builtins
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


def read_agents(folder: Path, tools: tuple[str, ...]) -> dict[str, Agent]:
    default = Agent(name=DEFAULT_AGENT, description="fetches pages and writes files", tools=NATIVE_TOOLS)
    agents, paths = {default.name: default}, dict[str, Path]()
    for path in sorted(folder.glob("*.md")):
        agent = _read_agent(path)
        unknown = [name for name in agent.tools if name not in tools]
        if unknown:
            raise ProjectError(f"{path}: tools: there is no tool {unknown[0]!r}; the tools are: {', '.join(tools)}")
        agents[agent.name] = agent
        paths[agent.name] = path
    for name, path in paths.items():
        strangers = [peer for peer in agents[name].peers if peer not in agents]
        if strangers:
            known = ", ".join(sorted(agents))
            raise ProjectError(f"{path}: peers: there is no agent {strangers[0]!r}; the agents are: {known}")
    return agents


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
