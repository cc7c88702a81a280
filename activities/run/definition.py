"""The snapshot of a run's agent, as the model sees it, in the run's store under its hash."""

import asyncio
import json
from difflib import unified_diff
from hashlib import blake2b

from temporalio.exceptions import ApplicationError

from activities.project import Project
from activities.storage.store import Store, must_have_hash
from contracts.agent import Agent, Definition
from contracts.failures import RunFailure, Stop
from decisions import builtin_tools

JOURNAL_MARK = "{journal}\n"  # the place of the journal's part in the instructions
MOST_DIFFERENCE = 6000  # characters of a diff in a question


def agent_of(project: Project, name: str) -> Agent:
    """Return the agent. Raises ApplicationError `UnknownAgent`, not retryable."""
    agent = project.agents.get(name)
    if agent is None:
        known = ", ".join(sorted(project.agents))
        message = f"there is no agent {name!r} in this worker's project; the agents are: {known}"
        raise ApplicationError(message, type=RunFailure.unknown_agent, non_retryable=True)
    if agent.mailbox:
        message = f"agent {name!r} lives outside: no run can be it; delegate to it, or write to its mailbox"
        raise ApplicationError(message, type=RunFailure.unknown_agent, non_retryable=True)
    return agent


def defined(project: Project, agent: Agent, *, may_delegate: bool) -> Definition:
    """Build the definition from the current project, with or without peers."""
    delegates = may_delegate and bool(agent.peers)
    own = builtin_tools.offered(delegates=delegates, journal=agent.journal, follow_ups=agent.follow_ups is not None)
    prompts = (_instructions(project, agent), _peers(project, agent) if delegates else "", agent.prompt)
    return Definition(
        agent=agent.name,
        model=agent.model or project.model,
        fallbacks=agent.fallbacks if agent.model else project.fallbacks,
        max_tokens=project.max_tokens,
        system="\n\n".join(text.strip() for text in prompts if text.strip()),
        tools=(*own, *(project.tools[name].schema for name in agent.tools)),
        may_delegate=may_delegate,
    )


def _instructions(project: Project, agent: Agent) -> str:
    """Return the project's instructions, with the journal's part only if the agent has a journal."""
    return project.instructions.replace(JOURNAL_MARK, project.on_journal if agent.journal else "")


def _peers(project: Project, agent: Agent) -> str:
    """Describe when to delegate, and the agent's peers (D3)."""
    peers = (f"- `{name}`: {_peer(project.agents[name])}" for name in agent.peers)
    return "\n".join([project.on_delegation.strip(), "", "Your peers:", *peers])


def _peer(peer: Agent) -> str:
    outside = " (works outside and may take its time; it sees no files, only what you write)" if peer.mailbox else ""
    return (peer.description or "no description") + outside


def ref_of(definition: Definition) -> str:
    return blake2b(definition.model_dump_json().encode(), digest_size=12).hexdigest()


def keep(store: Store, definition: Definition) -> str:
    """Write the definition, and return its hash."""
    ref = ref_of(definition)
    store.put(_name(ref), definition.model_dump_json().encode())
    return ref


async def definition_of(store: Store, ref: str) -> Definition:
    """Read a definition by its hash. Raises StoredFileChangedError."""
    data = await asyncio.to_thread(store.read, _name(ref))
    return Definition.model_validate_json(must_have_hash(_name(ref), data, ref))


def _name(ref: str) -> str:
    return f"definition-{ref}.json"


def must_be_unchanged(project: Project, old: Definition, refused: str | None) -> None:
    """Raise ApplicationError `DefinitionChanged` with the new definition's hash and the diff, for a person to decide.

    `refused` is the hash of a new definition that a person rejected. Descriptions of built-in tools do not count: they
    are code, not part of the project, and the run keeps its copy.
    """
    agent = project.agents.get(old.agent)
    new = defined(project, agent, may_delegate=old.may_delegate) if agent else None
    ref = ref_of(new) if new else ""
    if ref == refused or (new and ref_of(_projects(new)) == ref_of(_projects(old))):
        return
    change = difference(old, new) if new else f"agent {old.agent!r} is not in the project any more"
    raise ApplicationError(
        "the agent's definition has changed since the run began",
        ref,
        change,
        type=Stop.definition_changed,
        non_retryable=True,
    )


def _projects(definition: Definition) -> Definition:
    """Return the definition without built-in tools. Peers stay, since the prompt names them."""
    tools = tuple(tool for tool in definition.tools if tool.name not in builtin_tools.NAMES)
    return definition.model_copy(update={"tools": tools})


def difference(old: Definition, new: Definition) -> str:
    """Return a unified diff of model, tools and prompt, in the terms of the agent file."""
    lines = unified_diff(_told(old), _told(new), "when the run began", "now", lineterm="", n=1)
    text = "\n".join(lines)
    return text if len(text) <= MOST_DIFFERENCE else f"{text[:MOST_DIFFERENCE]}\n… (cut)"


def _told(definition: Definition) -> list[str]:
    tools = {tool.name: tool.model_dump(exclude={"name"}) for tool in definition.tools}
    head = [f"model: {', '.join(definition.models)}", f"max_tokens: {definition.max_tokens}"]
    lines = [f"tool {name}: {json.dumps(tools[name], sort_keys=True, ensure_ascii=False)}" for name in sorted(tools)]
    return [*head, *lines, *definition.system.splitlines()]
