"""The tools of an MCP server that can be offered to a model."""

import asyncio
import json
import logging
from collections.abc import Iterable

from mcp import Client
from mcp_types import Tool

from perdure.activities.tools.json_schema import SchemaValidator, find_schema_error
from perdure.contracts.tool import Pin
from perdure.decisions.tools import MAX_DEFINITION, api_rejection, describe_foreign_reference, find_foreign_reference
from perdure.features.mcp.rules import name_rejection, pin_tool, tool_name

_log = logging.getLogger(__name__)

MAX_PAGES = 100  # in a listing
MAX_TOOLS = 1000
MAX_DEFINITION_BYTES = 4 * 1024 * 1024  # bytes for one server; checking a megabyte takes one to six seconds


async def list_offerable_tools(
    client: Client, server: str
) -> tuple[dict[str, Pin], dict[str, str], dict[str, SchemaValidator]]:
    """Return the tools by name, the reasons why others cannot be offered, and the validators of structured outputs.

    Raises the client's errors.
    """
    tools = await _read_pages(client, server)
    return *await asyncio.to_thread(_sort_out, server, tools), await asyncio.to_thread(_output_validators, tools)


async def _read_pages(client: Client, server: str) -> list[Tool]:
    """Read all pages. Stop at a repeated cursor or a page without new tools."""
    tools: dict[str, Tool] = {}
    cursor: str | None = None
    cursors: set[str] = set()
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        new = {tool.name: tool for tool in page.tools if tool.name not in tools}
        tools |= new
        cursor = page.next_cursor
        if cursor is None or len(tools) > MAX_TOOLS:
            break
        if cursor in cursors or (page.tools and not new):
            _log.warning("mcp server %s: its list of tools does not end; reading stopped where it repeats", server)
            break
        cursors.add(cursor)
    return list(tools.values())[:MAX_TOOLS]


def _sort_out(server: str, tools: Iterable[Tool]) -> tuple[dict[str, Pin], dict[str, str]]:
    offered: dict[str, Pin] = {}
    refused: dict[str, str] = {}
    total = 0
    names = set[str]()
    for tool in tools:
        size = len(tool.model_dump_json(include={"description", "input_schema", "annotations"}))
        total += size if size <= MAX_DEFINITION else 0
        if total > MAX_DEFINITION_BYTES:
            refused[tool.name] = f"the definitions of its server are larger than {MAX_DEFINITION_BYTES:,} bytes"
        elif reason := _rejection_reason(server, tool, size):
            refused[tool.name] = reason
        elif (name := tool_name(server, tool.name)) in names:
            refused[tool.name] = f"another tool is already offered as {name}"
        else:
            names.add(name)
            hints = tool.annotations and tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True)
            offered[tool.name] = pin_tool(tool.description or tool.title or "", tool.input_schema, hints or {})
    return offered, refused


def _output_validators(tools: Iterable[Tool]) -> dict[str, SchemaValidator]:
    """Return the validators of output schemas that are valid, and small enough to be checked."""
    schemas = {tool.name: tool.output_schema for tool in tools if tool.output_schema}
    return {
        name: SchemaValidator(schema)
        for name, schema in schemas.items()
        if len(json.dumps(schema)) <= MAX_DEFINITION and not find_schema_error(schema)
    }


def _rejection_reason(server: str, tool: Tool, size: int) -> str | None:
    """Return the reason, if any, why this tool cannot be offered to a model."""
    if reason := name_rejection(server, tool.name):
        return reason
    if size > MAX_DEFINITION:
        return f"its definition is larger than {MAX_DEFINITION:,} bytes"
    if error := api_rejection(tool_name(server, tool.name), tool.description or "", tool.input_schema):
        return f"models do not accept it: {error[1]}"
    if reason := find_schema_error(tool.input_schema):
        return f"its inputSchema: {reason}"
    if reason := _find_foreign_output(tool):
        return f"its outputSchema: {reason}"
    return None


def _find_foreign_output(tool: Tool) -> str | None:
    """Return the reason, if results are described outside of the tool. Other faults only leave them unchecked."""
    try:
        found = find_foreign_reference(tool.output_schema)
    except RecursionError:
        return "it is nested too deeply"
    return None if found is None or found.text.startswith("#") else describe_foreign_reference(found)
