"""`perdure new`: a project outside of the checkout, with Perdure installed from its wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure import cli
from perdure.testkit.model_server import ScriptedModel, calls, says
from tests.e2e.projects import MakeProject

ROOT = Path(cli.__file__).parents[1]
PATIENCE = 240.0
LEFT_OUT = (".*", "build", "*.egg-info", "__pycache__", "tests", "bench", "docs", "examples")
FILES = {
    "perdure.toml",
    "policy.toml",
    "README.md",
    "AGENTS.md",
    "pytest.ini",
    ".gitignore",
    "orders.py",
    "agents/my-shop.md",
    "tests/policy.yaml",
    "tests/crash.yaml",
}


@dataclass(frozen=True)
class Shop:
    """A project as `perdure new` has made it, and the commands of the environment that Perdure is installed in."""

    folder: Path
    bin: Path
    said: str

    def command(self, name: str, *args: str, **env: str) -> "subprocess.CompletedProcess[str]":
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "PERDURE_", "ANTHROPIC_"))}
        plain |= {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1", **env}
        plain.pop("PYTHONPATH", None)
        command = [str(self.bin / name), *args]
        folder = self.folder if self.folder.is_dir() else self.folder.parent
        return subprocess.run(
            command, cwd=folder, env=plain, capture_output=True, text=True, timeout=PATIENCE, check=False
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves its own files in the folder."""
    source, out = tmp_path_factory.mktemp("source") / "perdure", tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out)]
    subprocess.run([*build, str(source)], check=True, capture_output=True, timeout=PATIENCE)
    (built,) = out.glob("perdure-*.whl")
    return built


