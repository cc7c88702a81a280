"""Which tools an MCP server has, as far as a model can be offered them."""

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from mcp import Client
from mcp_types import Tool

from contracts.mcp import Pin
from decisions.mcp import foreign_reference, pin, unfit

MOST_PAGES = 100  # of a listing
MOST_TOOLS = 1000
MOST_DEFINITION = 64 * 1024  # bytes of a tool's description and schema: all of it goes to the model


async def listed(client: Client, server: str) -> tuple[dict[str, Pin], dict[str, str]]:
    """The tools by name, and those that cannot be offered with the reason. Raises what the client raises."""
    tools: dict[str, Pin] = {}
    refused: dict[str, str] = {}
    for tool in await _all(client):
        if why := _fault(server, tool):
            refused[tool.name] = why
        else:
            tools[tool.name] = _pinned(tool)
    return tools, refused


async def _all(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) > MOST_TOOLS:
            break
    return tools[:MOST_TOOLS]


def _pinned(tool: Tool) -> Pin:
    annotations = tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True) if tool.annotations else {}
    return pin(tool.description or tool.title or "", tool.input_schema, annotations)


def _fault(server: str, tool: Tool) -> str | None:
    """Why a model cannot be offered this tool; None if it can."""
    if why := unfit(server, tool.name):
        return why
    if len(tool.model_dump_json(include={"description", "input_schema", "annotations"})) > MOST_DEFINITION:
        return f"its definition is larger than {MOST_DEFINITION:,} bytes"
    if tool.input_schema.get("type") != "object":
        return 'its inputSchema has no type "object"'
    if target := foreign_reference(tool.input_schema):
        return f"its inputSchema refers to {target[:200]}, which lies outside of it"
    try:
        Draft202012Validator.check_schema(tool.input_schema)
    except SchemaError as error:
        return f"its inputSchema is none: {error.message[:200]}"
    return None
