"""The snapshot of a run's agent, as the model sees it, in the run's store under its hash."""

import asyncio
import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from difflib import unified_diff
from functools import partial
from socket import gethostname
from typing import Any

from pydantic_core import to_json
from temporalio.exceptions import ApplicationError

from perdure.activities.project import Project
from perdure.activities.storage.store import Store, Stores, must_have_hash
from perdure.activities.tools.interface import CallContext
from perdure.activities.tools.json_schema import (
    SchemaNotApplicableError,
    SchemaValidator,
    check_in_loop,
    find_schema_error,
)
from perdure.contracts.agent import Agent, Definition, StartSnapshotRequest, ToolSchema
from perdure.contracts.failures import RunFailure, Stop
from perdure.contracts.model_settings import ModelOptions
from perdure.contracts.policy import Rubric
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.tool import Approval, ToolKind, ToolOutcome, ToolRoute
from perdure.decisions.ids import digest
from perdure.decisions.run.compaction import estimate_content
from perdure.decisions.run.outcome import RUBRIC
from perdure.decisions.tools import (
    CALL_SCHEMA,
    CALL_TOOL,
    DELEGATE,
    SEARCH_ROUTE,
    SEARCH_SCHEMA,
    builtin_names,
    builtin_schemas,
    schema_texts,
    server_of_tool,
)

MAX_DIFF = 6000  # characters of a diff in a question
MAX_LOADED_TOOLS, MAX_LOADED_TOKENS = 40, 8_000  # of an agent, in each request; if it has more, they are searched
SHORT_CACHE = timedelta(minutes=5)


def agent_of(project: Project, name: str) -> Agent:
    """Return the agent. Raises ApplicationError `UnknownAgent`, not retryable."""
    agent = project.agents.get(name)
    if name in project.faulty:
        raise ApplicationError(project.faulty[name], type=RunFailure.unknown_agent, non_retryable=True)
    if agent is None:
        known = ", ".join(sorted(project.agents))
        worker = f"the worker {os.getpid()}@{gethostname()}"
        message = f"there is no agent {name!r} in {worker}; its agents are: {known}; for a new one restart the worker"
        raise ApplicationError(message, type=RunFailure.unknown_agent, non_retryable=True)
    if agent.mailbox:
        message = f"agent {name!r} lives outside: no run can be it; delegate to it, or write to its mailbox"
        raise ApplicationError(message, type=RunFailure.unknown_agent, non_retryable=True)
    return agent


async def must_be_valid_start(agent: Agent, request: StartSnapshotRequest) -> None:
    """Raise ApplicationError `InvalidInput` if the requested output schema, or the context, is not valid."""
    if request.output_schema is not None and (
        reason := await asyncio.to_thread(find_schema_error, request.output_schema)
    ):
        raise _invalid_start(f"payload.output_schema: {reason}")
    if request.context is not None and (reason := await find_context_error(agent, request.context)):
        raise _invalid_start(reason)


async def find_context_error(agent: Agent, context: Mapping[str, Any]) -> str | None:
    """Return the reason why the context of a start does not match the agent's `input_schema`, if any."""
    if not isinstance(agent.input_schema, dict):
        return None
    given = {name: value for name, value in context.items() if name not in LimitOverrides.model_fields}
    try:
        errors = await check_in_loop(partial(SchemaValidator(agent.input_schema).find_errors, given), given)
    except SchemaNotApplicableError as error:
        errors = [f"the schema cannot be applied: {error}"]
    return f"payload.context does not match input_schema of {agent.name}: {'; '.join(errors)}" if errors else None


def _invalid_start(message: str) -> ApplicationError:
    return ApplicationError(message, type=RunFailure.invalid_input, non_retryable=True)


