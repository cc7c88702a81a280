"""Features of other packages: found by their entry points, used if `perdure.toml` names them, and not loaded before."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from itertools import chain
from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure import cli, registry
from perdure.process.workflows import build_id
from perdure.registry import BUILT_IN, OPTIONAL, FeatureError, features, load, optional, use, use_of_project, used
from perdure.settings import ProjectError, load_settings

TARGET = re.compile(r"[\w.]+:\w+")
Install = Callable[..., None]
ROW = """
from perdure.registry import Command, Feature
FEATURE = Feature(commands={"%s": Command("%s:say", "Runs", "Say.")})
"""
CODE = "import click\n@click.command()\ndef say():\n    '''Say.'''\n    click.echo('said')\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put packages with an entry point on the path, and forget them afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_used", {})
    monkeypatch.setattr(registry, "_rows", dict(features()))
    names: list[str] = []

    def one(name: str, code: str, target: str = "FEATURE", module: str | None = None) -> None:
        module = module or f"an_{name}"
        names.append(module)
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[perdure.features]\n{name} = {module}:{target}\n")

    yield one
    for name in names:
        sys.modules.pop(name, None)


def test_a_feature_is_loaded_only_if_it_is_used(install: Install) -> None:
    before = build_id()
    install("greet", ROW % ("greet", "an_greet") + CODE)
    assert "greet" not in cli.commands()
    assert "an_greet" not in sys.modules
    use(["greet"])
    assert used() == {"greet": "an_greet 1.2"}
    assert build_id() != before
    done = CliRunner().invoke(cli.app, ["greet"])
    assert (done.output, done.exit_code) == ("said\n", 0)


@pytest.mark.parametrize(
    ("code", "target", "reason"),
    [
        ("FEATURE = 7", "FEATURE", "feature 'odd' is a int; its entry point must name a Feature"),
        ("raise OSError('no disk')", "FEATURE", "feature 'odd' cannot be loaded: OSError: no disk"),
        ("", "FEATURE", "feature 'odd' cannot be loaded: AttributeError: module 'an_odd' has no attribute 'FEATURE'"),
        (ROW % ("schedule", "an_odd"), "FEATURE", "features 'odd' and 'schedules' both have the command 'schedule'"),
    ],
)
def test_a_feature_that_cannot_be_used_is_refused_in_a_line(
    install: Install, code: str, target: str, reason: str
) -> None:
    install("odd", code, target)
    with pytest.raises(FeatureError) as refused:
        use(["odd"])
    assert str(refused.value) == reason
    assert {*features()} == {*BUILT_IN}


def test_settings_name_the_place_of_a_feature_that_is_not_installed(install: Install, tmp_path: Path) -> None:
    install("greet", ROW % ("greet", "an_greet") + CODE)
    path = tmp_path / "perdure.toml"
    path.write_text('[features]\nuse = ["great"]\n')
    with pytest.raises(ProjectError) as refused:
        load_settings({}, tmp_path)
    assert (
        str(refused.value)
        == f"{path}, line 2: features.use: there is no feature 'great'; there are: a2a, ag_ui, greet, mcp_http, web_ui"
    )
    use_of_project(path)  # a command's help works all the same
    path.write_text('[features]\nuse = ["greet"]\n')
    assert load_settings({}, tmp_path).file.features.use == ("greet",)


def test_an_optional_feature_is_off_until_a_project_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_rows", dict(features()))
    path = tmp_path / "perdure.toml"
    path.write_text("[web_ui]\nversion = 7\n")
    with pytest.raises(ProjectError, match="web_ui"):
        load_settings({}, tmp_path)
    before = build_id()
    path.write_text('[features]\nuse = ["web_ui"]\n[web_ui]\nversion = 7\n')
    assert load_settings({}, tmp_path).file.web_ui.version == 7  # type: ignore[attr-defined]  # a feature's table
    assert {*features()} == {*BUILT_IN, "web_ui"}
    assert (used(), build_id()) == ({}, before)


@pytest.mark.parametrize("door", ["web_ui", "ag_ui"])
def test_a_door_for_an_agent_that_there_is_not_is_refused(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_rows", dict(features()))
    path = tmp_path / "perdure.toml"
    path.write_text(f'[features]\nuse = ["{door}"]\n[{door}]\nagent = "defalt"\n')
    read = load(optional()[door].gateway or "")
    with pytest.raises(ProjectError) as refused:
        read(load_settings({}, tmp_path), {})
    assert str(refused.value) == f"{path}, line 3: {door}: there is no agent 'defalt' (did you mean default?)"


def test_an_optional_feature_adds_nothing_to_workers() -> None:
    """So workers of one queue need not name the same ones."""
    assert not {*OPTIONAL} & {*BUILT_IN}
    for row in optional().values():
        added = [row.workflows, row.activities, row.tools, row.events, row.beside_worker, row.paces, row.on_question]
        assert not any([*added, row.on_end, row.project, row.check_worker, row.on_open, row.tool_source])


@pytest.mark.parametrize("text", ["", "[features", "features = 3", "[features]\nuse = 3", "[features]\nuse = [3]"])
def test_a_file_that_does_not_load_adds_no_feature(text: str, tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").write_text(text)
    use_of_project(tmp_path / "perdure.toml")
    use_of_project(tmp_path / "missing.toml")
    assert used() == {}


def test_every_target_of_a_row_exists() -> None:
    targets = [*chain.from_iterable(map(_targets, (*features().values(), *optional().values())))]
    assert len(targets) > 60
    for target in targets:
        assert registry.load(target) is not None


def _targets(value: object) -> Iterator[str]:
    """Every target in a row, however deep."""
    if isinstance(value, str) and TARGET.fullmatch(value):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(_targets, value.values()))
    elif isinstance(value, tuple):
        yield from chain.from_iterable(map(_targets, value))
    elif is_dataclass(value):
        yield from chain.from_iterable(map(_targets, vars(value).values()))
