"""`perdure gateway`: runs over HTTP."""

import ipaddress
import os
from pathlib import Path

import click
from rich.markup import escape

from perdure.session import Needs, session
from perdure.terminal.command import console, examples, go
from perdure.terminal.follow import stopping
from settings import ProjectError, load


@click.command(epilog=examples("gateway", "gateway --host 0.0.0.0 --behind-tls"))
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: a free one.")
@click.option(
    "--behind-tls", is_flag=True, help="TLS ends in front of this gateway: it may listen beyond this machine."
)
@click.option("--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Log there, and not to stderr.")
def gateway(host: str, port: int, log_file: Path | None, *, behind_tls: bool) -> None:
    """Serve runs over HTTP, with a page for people, until Ctrl-C.

    With no Temporal configured it brings the embedded server and a worker. Who asks needs a token (perdure token).
    """

    async def main() -> int:
        from gateway.auth import Gateway
        from gateway.server import listen, serve
        from gateway.signatures import webhooks_of
        from gateway.tokens import Unreadable, tokens_of
        from telemetry import log_to_file, log_to_stderr

        settings = load()
        tokens = tokens_of(settings.home, os.environ)
        try:
            has_tokens = bool(tokens.all())
        except Unreadable as error:
            raise ProjectError(str(error)) from None
        if not _is_loopback(host) and not (has_tokens and behind_tls):
            raise ProjectError(
                f"{host} is not this machine alone: make a token (perdure token create), end TLS in front of the "
                "gateway, and say so with --behind-tls; tokens would travel in clear otherwise"
            )
        webhooks = webhooks_of(settings.file.gateway.webhooks, os.environ)
        stop = stopping()
        with listen(host, port) as listener:
            async with session(settings, Needs.work) as here:
                if log_file is not None:
                    log_to_file(log_file, settings.secrets)
                elif here.ui is None:  # else the worker beside it logs to its file
                    log_to_stderr(settings.secrets)
                served = Gateway(here, tokens, webhooks, stop)
                shown = f"[{host}]" if ":" in host else host
                console.print(f"gateway    http://{shown}:{listener.getsockname()[1]}", soft_wrap=True)
                console.print(f"task queue {settings.task_queue}")
                if here.ui:
                    console.print(f"Web UI     {here.ui}")
                if here.rehearsal:
                    console.print(f"[yellow]{escape(here.rehearsal)}[/]", soft_wrap=True)
                if not has_tokens:
                    console.print(
                        "no tokens yet; make one: perdure token create NAME --scope runs:read", soft_wrap=True
                    )
                console.print("Ctrl-C stops it; runs go on wherever a worker is.")
                await serve(served, listener)
        return 0

    go(main, stays=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