@pytest.fixture(scope="module")
def shop(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """An environment with the wheel in it; what it depends on is borrowed from ours, without our checkout."""
    home = tmp_path_factory.mktemp("elsewhere")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "venv")], check=True, timeout=PATIENCE)
    python = home / "venv" / "bin" / "python"
    found = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    theirs = Path(found.stdout.strip())
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--no-index", str(wheel)], check=True, capture_output=True, timeout=PATIENCE)
    (theirs / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    (python.parent / "temporal").symlink_to(Path(sys.executable).parent / "temporal")
    made = Shop(home / "My Shop", python.parent, "")
    done = made.command("perdure", "new", "My Shop")
    assert (done.returncode, done.stderr) == (0, "")
    return Shop(made.folder, made.bin, done.stdout)


def test_perdure_is_not_the_checkout_there(shop: Shop) -> None:
    where = shop.command(
        "python", "-c", "import perdure, perdure.workflows as w; print(perdure.__file__, w.__file__)"
    ).stdout
    assert str(ROOT) not in where


def test_a_project_has_an_agent_of_its_name_tools_and_a_test(shop: Shop) -> None:
    there = {str(path.relative_to(shop.folder)) for path in shop.folder.rglob("*") if path.is_file()}
    assert FILES | {"tests/test_my_shop.py"} <= there
    assert "cd 'My Shop'" in shop.said
    text = "".join((shop.folder / name).read_text(encoding="utf-8") for name in there if ".perdure" not in name)
    assert "$" not in text
    agents = json.loads(shop.command("perdure", "agents", "--json").stdout)
    (agent,) = [each for each in agents if each["agent"] == "my-shop"]
    assert agent["tools"] == {"order_status": "read", "cancel_order": "once"}


def test_its_own_tests_pass(shop: Shop) -> None:
    done = shop.command("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_its_policy_gives_the_verdicts_that_its_cases_expect(shop: Shop) -> None:
    done = shop.command("perdure", "policy", "test", "tests/policy.yaml")
    assert (done.returncode, done.stdout.count("ok  "), done.stderr) == (0, 3, "")


def test_its_crash_case_passes(shop: Shop) -> None:
    done = shop.command("perdure", "crashtest", "tests/crash.yaml", "--sample", "2", "--kill", "worker")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed: cancel order A-1002" in done.stdout


def test_the_commands_that_its_guide_names_exist(shop: Shop) -> None:
    guide = (shop.folder / "AGENTS.md").read_text(encoding="utf-8")
    assert set(re.findall(r"perdure ([a-z]+)", guide)) <= set(cli.commands())
    assert {"tests/policy.yaml", "tests/crash.yaml"} <= set(re.findall(r"tests/\w+\.yaml", guide))
    assert set(re.findall(r"^perdure ([a-z]+)", guide, re.MULTILINE)) >= {"doctor", "policy", "crashtest", "run"}


def test_its_agent_runs(shop: Shop, tmp_path: Path) -> None:
    script = [calls(("order_status", {"order_id": "A-1002"})), says("It waits for the payment.")]
    with ScriptedModel(script) as model:
        env = {"ANTHROPIC_BASE_URL": model.base_url, "PERDURE_HOME": str(tmp_path / "state")}
        done = shop.command("perdure", "run", "--json", "--agent", "my-shop", "where is A-1002?", **env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["event"]["payload"]["outcome"] == "It waits for the payment."
    assert "waiting for the payment" in json.dumps(model.requests[-1])


OWN = ("activities", "workflows", "worker", "settings", "contracts", "decisions", "gateway", "process")
HOST = """
import asyncio
import json
import sys

import activities
import contracts
import settings
import worker
import workflows
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure import PerdurePlugin


async def main():
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=sys.argv[1]) as server:
        target = server.client.service_client.config.target_host
        client = await Client.connect(target, plugins=[PerdurePlugin()])
        async with Worker(client, task_queue="perdure", workflows=[workflows.Hello]):
            print(await client.execute_workflow(workflows.Hello.run, id="h", task_queue="perdure"), flush=True)


asyncio.run(main())
"""
HELLO = """
from temporalio import workflow

@workflow.defn
class Hello:
    @workflow.run
    async def run(self) -> str:
        return "own hello"
"""


@pytest.fixture(scope="module")
def own_names(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A project whose modules have names of Perdure's rooms; each has a tool."""
    folder = tmp_path_factory.mktemp("names")
    tables = []
    for name in OWN:
        path = folder / name / "__init__.py" if name in ("contracts", "process") else folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        tool = f'def look_{name}() -> str:\n    "Looks."\n    return "own {name}"\n'
        path.write_text(tool + (HELLO if name == "workflows" else ""), encoding="utf-8")
        tables.append(f'[tools.look_{name}]\nkind = "python"\neffect = "read"\ntarget = "{name}:look_{name}"\n')
    (folder / "perdure.toml").write_text("".join(tables), encoding="utf-8")
    (folder / "host.py").write_text(HOST, encoding="utf-8")
    (folder / "agents").mkdir()
    tools = ", ".join(f"look_{name}" for name in OWN)
    (folder / "agents" / "all.md").write_text(f"---\ntools: [{tools}]\n---\nLook.\n", encoding="utf-8")
    test = "".join(f"def test_{n}():\n    import {n}\n    assert {n}.look_{n}() == 'own {n}'\n" for n in OWN)
    (folder / "test_own.py").write_text(test, encoding="utf-8")
    return Shop(folder, shop.bin, "")


def test_each_name_of_a_room_is_free_for_a_projects_module(own_names: Shop, tmp_path: Path) -> None:
    script = [calls(*((f"look_{name}", {}) for name in OWN)), says("seen")]
    with ScriptedModel(script) as model:
        env = {"ANTHROPIC_BASE_URL": model.base_url, "PERDURE_HOME": str(tmp_path / "state")}
        done = own_names.command("perdure", "run", "--json", "--agent", "all", "look", **env)
        shown = json.dumps(model.requests[-1])
        assert (done.returncode, [name for name in OWN if f"own {name}" not in shown]) == (0, []), done
        for command in (("tools",), ("agents",), ("list",), ("doctor",)):
            done = own_names.command("perdure", *command, **env)
            assert done.returncode == 0, done


def test_pytest_and_a_host_of_the_plugin_import_the_projects_own_modules(own_names: Shop) -> None:
    done = own_names.command("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio")
    assert f"{len(OWN)} passed" in done.stdout, done.stdout + done.stderr
    done = own_names.command("python", "host.py", str(Path(sys.executable).parent / "temporal"))
    assert "own hello" in done.stdout, done.stdout + done.stderr


def test_a_folder_with_something_in_it_is_refused(make_project: MakeProject) -> None:
    project = make_project()
    before = sorted(project.folder.rglob("*"))
    reasons = {".": "it is not empty", "perdure.toml": "it is a file", "perdure.toml/x": "Not a directory"}
    for folder, says_ in reasons.items():
        done = project.perdure("new", folder)
        assert done.error().startswith(f"perdure: {folder}: {says_}")
    assert sorted(project.folder.rglob("*")) == before
