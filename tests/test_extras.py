"""An installation has what it runs: a client loads no library of the worker, and a part that is missing is one line."""

import json
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from perdure import cli, extras
from perdure.activities.media.check import MediaError, check_media
from perdure.extras import MissingExtraError, naming_extras
from perdure.process.project import build_project
from perdure.settings import ProjectError, load_settings
from tests.test_house import project

ROOT = Path(cli.__file__).parents[1]
# What `from perdure import Perdure` does without: a second of CPU, and most of the size of an installation.
HEAVY = (*extras._EXTRAS, "jsonschema", "regex", "rich", "temporalio.worker", "yaml")


def names_in(texts: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in texts}


def test_a_python_client_loads_no_library_that_it_does_not_need() -> None:
    code = "import json, sys; from perdure import Perdure; print(json.dumps([*sys.modules]))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT).stdout)
    assert "perdure.python_client" in loaded
    assert set(HEAVY) & set(loaded) == set()


@pytest.mark.parametrize(("library", "extra"), extras._EXTRAS.items())
def test_the_extra_that_is_named_brings_the_library(library: str, extra: str) -> None:
    owners = {canonicalize_name(owner) for owner in packages_distributions()[library]}
    declared = project()["project"]
    assert owners & names_in(declared["optional-dependencies"][extra])
    assert not owners & names_in(declared["dependencies"])


def test_all_has_each_part_that_a_person_runs() -> None:
    (everything,) = project()["project"]["optional-dependencies"]["all"]
    assert Requirement(everything).extras == {"gateway", "media", "server", "worker"}


@pytest.mark.parametrize(
    ("library", "command", "line"),
    [
        ("anthropic", ("worker",), "the worker is not installed here: pip install 'perdure[worker]'"),
        ("fastapi", ("gateway",), "the gateway is not installed here: pip install 'perdure[gateway]'"),
        ("a2a", ("gateway",), "A2A is not installed here: pip install 'perdure[a2a]'"),
        ("mcp", ("mcp",), "the worker is not installed here: pip install 'perdure[worker]'"),
        (
            "cryptography",
            ("verify", "x"),
            "encryption and signatures are not installed here: pip install 'perdure[keys]'",
        ),
    ],
)
def test_a_command_without_its_library_is_one_line(
    tmp_path: Path, library: str, command: tuple[str, ...], line: str
) -> None:
    (tmp_path / "perdure.toml").write_text('[features]\nuse = ["a2a"]\n')
    code = f"import sys; sys.modules[{library!r}] = None; sys.argv = {['perdure', *command]!r}; import perdure.cli as c"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; c.main()"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"perdure: {line}\n")


def test_a_tool_that_lacks_its_library_is_named_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in {"a2a", *(name for name in sys.modules if name.startswith("a2a."))}:
        monkeypatch.setitem(sys.modules, loaded, None)
    for loaded in [name for name in sys.modules if name.startswith("perdure.features.a2a_client.")]:
        monkeypatch.delitem(sys.modules, loaded)
    (tmp_path / "perdure.toml").write_text(
        '[tools.far]\nkind = "a2a"\ndescription = "Far away."\nurl = "https://agents.example"\n'
    )
    settings = load_settings({"ANTHROPIC_API_KEY": "x"}, tmp_path)
    with pytest.raises(ProjectError, match=r"tools\.far.*A2A is not installed here: pip install 'perdure\[a2a\]'$"):
        build_project(settings, httpx.AsyncClient())


def test_an_image_without_its_reader_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.activities.media.check.find_spec", lambda _: None)
    with pytest.raises(MediaError, match=r"^a\.gif: .*pip install 'perdure\[media\]'$"):
        check_media(b"GIF89a", "a.gif")


def test_from_python_it_is_an_import_error_of_one_line() -> None:
    code = "import sys; sys.modules['anthropic'] = None; from perdure import PerdurePlugin"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last == ("perdure.extras.MissingExtraError: the worker is not installed here: pip install 'perdure[worker]'")
    assert issubclass(MissingExtraError, ImportError)


def test_a_module_of_the_users_own_stays_the_error_that_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), naming_extras():
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401, PLC0415
