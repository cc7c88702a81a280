"""`perdure new`: a project outside of the checkout, with Perdure installed from its wheel."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

import cli
from perdure.testkit.model_server import ScriptedModel, calls, says
from tests.e2e.projects import MakeProject

ROOT = Path(cli.__file__).parent
PATIENCE = 240.0
LEFT_OUT = (".*", "build", "*.egg-info", "__pycache__", "tests", "bench", "docs", "examples")
FILES = {"perdure.toml", "README.md", "pytest.ini", ".gitignore", "orders.py", "agents/my-shop.md"}


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
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*LEFT_OUT))
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
    where = shop.command("python", "-c", "import cli, commands; print(cli.__file__, commands.__file__)").stdout
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


def test_its_agent_runs(shop: Shop, tmp_path: Path) -> None:
    script = [calls(("order_status", {"order_id": "A-1002"})), says("It waits for the payment.")]
    with ScriptedModel(script) as model:
        env = {"ANTHROPIC_BASE_URL": model.base_url, "PERDURE_HOME": str(tmp_path / "state")}
        done = shop.command("perdure", "run", "--json", "--agent", "my-shop", "where is A-1002?", **env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["event"]["payload"]["outcome"] == "It waits for the payment."
    assert "waiting for the payment" in json.dumps(model.requests[-1])


def test_a_module_of_a_name_that_perdure_has_is_named_by_doctor(make_project: MakeProject) -> None:
    project = make_project()
    project.write("tooling.py", "")
    checks = {row["name"]: row for row in map(json.loads, project.perdure("doctor", "--json").out.splitlines())}
    assert checks["module names"]["ok"]
    project.write("worker.py", "")
    project.write("settings/__init__.py", "")
    done = project.perdure("doctor", "--json")
    checks = {row["name"]: row for row in map(json.loads, done.out.splitlines())}
    found = f"Perdure's own modules shadow `settings`, `worker` in {project.folder}; rename yours"
    assert (done.code, checks["module names"]["ok"], checks["module names"]["found"]) == (1, False, found)


def test_a_folder_with_something_in_it_is_refused(make_project: MakeProject) -> None:
    project = make_project()
    before = sorted(project.folder.rglob("*"))
    reasons = {".": "it is not empty", "perdure.toml": "it is a file", "perdure.toml/x": "Not a directory"}
    for folder, says_ in reasons.items():
        done = project.perdure("new", folder)
        assert done.error().startswith(f"perdure: {folder}: {says_}")
    assert sorted(project.folder.rglob("*")) == before
