"""An MCP server of revision 2025-11-25 over stdio, which asks within its calls: `python -m tests.mcp.asking FOLDER`."""

import asyncio
import sys
from pathlib import Path
from typing import Any, Literal

from mcp import UrlElicitationRequiredError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp_types import ElicitRequestURLParams, ToolAnnotations
from pydantic import BaseModel

READ = ToolAnnotations(read_only_hint=True)
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()


class Size(BaseModel):
    size: Literal["small", "large"]


class Name(BaseModel):
    name: str


def note(text: str) -> None:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{text}\n")


async def ask(ctx: Context[Any, Any]) -> str:
    """Asks for a size, then for a name."""
    note("ask")
    size = await ctx.elicit("Which size?", Size)
    if size.action != "accept":
        return f"no size: {size.action}"
    name = await ctx.elicit("Whose?", Name)
    return f"{size.data.size} for {name.data.name}" if name.action == "accept" else f"no name: {name.action}"


async def order(ctx: Context[Any, Any]) -> str:
    """Orders, and asks for a size on the way."""
    note("order")
    size = await ctx.elicit("Which size?", Size)
    return f"ordered: {size.action}"


async def page() -> str:
    """Needs a page to be opened first."""
    note("page")
    if not (FOLDER / "opened").exists():
        url = "https://bank.example/consent"
        raise UrlElicitationRequiredError([ElicitRequestURLParams(message="Allow it", url=url, elicitation_id="e1")])
    return "12"


async def idle() -> str:
    """Takes until the test ends it."""
    note("idle")
    while not (FOLDER / "end").exists():  # noqa: ASYNC110 - a file is all that the test has
        await asyncio.sleep(0.02)
    return "idled"


async def serve() -> None:
    """Serves clients of the handshake alone, as all servers did until 2025."""
    shop = MCPServer("shop")
    for tool, hints in ((ask, READ), (order, None), (page, READ), (idle, READ)):
        shop.add_tool(tool, tool.__name__, None, tool.__doc__, hints, structured_output=False)
    server = shop._lowlevel_server
    async with stdio_server() as (reading, writing), server.lifespan(server) as lifespan:
        await serve_loop(server, reading, writing, lifespan_state=lifespan)


if __name__ == "__main__":
    asyncio.run(serve())
