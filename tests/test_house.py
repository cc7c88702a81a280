"""The house keeps its own rules: what is shipped, what is pinned, who imports whom, and that importing does nothing."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.metadata import metadata, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from perdure import cli

ROOT = Path(cli.__file__).parents[1]
# Packages and modules that serve the checkout and are not shipped.
NOT_SHIPPED = {"bench", "tests", "docs", "examples", "agents", "build"}

# The wiring: a room, or a module, imports only from the lines above its own, so none of them goes round in a circle.
LAYERS = {f"perdure.{name}" for name in ("contracts", "decisions", "activities", "workflows", "testkit", "features")}
LINKS = ("activities", "workflows")  # real at the root; everything of ours is imported by one name
ORDER = (
    ("perdure.registry", "perdure.extras"),
    ("perdure.telemetry", "perdure.codec", "perdure.stubs"),
    ("perdure.answer_keys",),
    ("perdure.converter", "perdure.settings"),
    ("perdure.client",),
    ("perdure.process",),
    ("perdure.devserver",),
    ("perdure.plugin", "perdure.session"),
    ("perdure.python_client",),
    ("perdure.doctor", "perdure.gateway"),
    ("perdure.terminal",),
    ("perdure.commands",),
    ("perdure.cli",),
)


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def shipped() -> tuple[set[str], set[str]]:
    """The packages that pyproject.toml lists, and no modules beside them."""
    return set(project()["tool"]["setuptools"]["packages"]), set()


def folder_of(package: str) -> Path:
    return ROOT / package.replace(".", "/")


def top_level() -> set[str]:
    """The import names that are ours."""
    packages, modules = shipped()
    return {name.partition(".")[0] for name in packages | modules}


@cache
def sources() -> dict[str, Path]:
    """The file of every module, by its import name; packages are not among them."""
    packages, modules = shipped()
    inside = {f"{name}.{path.stem}": path for name in packages for path in folder_of(name).glob("[!_]*.py")}
    return inside | {name: ROOT / f"{name}.py" for name in modules}


def test_every_package_and_module_is_shipped_and_nothing_else() -> None:
    tops = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NOT_SHIPPED
    assert tops == {"perdure", *LINKS}
    files = [path for top in ("perdure", *(f"perdure/{name}" for name in LINKS)) for path in (ROOT / top).rglob("*.py")]
    assert shipped() == ({".".join(path.parent.relative_to(ROOT).parts) for path in files}, set())
    assert [path.name for path in ROOT.glob("*.py")] == ["worker.py"]


@pytest.mark.parametrize("name", LINKS)
def test_a_folder_at_the_root_is_imported_by_one_name(name: str) -> None:
    """By both, each of its classes would be there twice; `git` keeps the link on systems that have links."""
    assert (ROOT / "perdure" / name).is_symlink()
    assert (ROOT / "perdure" / name).readlink() == Path("..", name)
    sys.modules.pop(name, None)
    with pytest.raises(ImportError, match=rf"import perdure\.{name}"):
        import_module(name)


def test_no_file_is_loaded_by_two_names() -> None:
    """Of all that these tests have loaded so far."""
    places: dict[Path, set[str]] = {}
    for name, module in [*sys.modules.items()]:
        if (file := getattr(module, "__file__", None)) and name != "__main__":
            places.setdefault(Path(file).resolve(), set()).add(name)
    rooms = [(ROOT / "perdure" / name).resolve() for name in (".", *LINKS)]
    twice = {path: names for path, names in places.items() if len(names) > 1 and not {*rooms}.isdisjoint(path.parents)}
    assert twice == {}


def test_files_that_packages_read_are_shipped() -> None:
    patterns = project()["tool"]["setuptools"]["package-data"]
    there = {
        Path(folder, name)
        for folder, _, names in os.walk(ROOT / "perdure", followlinks=True)
        for name in names
        if not name.endswith(".pyc")
    }
    named = {path for name, globs in patterns.items() for glob in globs for path in folder_of(name).glob(glob)}
    named = {path for path in named if path.is_file()}
    assert named == {path for path in there if path.suffix != ".py"}


def test_no_other_distribution_owns_our_import_names() -> None:
    owners = packages_distributions()
    foreign = {name: set(owners.get(name, ())) - {"perdure"} for name in top_level()}
    assert {name: owner for name, owner in foreign.items() if owner} == {}


LOCKS = (Path("requirements.lock"), *sorted(path.relative_to(ROOT) for path in ROOT.glob("bench/peers/*.lock")))


@cache
def locked(lock: Path = LOCKS[0]) -> dict[str, str]:
    """The lock file: each requirement with what belongs to it."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + text)[1:]
    return {entry.split(" ", 1)[0]: entry for entry in entries}


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_every_locked_package_is_pinned_and_has_a_hash(lock: Path) -> None:
    found = locked(lock)
    assert len(found) > 20
    assert [name for name in found if not re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==\S+", name)] == []
    assert [name for name, entry in found.items() if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_a_lock_file_names_no_address(lock: Path) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert not re.search(r"https?://|--(?:extra-)?index-url|--find-links|--trusted-host|@ file", text)


def test_the_lock_file_satisfies_the_dependencies() -> None:
    pins = {canonicalize_name(name.split("==")[0].split("[")[0]): name.split("==")[1] for name in locked()}
    wanted = [
        Requirement(text) for text in (*project()["project"]["dependencies"], *project()["dependency-groups"]["dev"])
    ]
    broken = [str(each) for each in wanted if not each.specifier.contains(pins.get(canonicalize_name(each.name), "0"))]
    assert broken == []


def test_every_locked_package_runs_on_the_oldest_python_that_we_promise() -> None:
    oldest = project()["project"]["requires-python"].removeprefix(">=") + ".0"
    needs = {name: metadata(name.split("==")[0].split("[")[0])["Requires-Python"] for name in locked()}
    assert {name: need for name, need in needs.items() if need and oldest not in SpecifierSet(need)} == {}


def test_every_import_is_a_declared_dependency() -> None:
    packages, _ = shipped()
    files = [*sources().values(), *(folder_of(name) / "__init__.py" for name in packages)]
    names = {name.partition(".")[0] for path in files for name in imported(path)}
    owners = packages_distributions()
    foreign = names - top_level() - sys.stdlib_module_names
    declared = {canonicalize_name(Requirement(text).name) for text in project()["project"]["dependencies"]}
    for texts in project()["project"]["optional-dependencies"].values():
        declared |= {canonicalize_name(Requirement(text).name) for text in texts}
    declared.add(canonicalize_name("pydantic-core"))  # pydantic pins it exactly, to its own version
    assert {n for n in foreign if not {canonicalize_name(o) for o in owners.get(n, ())} & declared} == set()


def test_the_make_targets_of_the_readme_exist() -> None:
    named = set(re.findall(r"\bmake (?:\w+=\S+ )*([a-z-]+)", "\n".join(code_of(ROOT / "README.md"))))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_the_perdure_commands_of_the_readme_exist() -> None:
    named = set(re.findall(r"\bperdure ([a-z]+)", "\n".join(code_of(ROOT / "README.md"))))
    assert {"run", "watch", "answer"} <= named
    assert named <= set(cli.commands())


def code_of(page: Path) -> list[str]:
    """What a Markdown page shows as code."""
    text = page.read_text(encoding="utf-8")
    return [found[1] or found[2] for found in re.finditer(r"```.*?\n(.*?)```|`([^`\n]+)`", text, re.DOTALL)]


def imported(path: Path) -> set[str]:
    """The modules that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & sources().keys()
            found |= inside or {node.module}
    return found


def room_of(module: str) -> str | None:
    """The room of the wiring that it is, or is in; None: it is in none."""
    rooms = {name for names in ORDER for name in names}
    return next((name for name in rooms if f"{module}.".startswith(f"{name}.")), None)


def test_every_module_of_the_wiring_has_its_place_in_the_order() -> None:
    places = {name: room_of(name) or next((x for x in LAYERS if name.startswith(f"{x}.")), None) for name in sources()}
    assert [name for name, place in places.items() if place is None] == []


def test_imports_of_the_wiring_point_one_way() -> None:
    packages, _ = shipped()
    files = {**sources(), **{name: folder_of(name) / "__init__.py" for name in packages}}
    height = {name: level for level, names in enumerate(ORDER) for name in names}
    pairs = {(room_of(name), room_of(other)) for name, path in files.items() for other in imported(path)}
    upward = {
        (room, other) for room, other in pairs if room and other and room != other and height[other] >= height[room]
    }
    assert upward == set()


def test_no_imports_go_round_in_a_circle() -> None:
    files = sources()
    graph = {name: imported(path) & files.keys() for name, path in files.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


CARELESS = """
import random
import secrets
import os, time, uuid
from datetime import date, datetime
CLOCKS = (datetime.now, datetime.utcnow, date.today, time.time, time.monotonic, time.perf_counter)
CHANCE = (uuid.uuid1, uuid.uuid4, os.environ, os.getenv, os.urandom)
"""


@pytest.mark.parametrize(
    ("folder", "banned"),
    [("workflows/agent_run", 13), ("perdure/decisions", 13), ("perdure/contracts", 13), ("perdure", 0)],
)
def test_what_runs_in_a_workflow_may_not_call_a_clock_or_randomness(folder: str, banned: int) -> None:
    command = [
        "ruff",
        "check",
        "--select=TID251",
        "--output-format=concise",
        f"--stdin-filename={folder}/careless.py",
        "-",
    ]
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run(
        [program, *command[1:]], input=CARELESS, text=True, capture_output=True, cwd=ROOT, check=False
    )
    assert done.stdout.count("TID251") == banned, done.stdout + done.stderr


MAX_MODULES = 14  # in a folder: more of them are features that want packages
MAX_DEPTH = 3  # of folders below a layer


def test_a_folder_is_read_at_a_glance() -> None:
    packages, _ = shipped()
    crowded = {name for name in packages if len(list(folder_of(name).glob("[!_]*.py"))) > MAX_MODULES}
    deep = {name for name in packages if name.count(".") > MAX_DEPTH}
    assert (crowded, deep) == (set(), set())


def test_no_public_name_is_defined_in_two_modules() -> None:
    """So a search for a name ends at one place; a shell has the name of its workflow."""
    places: dict[str, set[str]] = {}
    shells = {"perdure.stubs", *(module for module in sources() if module.endswith(".stub"))}
    for module, path in sources().items():
        if module in shells:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                places.setdefault(node.name, set()).add(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


AUDIT = """
import importlib, os, sys, threading

ours, theirs = (names.split(",") for names in sys.argv[1:])
sys.dont_write_bytecode = True
for name in theirs:  # what others do at import is theirs
    importlib.import_module(name)
OUTSIDE = ("socket.", "subprocess.", "os.fork", "os.exec", "os.system", "os.mkdir", "os.remove", "os.rename")
now = "nothing yet"
def watch(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event.startswith(OUTSIDE):
        print(now, event, args)
sys.addaudithook(watch)
environment = dict(os.environ)
for now in ours:
    importlib.import_module(now)
    if threading.active_count() > 1 or environment != dict(os.environ):
        print(now, "started a thread, or changed the environment")
"""


def test_importing_does_nothing() -> None:
    packages, _ = shipped()
    ours = [*sorted(packages), *sorted(sources())]
    named = {name for path in sources().values() for name in imported(path)}
    theirs = {name for name in named if name.partition(".")[0] not in top_level()}
    command = [sys.executable, "-c", AUDIT, ",".join(ours), ",".join(sorted(theirs))]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (said.stdout, said.stderr) == ("", "")


def test_every_module_of_a_folder_is_on_its_map_and_no_other() -> None:
    """An entry begins a line, or stands before a colon (`area and progress: what …`); a name with `_` is no prose."""
    packages, _ = shipped()
    missing, gone = [], []
    for folder in (folder_of(name) for name in (*sorted(packages), "bench")):
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        beside = re.findall(r"((?:\w+(?:, | and ))*\w+):", docstring)
        words = re.findall(r"^\w+(?=\s)|\w+_\w+", docstring, re.MULTILINE)
        entries = {name for group in beside for name in re.split(r", | and ", group)} | set(words)
        modules = {path.stem for path in folder.iterdir()}
        missing += [f"{folder.name}/{path.stem}" for path in folder.glob("[!_]*.py") if path.stem not in entries]
        gone += [name for name in re.findall(r"^(\w+) {2,}", docstring, re.MULTILINE) if name not in modules]
    assert (missing, gone) == ([], [])


def architecture(heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading of docs/architecture.md, without the table's own heading."""
    section = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    rows = re.findall(r"^\| (.*)\|$", section.partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in rows[2:]]


def test_the_rooms_of_the_architecture_page_are_those_of_the_code() -> None:
    layers = ("contracts", "decisions", "workflows", "activities")
    cells = [cell for row in architecture("Rooms") for cell in zip(layers, row[1:], strict=True)]
    named = {f"{layer}/{name}" for layer, cell in cells for name in re.findall(r"`([\w/.]+)`", cell)}
    assert [name for name in named if not (ROOT / "perdure" / name).exists()] == []
    inits = [path for layer in layers for path in (ROOT / "perdure").glob(f"{layer}/*/__init__.py")]
    packages = {f"{path.parent.relative_to(ROOT / 'perdure')}/" for path in inits}
    assert packages - named == set()


def test_the_glossary_has_each_word_once_in_alphabetical_order() -> None:
    words = [word for word, _ in architecture("Glossary")]
    assert words == sorted(set(words))


def test_a_peer_takes_only_the_work_from_us() -> None:
    """Its environment has the peer, and nothing of ours; the suite installs no peer, so nothing here runs one."""
    for path in (ROOT / "bench" / "peers").glob("*.py"):
        names = imported(path)
        assert {name for name in names if name.startswith("bench")} <= {"bench.work", "bench.reports"}, path
        assert {name.partition(".")[0] for name in names} & top_level() == set(), path
    for path in (ROOT / "bench" / "peers" / "crash").glob("*.py"):
        names = imported(path)
        ours = {name for name in names if name.startswith("bench")}
        assert ours <= {"bench.crash", "bench.crash.tools", "bench.peers.crash.serving"}, path
        assert {name.partition(".")[0] for name in names} & top_level() == set(), path
    taken = "import bench.work, bench.reports, bench.crash.tools, bench.crash.nursery"
    alone = [sys.executable, "-S", "-c", taken]  # -S: without what is installed
    assert subprocess.run(alone, cwd=ROOT, check=False).returncode == 0
