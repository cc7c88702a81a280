"""An MCP server with 60 tools: `list`, `get`, `create` and `delete` of fifteen things, as large services have them."""

from typing import Annotated, Literal

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from pydantic import Field

THINGS = (
    "ticket",
    "invoice",
    "customer",
    "supplier",
    "contract",
    "shipment",
    "warehouse",
    "employee",
    "holiday",
    "meeting",
    "room",
    "vehicle",
    "licence",
    "budget",
    "campaign",
)

READ, WRITE = ToolAnnotations(read_only_hint=True), ToolAnnotations(read_only_hint=False)
Number = Annotated[int, Field(description="The number, as in the address of its page.", ge=1)]
Texts = Annotated[dict[str, str], Field(description="Its fields by name, such as the title and the notes.")]
Order = Annotated[Literal["newest", "oldest", "title"], Field(description="The order of the answer.")]
Page = Annotated[int, Field(description="The page of the answer, from 1, with fifty entries each.", ge=1, le=1000)]


def add_tools(server: MCPServer, thing: str) -> None:
    def list_things(words: str = "", order: Order = "newest", page: Page = 1) -> str:
        return f"{thing} 1, {thing} 2"

    def get_thing(number: Number) -> str:
        return f"{thing} {number}"

    def create_thing(title: str, fields: Texts | None = None) -> str:
        return f"created {thing} {title}"

    def delete_thing(number: Number, reason: str = "") -> str:
        return f"deleted {thing} {number}"

    server.add_tool(list_things, f"list_{thing}s", None, f"List each {thing} that matches.", READ)
    server.add_tool(get_thing, f"get_{thing}", None, f"Read one {thing}, with all of its fields.", READ)
    server.add_tool(create_thing, f"create_{thing}", None, f"Create a new {thing}.", WRITE)
    server.add_tool(delete_thing, f"delete_{thing}", None, f"Remove a {thing} for good.", WRITE)


if __name__ == "__main__":
    office = MCPServer("office")
    for name in THINGS:
        add_tools(office, name)
    office.run()
