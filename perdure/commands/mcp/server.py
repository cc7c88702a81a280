"""`perdure mcp`: the MCP server over standard input and output."""

import os
import sys

import click

from contracts.sender import MCP
from perdure.client.door import set_sender
from perdure.session import Needs, open_session
from perdure.terminal.command import format_examples, run_async
from perdure.terminal.follow import stop_event
from settings import load_settings


@click.command("mcp", epilog=format_examples("mcp", "mcp --may-approve"))
@click.option(
    "--may-approve",
    is_flag=True,
    help="Let the client decide questions for people: approvals, and calls with an unknown outcome.",
)
def mcp_command(may_approve: bool) -> None:
    """Serve runs to an MCP client over standard input and output.

    It exits when the input is closed. The client can start, inspect, await, answer and cancel runs. The client is a
    model, so approvals are left to a person: see perdure approve.
    """
    sent, received = _claim_stdio()  # before any module is loaded that could print

    async def main() -> int:
        import asyncio

        from perdure.commands.mcp.runs import create_mcp_server, serve_mcp

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