def build_definition(
    project: Project, agent: Agent, requested_schema: dict[str, Any] | None = None, *, may_delegate: bool
) -> Definition:
    """Build the definition from the current project, with or without peers.

    The `requested_schema` of the result is used in place of the agent's.
    """
    agents_schema = agent.output_schema if isinstance(agent.output_schema, dict) else None
    output_schema = agents_schema if requested_schema is None else requested_schema
    delegates = may_delegate and bool(agent.peers)
    own = builtin_schemas(
        delegates=delegates,
        journal=agent.journal,
        follow_ups=agent.follow_ups is not None,
        output_schema=output_schema,
    )
    loaded, searched = split_tools(project, agent)
    prompts = (project.instructions, _describe_peers(project, agent) if delegates else "", agent.prompt)
    model, *fallbacks = project.models_of(agent)
    return Definition(
        agent=agent.name,
        model=model,
        fallbacks=tuple(fallbacks),
        options=_resolve_options(project, agent, own),
        system="\n\n".join(text.strip() for text in prompts if text.strip()),
        tools=(*own, *_search_schemas(searched), *loaded),
        searched=searched,
        may_delegate=may_delegate,
        output_schema=output_schema,
        is_schema_requested=requested_schema is not None,
        accept=agent.accept,
    )


def estimate_tools(tools: Iterable[ToolSchema]) -> int:
    """Estimate the tokens of the tools in a request."""
    return estimate_content([tool.model_dump() for tool in tools])


def split_tools(project: Project, agent: Agent) -> tuple[tuple[ToolSchema, ...], tuple[ToolSchema, ...]]:
    """Return the tools of each request, and those that the model searches for.

    Perdure's own tools and those that the agent's prompt names are never searched for.
    """
    tools = [project.tools[name] for name in agent.tools]
    schemas = tuple(tool.schema for tool in tools)
    is_large = len(tools) > MAX_LOADED_TOOLS or estimate_tools(schemas) > MAX_LOADED_TOKENS
    if not (is_large if agent.search_tools is None else agent.search_tools):
        return schemas, ()
    named = set(re.findall(r"[\w-]+", agent.prompt))
    stays = {tool.schema.name for tool in tools if tool.route.kind is ToolKind.native or tool.schema.name in named}
    loaded = tuple(schema for schema in schemas if schema.name in stays)
    return loaded, tuple(schema for schema in schemas if schema.name not in stays)


def _search_schemas(searched: Sequence[ToolSchema]) -> tuple[ToolSchema, ...]:
    """Return the tools that search and call the `searched` tools, if there are any. They name the MCP servers."""
    if not searched:
        return ()
    servers = Counter(server_of_tool(tool.name) for tool in searched)
    own = servers.pop(None, 0)
    groups = [*([f"{own} of this project"] if own else []), *(f"{n} of {name}" for name, n in servers.items())]
    schema = SEARCH_SCHEMA
    description = f"{schema.description} There are {len(searched)}: {', '.join(groups)}."
    return (schema.evolve(description=description), CALL_SCHEMA)


def _resolve_options(project: Project, agent: Agent, own: Collection[ToolSchema]) -> ModelOptions:
    """Return the agent's options over the project's. A cache is kept an hour by `auto` if calls may wait long."""
    options = project.options.override(agent.options).evolve(server_tools=agent.server_tools)
    if options.cache != "auto":
        return options
    offered = {tool.name for tool in own}
    routes = [route for route in project.builtins if route.name in offered]
    routes += [project.tools[name].route for name in agent.tools]
    is_slow = DELEGATE in offered or any(_may_wait(route) for route in routes)
    return options.evolve(cache="1h" if is_slow else "5m")


def _may_wait(route: ToolRoute) -> bool:
    needs_approval = route.approval is Approval.always or bool(route.approval_kinds)
    return needs_approval or route.kind in (ToolKind.signal, ToolKind.queue) or route.timeout > SHORT_CACHE


def _describe_peers(project: Project, agent: Agent) -> str:
    """Describe when to delegate, and the agent's peers (D3)."""
    outside = " (works outside and may take its time; it sees no files, only what you write)"
    peers = (
        f"- `{peer.name}`: {peer.description or 'no description'}{outside if peer.mailbox else ''}"
        for peer in (project.agents[name] for name in agent.peers)
    )
    return "\n".join([project.on_delegation.strip(), "", "Your peers:", *peers])


