"""The reference is the code's: it is as the code is now, says of everything what it means, and its examples hold."""

import ast
import gzip
import json
import re
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from pydantic import BaseModel, TypeAdapter
from temporalio.envconfig import ClientConfigProfile

from perdure import cli
from perdure.contracts.models import Duration
from perdure.contracts.run.limits import LimitOverrides
from perdure.settings import DEFAULT_MODEL
from perdure.settings.agents import _FrontMatter
from perdure.settings.file import file_model
from perdure.workflows.execution import FILES, HEARTBEAT
from tests.reference import events, workflow
from tests.reference.configuration import FIELDS, KINDS, TABLES
from tests.reference.examples import EXAMPLES
from tests.reference.failures import SECTIONS
from tests.reference.fields import Fields
from tests.reference.markdown import duration
from tests.reference.meanings import meanings
from tests.reference.pages import PAGES, REFERENCE
from tests.reference.variables import VARIABLES
from tests.replay.record import HISTORIES, SUFFIX
from tests.test_help import ALL
from tests.test_house import folder_of, shipped

ROOT = Path(cli.__file__).parents[1]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_as_the_code_is_now(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), f"{path.name} is stale: run make reference"


def test_each_page_is_in_the_list_for_language_models() -> None:
    listed = re.findall(r"\]\(([^)]+)\)", PAGES[ROOT / "docs" / "llms.txt"]())
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("**/*.md")}
    assert sorted(listed) == sorted({page for page in there if not page.startswith("adr/")} - {"README.md"})


@pytest.mark.parametrize("model", EXAMPLES, ids=lambda model: model.__name__)
def test_an_example_is_what_its_contract_takes_and_nothing_of_it_is_left_out(model: type[BaseModel]) -> None:
    read = model.model_validate(EXAMPLES[model])
    again = json.loads(read.model_dump_json(exclude_unset=True))
    assert again == EXAMPLES[model]


def test_every_word_of_a_failure_is_explained() -> None:
    assert [
        f"{each.__name__}.{one.name}" for _, each, _ in SECTIONS for one in each if not meanings(each).get(one.name)
    ] == []


def test_every_option_is_explained() -> None:
    options = [
        (path, option) for path, command in ALL.items() for option in command.params if isinstance(option, click.Option)
    ]
    assert [(path, option.name) for path, option in options if not option.help] == []


def test_every_setting_is_explained() -> None:
    rows = [line.split(" | ") for made in TABLES.values() for line in made().splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row[0] for row in rows if row[-1].strip(" |") == ""] == []
    models: list[type[BaseModel]] = [LimitOverrides, *KINDS.values()]
    assert [row.name for model in models for row in FIELDS.rows(model) if not row.meaning] == []


def test_what_is_sent_to_a_run_is_explained() -> None:
    given = [each.model for each in events.SECTIONS if isinstance(each, events.Section) and not each.comes_out]
    unsaid = {row.name for model in given for row in Fields(events.ELSEWHERE).rows(model) if not row.meaning}
    # They say it themselves.
    plain = {
        "type",
        "headers",
        "payload.status",
        "messages[].content",
        "data.text",
        "data.definition.version",
        "taskId",
    }
    assert unsaid <= plain


def test_each_signal_and_update_says_what_it_takes() -> None:
    """The table has it from the handlers' code: one that reads its argument otherwise would look as if it took none."""
    silent = [
        (each.__name__, one.name)
        for each in workflow.spoken_to()
        for one in workflow.handlers_of(each)
        if one.kind != "query" and not workflow.models_read(each, one.function)
    ]
    assert silent == []


def test_every_message_that_is_explained_has_an_example() -> None:
    assert {each.model for each in events.SECTIONS if isinstance(each, events.Section)} == EXAMPLES.keys()


