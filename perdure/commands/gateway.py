"""`perdure gateway`."""

import os
from pathlib import Path

import click
from rich.markup import escape

from perdure.session import Needs, open_session
from perdure.terminal.command import async_command, console, format_examples
from perdure.terminal.follow import stop_event
from settings import ProjectError, load_settings
from settings.access import is_loopback


@click.command("gateway", epilog=format_examples("gateway", "gateway --host 0.0.0.0 --behind-tls"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--behind-tls", is_flag=True, help="A proxy ends TLS: allow addresses other than loopback.")
@click.option(
    "--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Log to this file instead of standard error."
)
@async_command(stays=True)
async def gateway_command(host: str, port: int, log_file: Path | None, *, behind_tls: bool) -> int:
    """Serve runs over HTTP, with a web page, until Ctrl-C.

    If no Temporal server is configured, it starts an embedded one and a worker. Clients need a token (perdure token).
    """
    from gateway.auth import Gateway
    from gateway.server import open_listener, serve_gateway
    from gateway.signatures import read_webhooks
    from gateway.tokens import read_tokens
    from perdure.process.project import compile_starts
    from telemetry import log_to_file, log_to_stderr

    settings = load_settings()
    tokens = read_tokens(settings.home, os.environ)
    has_tokens = bool(tokens.read_all())
    if not is_loopback(host) and not (has_tokens and behind_tls):
        raise ProjectError(
            f"{host} is reachable from other machines: create a token (perdure token create), put a TLS proxy in front "
            "of the gateway, and set --behind-tls; without TLS, tokens are sent in clear text"
        )
    webhooks = read_webhooks(settings.file.gateway.webhooks, os.environ)
    starts = compile_starts(settings)
    stop = stop_event()
    with open_listener(host, port) as listener:
        async with open_session(settings, Needs.work) as session:
            if log_file is not None:
                log_to_file(log_file, settings.secrets)
            elif session.ui is None:  # else this process has a worker, which logs to its own file
                log_to_stderr(settings.secrets)
            served = Gateway(session, tokens, webhooks, starts, stop)
            shown = f"[{host}]" if ":" in host else host
            console.print(f"gateway    http://{shown}:{listener.getsockname()[1]}", soft_wrap=True)
            console.print(f"task queue {settings.task_queue}")
            if session.ui:
                console.print(f"Web UI     {session.ui}")
            if session.rehearsal_message:
                console.print(f"[yellow]{escape(session.rehearsal_message)}[/]", soft_wrap=True)
            if not has_tokens:
                console.print("no tokens yet; create one: perdure token create NAME --scope runs:read", soft_wrap=True)
            console.print("Ctrl-C stops it; runs continue on other workers.")
            await serve_gateway(served, listener)
    return 0
