"""`python -m bench.gateway`: how many requests a gateway answers, and what open streams cost it."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx

ROOT = Path(__file__).parent.parent
REQUESTS, AT_ONCE, STREAMS = 2000, 16, 100


@contextlib.contextmanager
def gateway(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Its address, a token and its process id; the server and the worker are in other processes."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "ANTHROPIC_"))}
    env = {**plain, "PERDURE_HOME": str(folder / "home")}
    perdure = [sys.executable, "-Pm", "perdure.cli"]
    scopes = [part for scope in ("runs:start", "runs:read") for part in ("--scope", scope)]
    made = subprocess.run(
        [*perdure, "token", "create", "bench", *scopes], env=env, cwd=folder, capture_output=True, text=True, check=True
    )
    with subprocess.Popen([*perdure, "dev"], env=env, cwd=folder, stdout=subprocess.PIPE, text=True) as dev:
        address = _line(dev, "Temporal").split()[1]
        _line(dev, "Ctrl-C")
        env["TEMPORAL_ADDRESS"] = address
        command = [*perdure, "gateway", "--port", "0"]
        with subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, text=True) as door:
            url = _line(door, "gateway").split()[1]
            _line(door, "Ctrl-C")
            try:
                yield url, made.stdout.strip(), door.pid
            finally:
                door.terminate()
                dev.terminate()


def _line(process: "subprocess.Popen[str]", words: str) -> str:
    assert process.stdout is not None
    return next(line for line in process.stdout if words in line)


def cost(pid: int) -> tuple[float, int]:
    """Resident memory in MiB, and open descriptors."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def rate(http: httpx.AsyncClient, path: str) -> float:
    async def some() -> None:
        for _ in range(REQUESTS // AT_ONCE):
            (await http.get(path)).raise_for_status()

    began = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return REQUESTS / (time.perf_counter() - began)


def stream(url: str, token: str, run_id: str) -> socket.socket:
    where = urlsplit(url)
    made = socket.create_connection((str(where.hostname), where.port or 80))
    head = f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\r\n"
    made.sendall(head.encode())
    assert made.recv(1024).startswith(b"HTTP/1.1 200")
    return made


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, gateway(Path(folder)) as (url, token, pid):
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60) as http:
            started = await http.post("/v1/runs", json={"payload": {"goal": "say hello"}})
            run_id = started.json()["run_id"]
            await http.get(f"/v1/runs/{run_id}/result?wait=5")  # by then it waits for a person
            print(f"GET /healthz          {await rate(http, '/healthz'):7.0f} a second")
            print(f"GET /v1/runs/{{id}}     {await rate(http, f'/v1/runs/{run_id}'):7.0f} a second")
            found = {}
            for round_ in range(3):
                open_ = [stream(url, token, run_id) for _ in range(STREAMS)]
                await asyncio.sleep(5)
                found[f"{STREAMS} streams, round {round_ + 1}"] = cost(pid)
                for each in open_:
                    each.close()
                await asyncio.sleep(3)
                found[f"after they left, {round_ + 1}"] = cost(pid)
            for what, (memory, descriptors) in found.items():
                print(f"{what:<22} {memory:6.1f} MiB, {descriptors} descriptors")
            open_ = [stream(url, token, run_id) for _ in range(STREAMS)]
            print(f"the same beside them  {await rate(http, f'/v1/runs/{run_id}'):7.0f} a second")
            for each in open_:
                each.close()


if __name__ == "__main__":
    asyncio.run(main())
