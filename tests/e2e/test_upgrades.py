"""Builds side by side, and code that does not fit: shown where people look, and gone after the roll-back."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from perdure.client.run_list import find_run
from perdure.devserver import _find_binary
from perdure.testkit.model_server import calls
from perdure.workflows.handlers import UnknownWorkflow
from tests.e2e.projects import Served
from tests.replay.altered import Unguarded
from tests.waiting import until
from tests.workflows.conftest import worlds

ASK = calls(("ask_human", {"question": "Which one?"}))
FINISH = calls(("finish", {"outcome": "done"}))
SHOWN_WITHIN = 90.0  # seconds (R12)


async def test_a_wedged_run_is_shown_as_wedged_and_finishes_after_the_roll_back(served: Served, tmp_path: Path) -> None:
    """Incompatible code is deployed under a run that waits for a person, and rolled back (R12)."""

    def perdure(*args: str, **env: str) -> Any:
        return asyncio.to_thread(served.project.perdure, *args, TEMPORAL_ADDRESS=served.address, **env)

    async with worlds(served.client, tmp_path)([ASK, FINISH], works=False) as it:
        run_id = it.queue
        async with it.worker():
            run = await it.start(run_id=run_id)
            await it.until_state(run, question=True)
        async with it.worker(workflows=(Unguarded, UnknownWorkflow)):
            await run.signal("no_such_signal")
            moved = monotonic()
            await until(lambda: is_wedged(served.client, run_id), SHOWN_WITHIN)
            assert monotonic() - moved < 30  # the embedded server says so sooner than a stock one

            listed = await perdure("list")
            assert [line for line in listed.out.splitlines() if run_id in line and "(wedged)" in line]
            rows = [json.loads(line) for line in (await perdure("list", "--json")).out.splitlines()]
            assert {row["run_id"]: row["wedged"] for row in rows}[run_id] is True
            shown = await perdure("show", run_id)
            assert shown.code == 0
            assert "a wedged run does not answer" in shown.out
            assert "NonDeterministicError: roll the workers back" in shown.out
            checked = await perdure("doctor", PERDURE_TASK_QUEUE=it.queue)
            assert checked.code == 1
            finding = next(line for line in checked.out.splitlines() if " wedged runs " in line)
            assert f"1: {run_id}: its workflow tasks fail" in finding
            assert "NonDeterministicError" in finding
            assert "roll the workers back" in finding
            await run.signal("human_input", {"text": "b"})  # what is sent meanwhile counts
        async with it.worker():
            assert (await asyncio.wait_for(run.result(), 60))["payload"]["outcome"] == "done"
        assert not await is_wedged(served.client, run_id)
        assert "wedged runs        none" in (await perdure("doctor", PERDURE_TASK_QUEUE=it.queue)).out


async def is_wedged(client: Any, run_id: str) -> bool:
    return (await find_run(client, run_id)).is_wedged


def set_current(address: str, build_id: str) -> None:
    """The command of docs/upgrading.md. The server hears of a build with its worker's first poll, a moment late."""
    version = ("--deployment-name", "shop", "--build-id", build_id)
    command = [_find_binary(), "worker", "deployment", "set-current-version", *version, "--yes", "--address", address]
    deadline = monotonic() + 20
    while (done := subprocess.run(command, check=False, capture_output=True, text=True)).returncode:
        assert monotonic() < deadline, done.stderr


def test_two_builds_work_side_by_side_as_processes(served: Served, critique: str) -> None:
    there = {"TEMPORAL_ADDRESS": served.address, "PERDURE_TASK_QUEUE": "side-by-side"}

    def build(number: str) -> dict[str, str]:
        return {**there, "TEMPORAL_DEPLOYMENT_NAME": "shop", "TEMPORAL_WORKER_BUILD_ID": number}

    def doctor(number: str) -> str:
        said: str = served.project.perdure("doctor", **build(number)).out
        return next(line for line in said.splitlines() if " deployment " in line)

    assert "it has no worker yet" in doctor("1")
    with served.project.running(script="worker.py", **build("1")) as old:
        assert old.until("worker ready").rstrip().endswith(", deployment shop, build 1")
        assert "no build is current, so no new run starts: temporal worker deployment set-current" in doctor("1")
        set_current(served.address, "1")
        assert "build 1: it is current" in doctor("1")
        with served.project.running(script="worker.py", **build("2")) as new:
            new.until("build 2")
            set_current(served.address, "2")
            assert "build 1: new runs use build 2" in doctor("1")
            assert old.send_signal(signal.SIGTERM).code == 0
            done = served.project.perdure("run", "--json", critique, **there)
            assert (done.code, json.loads(done.out)["status"]) == (0, "completed")


@pytest.mark.parametrize(
    ("name", "build_id", "says"),
    [
        ("shop", "", "TEMPORAL_DEPLOYMENT_NAME is set and TEMPORAL_WORKER_BUILD_ID is not"),
        ("", "7", "TEMPORAL_WORKER_BUILD_ID is set and TEMPORAL_DEPLOYMENT_NAME is not"),
        ("shop.eu", "7", "a name without . and :"),
        ("__shop", "7", "does not begin with __"),
        ("shop", "7" * 300, "up to 200 characters"),
    ],
)
def test_a_build_that_is_half_named_or_that_the_server_would_not_take_is_refused_in_one_line(
    served: Served, name: str, build_id: str, says: str
) -> None:
    there = {"TEMPORAL_ADDRESS": served.address, "TEMPORAL_DEPLOYMENT_NAME": name, "TEMPORAL_WORKER_BUILD_ID": build_id}
    with served.project.running(script="worker.py", **there) as worker:
        done = worker.wait()
    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert len(done.err.splitlines()) == 1
