"""The example site on loopback: four small pages about a mill that never was, for agents to fetch and judge."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent / "site"


class _Pages(SimpleHTTPRequestHandler):
    def guess_type(self, path: str | os.PathLike[str]) -> str:
        kind = super().guess_type(path)
        return f"{kind}; charset=utf-8" if kind == "text/html" else kind

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the terminal belongs to the run."""


@contextlib.contextmanager
def serve(port: int = 0) -> Iterator[str]:
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


def main() -> None:
    """`python examples/critique/site_server.py [port]` serves until Ctrl-C."""
    with serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0) as address, contextlib.suppress(KeyboardInterrupt):
        print(address, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
