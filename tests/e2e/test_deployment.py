"""What is deployed: the files that say how are well-formed and true, and workers share one queue and one store."""

import asyncio
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from temporalio.client import Client

from perdure import cli
from perdure.devserver import DYNAMIC_CONFIG
from tests.e2e.projects import Served

ROOT = Path(cli.__file__).parents[1]
BIN = Path(sys.executable).parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONCE = {"schema", "namespace"}  # do their work and end


def tool(name: str, *args: str) -> str:
    done = subprocess.run([BIN / name, *args], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_compose_file_is_one_by_the_published_schema() -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml")


def test_the_dockerfile_has_no_known_fault() -> None:
    tool("hadolint", "Dockerfile")


def test_every_image_is_pinned_and_temporals_are_those_that_the_tests_run_against() -> None:
    images = {service["image"].partition(":")[::2] for service in SERVICES.values()}
    assert all(re.fullmatch(r"\d+\.\d+(\.\d+)?(-\w+)?", tag) for _, tag in images)
    server, ui = re.search(r"Server (\S+), UI (\S+)\)", tool("temporal", "--version")).groups()  # type: ignore[union-attr]
    assert {(name, tag) for name, tag in images if name.startswith("temporalio/")} == {
        ("temporalio/server", server),
        ("temporalio/admin-tools", server),
        ("temporalio/ui", ui),
    }


def test_whatever_stays_up_is_watched_and_comes_back() -> None:
    for name in SERVICES.keys() - ONCE:
        assert SERVICES[name]["restart"] == "unless-stopped", name
        assert "healthcheck" in SERVICES[name], name


def test_what_a_service_depends_on_is_there() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES, name
            assert (how["condition"] == "service_completed_successfully") is (needed in ONCE), (name, needed)
    named = {mount.partition(":")[0] for service in SERVICES.values() for mount in service.get("volumes", ())}
    assert {volume for volume in named if re.fullmatch(r"\w+", volume)} == COMPOSE["volumes"].keys()


def test_secrets_come_from_the_environment_and_env_example_names_them() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    wanted = set(re.findall(r"\$\{(\w+):[?-]", text))
    named = set(re.findall(r"^(\w+)=", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE))
    assert wanted - {"PERDURE_UI_PORT", "PERDURE_GATEWAY_PORT", "PERDURE_MEMORY"} == named
    assert not re.search(r"(PASSWORD|KEY|TOKENS)\w*: [^$\s]", text)


def test_no_container_gains_privileges_and_ours_write_to_their_volumes_alone() -> None:
    for name, service in SERVICES.items():
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert name == "postgresql" or service["cap_drop"] == ["ALL"], name
        assert not service["image"].startswith("perdure:") or service["read_only"], name


def test_the_gateway_has_no_model_key_and_none_of_the_runs_files() -> None:
    gateway, worker = SERVICES["gateway"], SERVICES["worker-1"]
    assert {"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"} <= worker["environment"].keys() - gateway["environment"].keys()
    assert [mount.partition(":")[2] for mount in gateway["volumes"][1:]] == ["/data/runs/.watched"]
    assert gateway["volumes"][0].endswith(":/project:ro")
    assert gateway["volumes"][1] in [mount.strip() for mount in worker["volumes"]]


def test_temporal_cancels_and_shares_as_the_embedded_server_does() -> None:
    (mount,) = SERVICES["temporal"]["configs"]
    assert mount["target"] == "/etc/temporal/config/dynamicconfig/docker.yaml"  # read by default
    given = yaml.safe_load(COMPOSE["configs"][mount["source"]]["content"])
    assert len(given) == 5
    assert {name: DYNAMIC_CONFIG[name] for name in given} == {name: row["value"] for name, (row,) in given.items()}


def test_the_web_ui_is_read_only_unless_set_otherwise() -> None:
    assert SERVICES["ui"]["environment"]["TEMPORAL_DISABLE_WRITE_ACTIONS"] == "${PERDURE_UI_READ_ONLY:-true}"


def test_the_image_has_what_the_lock_has() -> None:
    """The image takes the product's own part of what the tests run with."""
    pinned, runtime = (
        set(re.findall(r"^([\w.-]+==\S+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
        for name in ("requirements.lock", "requirements.runtime.lock")
    )
    assert runtime < pinned
    assert not {line for line in runtime if line.startswith(("pytest", "mypy", "ruff", "moto"))}


@pytest.mark.parametrize("name", ["worker-1", "worker-2", "gateway"])
def test_each_service_of_ours_runs_an_existing_command(served: Served, name: str) -> None:
    done = served.project.perdure(*SERVICES[name]["command"].split(), "--help")
    assert done.code == 0, done.err


def test_doctor_asks_the_object_stores(served: Served, bucket: str) -> None:
    stores = {"PERDURE_STORE": bucket, "PERDURE_PAYLOADS": bucket, "TEMPORAL_ADDRESS": served.address}
    well = served.project.perdure("doctor", **stores)
    assert f"{bucket}: answers, 0 runs" in well.out
    assert "PERDURE_PAYLOADS answers" in well.out
    away = served.project.perdure("doctor", **stores, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    lines = [line for line in away.out.splitlines() if line.startswith("✗") and "Generic S3 error" in line]
    assert [line[2:16] for line in lines] == ["object store  ", "large payloads"]


def test_a_store_that_is_none_is_one_line(served: Served) -> None:
    for variable in ("PERDURE_STORE", "PERDURE_PAYLOADS"):
        done = served.project.perdure("worker", TEMPORAL_ADDRESS=served.address, **{variable: "ftp://nowhere/x"})
        assert (done.code, done.err.count("\n")) == (1, 1), done.err
        assert f"{variable}: ftp://nowhere/x" in done.err


async def test_three_workers_share_a_queue_and_a_store_and_one_may_die(
    served: Served, critique: str, bucket: str
) -> None:
    shared = {
        "TEMPORAL_ADDRESS": served.address,
        "PERDURE_TASK_QUEUE": "three",
        "PERDURE_STORE": bucket,
        "PERDURE_PAYLOADS": bucket.replace("/runs", "/payloads"),
    }
    ids = [f"three-{number}" for number in range(6)]
    with ExitStack() as stack:
        workers = [stack.enter_context(served.project.running(script="worker.py", **shared)) for _ in range(3)]
        for worker in workers:
            await asyncio.to_thread(worker.until, "worker ready")
        for name in ids:
            done = await asyncio.to_thread(served.project.perdure, "run", critique, "--id", name, "--detach", **shared)
            assert done.code == 0, done.err
        workers[0].send_signal(signal.SIGKILL)
        runs = [served.client.get_workflow_handle(f"run:{name}") for name in ids]
        outcomes = [await run.result() for run in runs]
    assert [outcome["type"] for outcome in outcomes] == ["agent.completed"] * len(ids)
    worked = set().union(*[await who_worked(served.client, run.id) for run in runs])
    assert len(worked) > 1


async def who_worked(client: Client, workflow_id: str) -> set[str]:
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    return {
        event.activity_task_started_event_attributes.identity
        for event in history.events
        if event.HasField("activity_task_started_event_attributes")
    }


def test_the_quick_check_asks_the_server_and_what_the_container_runs(served: Served) -> None:
    alone = served.project.perdure("doctor", "--quick")
    assert (alone.code, alone.out) == (1, "✗ Temporal           none is configured: set TEMPORAL_ADDRESS\n")
    here = {"TEMPORAL_ADDRESS": served.address}
    well = served.project.perdure("doctor", "--quick", **here)
    assert (well.code, well.out) == (0, "✓ Temporal           answers, namespace default\n")
    idle = served.project.perdure("doctor", "--quick", PERDURE_METRICS="127.0.0.1:9", **here)
    assert (idle.code, idle.out.splitlines()[1]) == (1, "✗ worker             no poller is on the page at 127.0.0.1:9")
    away = served.project.perdure("doctor", "--quick", "--gateway", "http://127.0.0.1:9", **here)
    assert (away.code, away.out.splitlines()[1]) == (1, "✗ gateway            not ready at http://127.0.0.1:9")
