"""Each fault of each file is reported at once, in a line with its place; what does not need the faulty part works."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.run.definition import agent_of
from perdure.process.project import display_project, must_load
from perdure.settings import ProjectError, load_settings

BROKEN = {
    "perdure.toml": "[limits]\nmax_step = 3\n\n[worker]\ngrace = 'soon'\n\n[[notify]]\nname = 'ops'\nkind = 'fax'\n",
    ".mcp.json": "{",
    "agents/one.md": "---\nmodell: x\njournal: 7\n---\n",
    "agents/two.md": "no front matter\n---",
}
PLACES = (
    "perdure.toml, line 2: limits.max_step: no such setting",
    "perdure.toml, line 5: worker.grace:",
    "perdure.toml, line 7: notify.0.kind:",
    ".mcp.json: ",
    "agents/one.md, line 2: modell: no such setting",
    "agents/one.md, line 3: journal:",
)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_all_faults_of_all_files_come_at_once_each_in_a_line_with_its_place(tmp_path: Path) -> None:
    write(tmp_path, BROKEN)
    with pytest.raises(ProjectError) as raised:
        load_settings({}, tmp_path)
    lines = str(raised.value).splitlines()
    assert [place for place in PLACES if not any(place in line for line in lines)] == [], lines
    assert [line for line in lines if "Traceback" in line or not line.startswith(str(tmp_path))] == []


def test_a_faulty_agent_file_stops_that_agent_and_those_that_need_it_alone(tmp_path: Path) -> None:
    agents = {"a": "tools: [nosuch]", "b": "peers: [nobody]", "lead": "peers: [a]", "top": "peers: [lead]", "good": ""}
    write(tmp_path, {f"agents/{name}.md": f"---\n{head}\n---\n" for name, head in agents.items()})
    settings = load_settings({}, tmp_path)
    assert [path.stem for path in settings.roster.faults] == ["a", "b", "lead", "top"]
    assert [*settings.agents] == ["default", "good"]
    for name, reason in {
        "a": "no tool 'nosuch'",
        "b": "no agent 'nobody'",
        "lead": "'a' does not",
        "top": "'lead'",
    }.items():
        with pytest.raises(ProjectError, match=rf"{name}\.md, line 2: .*{reason}"):
            settings.agent(name)


@pytest.mark.parametrize(
    ("files", "faulty"),
    [
        ({"default": "journal: 7"}, "default"),
        ({"mine": "name: default\njournal: 7"}, "default"),
        ({"one": "name: same", "two": "name: same"}, "same"),
    ],
    ids=["in place of the built-in one", "by its name", "two of one name"],
)
def test_no_other_agent_stands_in_for_a_faulty_one(tmp_path: Path, files: dict[str, str], faulty: str) -> None:
    write(tmp_path, {f"agents/{name}.md": f"---\n{head}\n---\n" for name, head in files.items()})
    settings = load_settings({}, tmp_path)
    with pytest.raises(ProjectError, match=r"\.md, line \d: "):
        settings.agent(faulty)


def test_a_run_of_a_faulty_agent_fails_with_the_line_of_its_file(tmp_path: Path) -> None:
    write(tmp_path, {"agents/bad.md": "---\njournal: 7\n---\n", "agents/good.md": "---\ndescription: works\n---\n"})

    async def find(name: str) -> str:
        async with display_project(load_settings({}, tmp_path), is_worker=True) as project:
            return agent_of(project, name).description

    assert asyncio.run(find("good")) == "works"
    with pytest.raises(ApplicationError, match=r"bad\.md, line 2: journal: ") as raised:
        asyncio.run(find("bad"))
    assert raised.value.non_retryable


def test_the_faults_of_tools_and_policy_come_with_the_others(tmp_path: Path) -> None:
    rules = '[[rule]]\nname = "r"\nthen = "perhaps"\n\n[[rule]]\nname = "s"\nthen = "ask"\nquorum = 0\n'
    tools = '[tools.one]\nkind = "python"\ntarget = "no_module:one"\n\n[tools.two]\nkind = "pyton"\n\n'
    headers = '[tools.far]\nkind = "http"\nurl = "https://x.test"\neffect = "read"\ndescription = "d"\n'
    headers += 'input_schema = {type = "object"}\nheaders_env = {x-key = "FAR_KEY"}\n'
    write(tmp_path, {"perdure.toml": tools + headers, "policy.toml": rules})
    settings = load_settings({}, tmp_path, strict=False)
    with pytest.raises(ProjectError) as raised:
        asyncio.run(must_load(settings))
    lines = str(raised.value).splitlines()
    places = (
        "tools.one.target: ",
        "tools.two: ",
        "tools.far.headers_env.x-key: ",
        "line 3: rule.then",
        "line 8: rule.quorum",
    )
    assert sorted(place for place in places for line in lines if place in line) == sorted(places), lines
    assert len(lines) == len(places), lines


@pytest.mark.parametrize(
    ("command", "works"),
    [(("token", "create", "ci", "--scope", "runs:read"), True), (("token", "list"), True), (("agents",), False)],
    ids=["token create", "token list", "agents"],
)
def test_a_command_that_needs_no_file_works_beside_faulty_ones(
    tmp_path: Path, command: tuple[str, ...], *, works: bool
) -> None:
    write(tmp_path, BROKEN)
    done = subprocess.run(
        [sys.executable, "-m", "perdure.cli", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == works, done
    assert works or all(line.startswith("perdure: ") for line in done.stderr.splitlines()), done