def definition_ref(definition: Definition) -> str:
    return digest(definition.model_dump_json().encode(), 12)


def write_definition(store: Store, definition: Definition) -> str:
    """Write the definition, and return its hash."""
    ref = definition_ref(definition)
    store.write(_file_name(ref), definition.model_dump_json().encode())
    return ref


async def read_definition(store: Store, ref: str) -> Definition:
    """Read a definition by its hash. Raises StoredFileChangedError."""
    data = await asyncio.to_thread(store.read, _file_name(ref))
    return Definition.model_validate_json(must_have_hash(_file_name(ref), data, ref))


def _file_name(ref: str) -> str:
    return f"definition-{ref}.json"


def must_be_unchanged(project: Project, old: Definition, refused: str | None) -> None:
    """Raise ApplicationError `DefinitionChanged` with the new definition's hash and the diff, for a person to decide.

    `refused` is the hash of a new definition that a person rejected. Descriptions of built-in tools do not count: they
    are code, not part of the project, and the run keeps its copy. Nor does the cache's lifetime.
    """
    agent = project.agents.get(old.agent)
    requested = old.output_schema if old.is_schema_requested else None
    new = build_definition(project, agent, requested, may_delegate=old.may_delegate) if agent else None
    ref = definition_ref(new) if new else ""
    if ref == refused or (new and definition_ref(project_part(new)) == definition_ref(project_part(old))):
        return
    gone = project.faulty.get(old.agent) or f"agent {old.agent!r} is not in the project any more"
    change = definition_diff(old, new) if new else gone
    raise ApplicationError(
        "the agent's definition has changed since the run began",
        ref,
        change,
        type=Stop.definition_changed,
        non_retryable=True,
    )


def project_part(definition: Definition) -> Definition:
    """Return the definition without built-in tools and cache lifetime. Peers stay, since the prompt names them."""
    tools = tuple(tool for tool in definition.tools if tool.name not in builtin_names())
    options = definition.options.evolve(cache="auto")
    return definition.evolve(tools=tools, options=options)


def definition_diff(old: Definition, new: Definition) -> str:
    """Return a unified diff of model, tools and prompt, in the terms of the agent file."""
    lines = unified_diff(_diff_lines(old), _diff_lines(new), "when the run began", "now", lineterm="", n=1)
    text = "\n".join(lines)
    return text if len(text) <= MAX_DIFF else f"{text[:MAX_DIFF]}\n… (cut)"


def _diff_lines(definition: Definition) -> list[str]:
    tools = {t.name: t.model_dump(exclude={"name"}) for t in (*definition.tools, *definition.searched)}
    options = [f"{name}: {json.dumps(value)}" for name, value in definition.options.model_dump(mode="json").items()]
    head = [f"model: {', '.join(definition.models)}", *options]
    head += [f"server tool {json.dumps(tool, sort_keys=True)}" for tool in definition.options.server_tools]
    if definition.output_schema is not None:
        head.append(f"output_schema: {json.dumps(definition.output_schema, sort_keys=True, ensure_ascii=False)}")
    if definition.accept is not None:
        check = definition.accept if isinstance(definition.accept, str) else definition.accept.model_dump()
        head.append(f"accept: {json.dumps(check, ensure_ascii=False)}")
    lines = [f"tool {name}: {json.dumps(tools[name], sort_keys=True, ensure_ascii=False)}" for name in sorted(tools)]
    return [*head, *lines, *definition.system.splitlines()]


def name_of_check(definition: Definition) -> str:
    """Return the name of the check that an outcome must pass: the function, or the rubric and its model."""
    if isinstance(definition.accept, Rubric):
        return f"{RUBRIC} by {definition.accept.model or definition.model}"
    return definition.accept or ""