def test_the_examples_of_a_project_load() -> None:
    page = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    first, *others = [
        file_model().model_validate(tomllib.loads(t)) for t in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    ]
    assert first.tools.keys() == {"charge", "lookup", "notify"}
    assert others
    [agent] = re.findall(r"```markdown\n---\n(.*?)---\n", page, re.DOTALL)
    assert _FrontMatter.model_validate(yaml.safe_load(agent)).peers == ("writer",)
    assert f"Without it, `{DEFAULT_MODEL}`" in page


@pytest.mark.parametrize("written", ["30s", "2m", "15m", "1h", "1d", "0.5s", "90s"])
def test_a_duration_is_written_as_it_is_read(written: str) -> None:
    read: timedelta = TypeAdapter(Duration).validate_python(written)
    assert duration(read) == written


NAME = re.compile(r"(PERDURE|TEMPORAL|ANTHROPIC|OTEL)_[A-Z_]+")


def named_in_code() -> Iterator[str]:
    """Every string that is the name of such a variable. (`TEMPORAL_` alone, the beginning of many, is none.)"""
    packages, modules = shipped()
    files = [path for name in packages for path in folder_of(name).glob("*.py")] + [
        ROOT / f"{name}.py" for name in modules
    ]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                yield node.value


def test_the_variables_are_those_that_the_code_reads() -> None:
    assert set(named_in_code()) == {name for name, each in VARIABLES.items() if not each.reader}


def test_the_variables_of_compose_are_those_of_its_file() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("docker-compose.yml", ".env.example")]
    named = set(re.findall(r"\$\{(PERDURE_\w+)", texts[0])) | set(
        re.findall(r"^(PERDURE_\w+)=", texts[1], re.MULTILINE)
    )
    theirs = {name for name, each in VARIABLES.items() if each.reader == "docker-compose.yml"}
    assert theirs <= named <= VARIABLES.keys()


def test_temporal_reads_the_variables_that_are_said_to_be_its_own(tmp_path: Path) -> None:
    file = tmp_path / "temporal.toml"
    file.write_text('[profile.other]\naddress = "there:7233"\n', encoding="utf-8")
    by_file = {"TEMPORAL_CONFIG_FILE": str(file), "TEMPORAL_PROFILE": "other"}
    assert ClientConfigProfile.load(override_env_vars=by_file).address == "there:7233"
    theirs = {name for name, each in VARIABLES.items() if each.reader == "temporalio"} - by_file.keys()
    empty = ClientConfigProfile.load(disable_file=True)
    changed = {
        name
        for name in theirs
        if ClientConfigProfile.load(disable_file=True, override_env_vars={name: "true"}) != empty
    }
    assert changed == theirs


RECORDED_HEARTBEAT = timedelta(seconds=10)  # of the recorded histories, from before there was a setting


def test_activities_run_as_long_as_the_reference_says() -> None:
    """The recorded histories tell with what times each was really scheduled."""
    scheduled = list(activities_of_histories())
    assert {name for name, _, _ in scheduled} >= workflow.POLICIES.keys() - workflow.UNRECORDED
    wrong = set()
    for name, start_to_close, recorded in scheduled:
        policy = workflow.POLICIES.get(name, FILES)
        said = policy["start_to_close_timeout"], policy.get("heartbeat_timeout", timedelta())
        heartbeat = HEARTBEAT if recorded == RECORDED_HEARTBEAT else recorded
        if isinstance(said[0], timedelta) and said != (start_to_close, heartbeat):
            wrong.add((name, start_to_close, heartbeat))
    assert wrong == set()


def activities_of_histories() -> Iterator[tuple[str, timedelta, timedelta]]:
    known = {name for name, _ in workflow.activity_names()}
    for path in HISTORIES.rglob(f"*{SUFFIX}"):
        for event in json.loads(gzip.decompress(path.read_bytes()))["events"]:
            scheduled: dict[str, Any] = event.get("activityTaskScheduledEventAttributes") or {}
            if (name := scheduled.get("activityType", {}).get("name")) in known:
                seconds = (
                    float(scheduled[each].removesuffix("s")) for each in ("startToCloseTimeout", "heartbeatTimeout")
                )
                yield name, *(timedelta(seconds=each) for each in seconds)
