"""`agents/*.md`: an agent is Markdown with front matter, and the body is its prompt."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from contracts.agent import DEFAULT_AGENT, Agent
from contracts.conversation import MAX_ID_LENGTH
from contracts.models import Edge
from contracts.run.limits import LimitOverrides
from decisions import builtin_tools
from decisions.mcp import server_of
from settings.file import LimitSettings, ModelNames
from settings.problems import ProjectError, first_fault, meant, text_of, yaml_line, yaml_of
from settings.tools import NATIVE_TOOLS


class _FollowUps(Edge):
    sessions: tuple[Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH)], ...] = ()
    """The conversations in which its follow-ups may resume work, beside the run's own; `x-*` are all that begin so."""


class _FrontMatter(Edge):
    name: str | None = Field(default=None, min_length=1, max_length=200)
    """The file's name without `.md` where it is left out."""
    description: str = ""
    """For people, and for agents that may delegate to it."""
    model: ModelNames = ()
    """A model or a list that is asked in turn, in place of the project's."""
    tools: tuple[str, ...] = NATIVE_TOOLS
    """The allow-list; `[]` is none. `server__*` are all tools of an MCP server; built-in tools are always there."""
    journal: bool = True
    """Whether it has the tools of the run journal."""
    follow_ups: _FollowUps | None = None
    """`{}` gives it the tools of [follow-ups](follow-ups.md); `sessions` lists further conversations to resume in."""
    peers: tuple[str, ...] = ()
    """The agents that it may [delegate](delegation.md) to."""
    limits: LimitOverrides = LimitOverrides()
    """Its [limits](#limits)."""
    mailbox: bool = False
    """It lives outside, and [exchanges files](mailbox.md); then only name and description are taken."""

    @field_validator("follow_ups", mode="before")
    @classmethod
    def _accept_short_form(cls, given: Any) -> Any:
        """An empty `follow_ups:` and `true` mean `{}`, `false` means that it is left out."""
        if given is None or isinstance(given, bool):
            return None if given is False else {}
        if not isinstance(given, dict):
            raise ValueError("expected {}, or {sessions: [...]} with the conversations that they may resume in")  # noqa: TRY004
        return given

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

    def at(self, agent: str, setting: str, item: str) -> str:
        """Where an item of an agent's setting stands."""
        path = self.files.get(agent)
        return place_in(path, setting, item=item) if path else f"agent {agent}: {setting}"

    def check(self) -> None:
        """Raises ProjectError, the first fault."""
        for fault in self.faults.values():
            raise fault


def read_agents(
    folder: Path, tools: tuple[str, ...], servers: Collection[str] = (), limits: LimitSettings | None = None
) -> Roster:
    """`servers` are MCP servers, whose tools are looked up where they are offered."""
    default = Agent(name=DEFAULT_AGENT, description="fetches pages and writes files", tools=NATIVE_TOOLS)
    agents, files, faults = {default.name: default}, dict[str, Path](), dict[Path, ProjectError]()
    for path in sorted(folder.glob("*.md")):
        try:
            agent = _read_agent(path)
            _must_be_below_ceiling(agent, path, limits or LimitSettings())
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
        raise ProjectError(f"{place_in(path, 'name')}: agent {agent.name!r} is in {files[agent.name].name} already")


def _must_be_below_ceiling(agent: Agent, path: Path, limits: LimitSettings) -> None:
    for excess in limits.excess_of(agent.limits):
        where = place_in(path, "limits", excess.partition(" ")[0])
        raise ProjectError(f"{where}: {excess} (limits.ceiling of perdure.toml)")


def _must_be_known(kind: str, setting: str, named: tuple[str, ...], there: tuple[str, ...], path: Path) -> None:
    strangers = [name for name in named if name not in there]
    if strangers:
        told = f"there is no {kind} {strangers[0]!r}{meant(strangers[0], there)}; the {kind}s are: {', '.join(there)}"
        raise ProjectError(f"{place_in(path, setting, item=strangers[0])}: {told}")


def place_in(path: Path, *where: str, item: str | None = None) -> str:
    """A setting of an agent's file, or an item of it, for whoever has to mend it: the file, its line, its name."""
    head, _ = _parts(path)
    line = yaml_line(head, where, item)
    return ": ".join(filter(None, (f"{path}{f', line {line}' if line else ''}", ".".join(where))))


def _parts(path: Path) -> tuple[str, str]:
    """The front matter, each line of it with the number that it has in the file; and the body."""
    parts = re.match(r"\A---[ \t]*\n(.*?\n)??---[ \t]*(?:\n|\Z)(.*)\Z", text_of(path), re.DOTALL)
    if parts is None:
        raise ProjectError(f'{path}: expected front matter between two lines "---"')
    return f"\n{parts[1] or ''}", parts[2]


def _read_agent(path: Path) -> Agent:
    """Markdown with front matter; the body is the system prompt."""
    front, body = _parts(path)
    try:
        head = _FrontMatter.model_validate(yaml_of(front) or {})
    except ValidationError as error:
        where, expected = first_fault(error, _FrontMatter)
        raise ProjectError(f"{place_in(path, *where)}: {expected}") from None
    except ValueError as error:
        raise ProjectError(f"{path}: {error}") from None
    return Agent(
        name=head.name or path.stem,
        description=head.description,
        model=head.model[0] if head.model else None,
        fallbacks=head.model[1:],
        tools=tuple(dict.fromkeys(name for name in head.tools if name not in builtin_tools.NAMES)),
        peers=tuple(dict.fromkeys(head.peers)),
        limits=head.limits,
        prompt=body,
        mailbox=head.mailbox,
        follow_ups=tuple(dict.fromkeys(head.follow_ups.sessions)) if head.follow_ups else None,
        journal=head.journal,
    )
