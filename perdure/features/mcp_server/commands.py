"""`perdure mcp`: the MCP server over standard input and output."""

import asyncio
import os
import sys
from typing import Any

import anyio
import click
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server

from perdure.client.door import set_sender
from perdure.contracts.people import MCP
from perdure.features.mcp.commands import login_command, logins_command
from perdure.features.mcp_server.server import create_mcp_server
from perdure.session import Needs, open_session
from perdure.settings import load_settings
from perdure.terminal.command import format_examples, run_async
from perdure.terminal.follow import stop_event


@click.group(
    "mcp", invoke_without_command=True, epilog=format_examples("mcp", "mcp --may-approve", "mcp login tickets")
)
@click.option(
    "--may-approve",
    is_flag=True,
    help="Let the client decide questions for people: approvals, and calls with an unknown outcome.",
)
@click.pass_context
def mcp_command(context: click.Context, may_approve: bool) -> None:
    """Serve runs to an MCP client over standard input and output.

    It exits when the input is closed. The client can start, inspect, await, answer and cancel runs. The client is a
    model, so approvals are left to a person: see perdure approve.
    """
    if context.invoked_subcommand is not None:  # of the MCP client: its servers
        return
    sent, received = _claim_stdio()  # before any module is loaded that could print

    async def main() -> int:
        settings = load_settings()
        set_sender(MCP)
        stop = asyncio.create_task(stop_event(is_read=False).wait())
        async with open_session(settings, Needs.work) as session:
            serving = asyncio.create_task(
                serve_mcp(create_mcp_server(session, may_approve=may_approve), received, sent)
            )
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            serving.cancel()
        return 0

    run_async(main)


mcp_command.add_command(login_command)
mcp_command.add_command(logins_command)


def _claim_stdio() -> tuple[int, int]:
    """Return the descriptors for MCP. Other code reads an empty standard input, and prints to standard error."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed; run this command from an MCP client")
    sent, received = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return sent, received


async def serve_mcp(server: MCPServer[Any], received: int, sent: int) -> None:
    """Serve until the client closes its descriptors."""
    source = _LineReader(os.fdopen(received, encoding="utf-8", errors="replace"))
    sink = anyio.wrap_file(os.fdopen(sent, "w", encoding="utf-8"))
    async with stdio_server(source, sink) as (read, write):
        lowlevel = server._lowlevel_server  # noqa: SLF001 - the public method reads in a way that cannot be cancelled
        await lowlevel.run(read, write, lowlevel.create_initialization_options())


class _LineReader(anyio.AsyncFile[str]):
    """A line reader whose pending read can be abandoned."""

    async def readline(self) -> str:
        return await anyio.to_thread.run_sync(self.wrapped.readline, abandon_on_cancel=True)