MAX_FOUND = 8  # tools in one result
MAX_FOUND_BYTES = 16 * 1024  # of their schemas; a single one may be larger
MAX_INDEXES = 32  # in a worker's memory
MAX_TERMS = 32  # of a query
MIN_PREFIX = 4  # characters of a word that also matches the words that begin with it

_CREATE = "CREATE VIRTUAL TABLE {} USING fts5(name, description, arguments, tokenize = 'porter unicode61')"
# A match in the name counts more than one in the description, and that more than one in the arguments.
_SELECT = "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, 4, 2, 1), rowid LIMIT ?"
_COMMON_WORDS = frozenset(("a", "an", "and", "by", "for", "from", "in", "is", "of", "on", "or", "the", "to", "with"))
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def has_full_text_search() -> bool:
    """Return whether this Python's SQLite has FTS5, which a build may leave out."""
    try:
        sqlite3.connect(":memory:").execute(_CREATE.format("probe"))
    except sqlite3.OperationalError:
        return False
    return True


class ToolIndex:
    """The index of some tools."""

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._rows = list(self._tools.values())
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(_CREATE.format("tools"))
        rows = ((number, *_index_texts(tool)) for number, tool in enumerate(self._rows))
        self._database.executemany("INSERT INTO tools(rowid, name, description, arguments) VALUES (?, ?, ?, ?)", rows)

    def find_tools(self, query: str) -> list[ToolSchema]:
        """Return the tools that the query names, else those that match its words, the best first."""
        if named := [self._tools[word] for word in dict.fromkeys(re.split(r"[\s,]+", query)) if word in self._tools]:
            return named[:MAX_FOUND]
        words = dict.fromkeys(_split_words(query).lower().split())
        terms = [word for word in words if word not in _COMMON_WORDS][:MAX_TERMS]
        match = " OR ".join(f'"{term}"{"*" if len(term) >= MIN_PREFIX else ""}' for term in terms)
        return [self._rows[row] for (row,) in self._database.execute(_SELECT, (match, MAX_FOUND))] if match else []


class SearchTools:
    """The tool. It reads the definition that the call names, and keeps its index."""

    route = SEARCH_ROUTE
    schema = SEARCH_SCHEMA

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._indexes: dict[str, ToolIndex] = {}
        self._lock = asyncio.Lock()

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        query = arguments["query"]
        async with self._lock:  # a database serves one thread at a time
            index = await self._load_index(context)
            found = await asyncio.to_thread(index.find_tools, query)
        return ToolOutcome(result=_format_found(found, query))

    async def _load_index(self, context: CallContext) -> ToolIndex:
        ref = context.definition or ""
        if ref not in self._indexes:
            definition = await read_definition(self._stores.of(context.run_id), ref)
            self._indexes[ref] = await asyncio.to_thread(ToolIndex, definition.searched)
            if len(self._indexes) > MAX_INDEXES:
                del self._indexes[next(iter(self._indexes))]
        return self._indexes[ref]


def _index_texts(tool: ToolSchema) -> tuple[str, str, str]:
    texts = [text for _, text in schema_texts(tool.input_schema)]
    arguments = " ".join([*tool.input_schema.get("properties", {}), *texts])
    return _split_words(tool.name), _split_words(tool.description), _split_words(arguments)


def _split_words(text: str) -> str:
    """Return the words of a text, also those in `createIssue` and `create_issue`."""
    return " ".join(re.findall(r"[^\W_]+", _CAMEL_CASE.sub(" ", text)))


def _format_found(found: Iterable[ToolSchema], query: str) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    others, size = [], 0
    for tool in found:
        size += len(to_json(tool))
        if shown and size > MAX_FOUND_BYTES:
            others.append(tool.name)
        else:
            shown.append(tool.model_dump())
    if not shown:
        return {"tools": [], "note": f"no tool matches {query[:200]!r}: try other words, or the name of a server"}
    note = f"Call one by {CALL_TOOL}, with its name and the arguments of its schema."
    return {"tools": shown, **({"without_schema": others} if others else {}), "note": note}
