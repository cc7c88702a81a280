"""The gateway as a process: alone with its own server, and with one that goes away."""

import asyncio
import signal
from contextlib import ExitStack

import httpx

from perdure.devserver import embedded_server
from tests.e2e.projects import MakeProject
from tests.gateway.conftest import make_token
from tests.ports import free_port
from tests.waiting import until


async def test_alone_it_brings_the_server_and_a_worker(make_project: MakeProject) -> None:
    project = make_project()
    token = await asyncio.to_thread(make_token, project, "me", "runs:start", "runs:read", "human:answer")
    with project.running("gateway", "--port", "0") as process:
        url = process.until("gateway").split()[1]
        process.until("No model is configured, so the rehearsal model answers")
        process.until("Ctrl-C")
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60) as http:

            async def ready() -> bool:
                return (await http.get("/readyz")).status_code == 200

            await until(ready)
            started = await http.post("/v1/runs", json={"payload": {"goal": "say hello"}})
            run_id = started.json()["run_id"]

            async def asks() -> bool:
                return run_id in (await http.get("/v1/questions")).text

            await until(asks)  # the rehearsal model asks for a page
        done = await asyncio.to_thread(process.send_signal, signal.SIGTERM)
    assert (done.code, done.err) == (0, "")


async def test_without_temporal_it_says_so_and_lives(make_project: MakeProject) -> None:
    project = make_project()
    token = await asyncio.to_thread(make_token, project, "me", "runs:start", "runs:read")
    with ExitStack() as stack:
        # At the usual port, the server of another test may begin once this one has ended.
        async with embedded_server(project.home, port=free_port()) as server:
            process = stack.enter_context(project.running("gateway", "--port", "0", TEMPORAL_ADDRESS=server.address))
            url = process.until("gateway").split()[1]
            process.until("Ctrl-C")
        await until(lambda: not (project.home / "server.json").exists())  # it takes its time to end
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=90) as http:
            assert (await http.get("/healthz")).status_code == 200
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["temporal"]) == (503, False)
            for answer in await asyncio.gather(
                http.get("/v1/runs"),
                http.get("/v1/runs/one"),
                http.post("/v1/runs", json={"payload": {"goal": "x"}}),
            ):
                assert answer.status_code == 503, answer.text
                assert answer.headers["Content-Type"] == "application/problem+json"
                assert answer.headers["Retry-After"]
