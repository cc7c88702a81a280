"""The tool `search_tools`: ranks the searched tools of the run's definition by BM25, in an index of SQLite's FTS5."""

import asyncio
import re
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import to_json

from activities.run.definition import read_definition
from activities.storage.store import Stores
from activities.tools.interface import CallContext
from contracts.agent import ToolSchema
from contracts.tool import ToolOutcome
from decisions.builtin_tools import CALL_TOOL, SEARCH_ROUTE, SEARCH_SCHEMA
from decisions.mcp import schema_texts

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
