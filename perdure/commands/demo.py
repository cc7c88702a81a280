"""`perdure demo`: an agent on an example site, which this process serves on loopback.

Everything after the site is the product's own command: `perdure run "fetch web <url> and produce a 2 para critique"`.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from perdure.decisions.errors import ReportedError
from perdure.process.streams import exit_now
from perdure.settings.problems import resolve_path
from perdure.terminal.command import console, format_examples, print_error

PAGES = Path(__file__).parent / "site"
# A Temporal or project that this shell has set is not the demo's: it brings its own.
ELSEWHERE = ("TEMPORAL_", "PERDURE_CONFIG", "PERDURE_HOME", "PERDURE_WORKSPACE", "PERDURE_TASK_QUEUE")


class _Pages(SimpleHTTPRequestHandler):
    def guess_type(self, path: str | os.PathLike[str]) -> str:
        kind = super().guess_type(path)
        return f"{kind}; charset=utf-8" if kind == "text/html" else kind

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the terminal belongs to the run."""


@contextlib.contextmanager
def serve_site(port: int = 0) -> Iterator[str]:
    """Serve the pages until the block ends, and give their address. Port 0 takes any free one."""
    with ThreadingHTTPServer(("127.0.0.1", port), partial(_Pages, directory=str(PAGES))) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="example-site")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


@click.command("demo", epilog=format_examples("demo"))
def demo_command() -> None:
    """Run an agent on an example site, from goal to artifact.

    It serves the site on loopback, starts Temporal and a worker, and ends them with the run. Its state is in .perdure
    of the current folder. It needs no key: without one, the rehearsal model answers.
    """
    try:
        exit_now(run_demo(resolve_path(Path()) / ".perdure"))
    except ReportedError as error:
        print_error(str(error))
    except OSError as error:
        print_error(f"{error.filename or 'the example site'}: {error.strerror or error}")
    exit_now(1)


def run_demo(home: Path) -> int:
    """Run the agent with its state in `home`, print what it wrote, and return the exit code of the run."""
    run_id = f"demo-{secrets.token_hex(4)}"
    home.mkdir(exist_ok=True)
    with serve_site() as address:
        # Private addresses are refused unless a project allows them; this one allows the example site alone.
        project = home / "demo.toml"
        project.write_text(f'[fetch]\nallow_hosts = ["{address.split("/")[2]}"]\n', encoding="utf-8")
        environment = dict(
            {name: value for name, value in os.environ.items() if not name.startswith(ELSEWHERE)},
            PERDURE_CONFIG=str(project),
            PERDURE_HOME=str(home),
            TEMPORAL_CONFIG_FILE=str(home / "no-profile.toml"),
        )
        goal = f"fetch web {address} and produce a 2 para critique"
        command = [sys.executable, "-Pm", "perdure.cli", "run", "--id", run_id, goal]
        code = subprocess.run(command, cwd=home.parent, env=environment, check=False).returncode
    if code:
        return code  # the run has said why
    for path in sorted((home / "runs" / run_id / "artifacts").glob("*.md")):
        console.print(f"\n{escape(path.read_text(encoding='utf-8').strip())}\n", soft_wrap=True, highlight=False)
    console.print("Look at the run again, in the Web UI and in the terminal:")
    for name in ("dev", "list"):
        console.print(f"  {escape(_own_program())} {name}", soft_wrap=True, highlight=False)
    return code


def _own_program() -> str:
    """Return how a shell in this folder starts this `perdure`."""
    own = Path(sys.argv[0])
    found = shutil.which("perdure")
    if found and own.exists() and Path(found).samefile(own):
        return "perdure"
    return os.path.relpath(own) if own.name == "perdure" else "perdure"
