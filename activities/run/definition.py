"""The snapshot of an agent that a run keeps: what goes to the model, in the run's store under its hash."""

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

JOURNAL_MARK = "{journal}\n"  # where the instructions speak of the journal
MOST_DIFFERENCE = 6000  # characters that a question shows


def agent_of(project: Project, name: str) -> Agent:
    """Raises ApplicationError `UnknownAgent`, not retryable."""
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
    """As the project has it now, with its peers or without."""
    delegates = may_delegate and bool(agent.peers)
    own = builtin_tools.offered(delegates=delegates, journal=agent.journal, follow_ups=agent.follow_ups is not None)
    told = (_instructions(project, agent), _peers(project, agent) if delegates else "", agent.prompt)
    return Definition(
        agent=agent.name,
        model=agent.model or project.model,
        fallbacks=agent.fallbacks if agent.model else project.fallbacks,
        max_tokens=project.max_tokens,
        system="\n\n".join(text.strip() for text in told if text.strip()),
        tools=(*own, *(project.tools[name].schema for name in agent.tools)),
        may_delegate=may_delegate,
    )


def _instructions(project: Project, agent: Agent) -> str:
    """How the loop works; what is said of the journal only where the agent has one."""
    return project.instructions.replace(JOURNAL_MARK, project.on_journal if agent.journal else "")


def _peers(project: Project, agent: Agent) -> str:
    """Whom it can reach, what they are good at, and when to do so (D3)."""
    peers = (f"- `{name}`: {_peer(project.agents[name])}" for name in agent.peers)
    return "\n".join([project.on_delegation.strip(), "", "Your peers:", *peers])


def _peer(peer: Agent) -> str:
    outside = " (works outside and may take its time; it sees no files, only what you write)" if peer.mailbox else ""
    return (peer.description or "no description") + outside


def ref_of(definition: Definition) -> str:
    return blake2b(definition.model_dump_json().encode(), digest_size=12).hexdigest()


def keep(store: Store, definition: Definition) -> str:
    """Writes it down, and gives the hash that names it."""
    ref = ref_of(definition)
    store.put(_name(ref), definition.model_dump_json().encode())
    return ref


async def definition_of(store: Store, ref: str) -> Definition:
    """Raises StoredFileChangedError."""
    data = await asyncio.to_thread(store.read, _name(ref))
    return Definition.model_validate_json(must_have_hash(_name(ref), data, ref))


def _name(ref: str) -> str:
    return f"definition-{ref}.json"


def must_be_unchanged(project: Project, old: Definition, refused: str | None) -> None:
    """Raises ApplicationError `DefinitionChanged` with the new one's hash and the difference, for a person to decide.

    `refused` is the hash of a new one that a person has decided against. What built-ins say of themselves is left out:
    they are code and no part of the project, and the run goes on with what it was told of them.
    """
    agent = project.agents.get(old.agent)
    new = defined(project, agent, may_delegate=old.may_delegate) if agent else None
    ref = ref_of(new) if new else ""
    if ref == refused or (new and ref_of(_projects(new)) == ref_of(_projects(old))):
        return
    told = difference(old, new) if new else f"agent {old.agent!r} is not in the project any more"
    raise ApplicationError(
        "the agent's definition has changed since the run began",
        ref,
        told,
        type=Stop.definition_changed,
        non_retryable=True,
    )


def _projects(definition: Definition) -> Definition:
    """The project's part of it. Peers stay, since the prompt names them."""
    tools = tuple(tool for tool in definition.tools if tool.name not in builtin_tools.NAMES)
    return definition.model_copy(update={"tools": tools})


def difference(old: Definition, new: Definition) -> str:
    """What changed, as a unified diff in the words of the agent file: model, tools, prompt."""
    lines = unified_diff(_told(old), _told(new), "when the run began", "now", lineterm="", n=1)
    text = "\n".join(lines)
    return text if len(text) <= MOST_DIFFERENCE else f"{text[:MOST_DIFFERENCE]}\n… (cut)"


def _told(definition: Definition) -> list[str]:
    tools = {tool.name: tool.model_dump(exclude={"name"}) for tool in definition.tools}
    head = [f"model: {', '.join(definition.models)}", f"max_tokens: {definition.max_tokens}"]
    described = [
        f"tool {name}: {json.dumps(tools[name], sort_keys=True, ensure_ascii=False)}" for name in sorted(tools)
    ]
    return [*head, *described, *definition.system.splitlines()]
