"""`perdure mcp`: runs as the tools of an MCP server over standard input and output."""

import os
import sys

import click

from contracts.sender import MCP
from perdure.client.door import speak_as
from perdure.session import Needs, session
from perdure.terminal.command import examples, go
from perdure.terminal.follow import stopping
from settings import load


@click.command("mcp", epilog=examples("mcp", "mcp --may-approve"))
@click.option(
    "--may-approve",
    is_flag=True,
    help="Its client may decide what else only a person may: approvals, and calls that may have happened.",
)
def mcp_(may_approve: bool) -> None:
    """Serve runs to an MCP client over standard input and output.

    It ends when they are closed. The client can start runs, look at them, wait for them, answer their questions and
    cancel them. It is a model, so approvals are left to a person: see perdure approve.
    """
    sent, received = _wire()  # before anything is loaded that might print

    async def main() -> int:
        import asyncio

        from perdure.commands.mcp.runs import serve, server_of

        settings = load()
        speak_as(MCP)
        stop = asyncio.create_task(stopping(is_read=False).wait())
        async with session(settings, Needs.work) as here:
            serving = asyncio.create_task(serve(server_of(here, may_approve=may_approve), received, sent))
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            serving.cancel()
        return 0

    go(main)


def _wire() -> tuple[int, int]:
    """The descriptors that speak MCP. What else reads or prints finds nothing, and the standard error."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed: an MCP client starts this command")
    sent, received = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return sent, received
