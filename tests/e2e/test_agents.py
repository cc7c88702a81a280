"""`perdure agents`: whom a run can be."""

import json
import os

import pytest

from tests.e2e.projects import MakeProject, Project

CLERK = """---
description: takes notes
model: claude-haiku-4-5
tools: [fetch, charge]
peers: [scribe, default]
follow_ups: {sessions: [ops]}
limits: {max_steps: 5, soft_limit: 5m}
---
You take notes.
"""
TOOL = """
[tools.charge]
kind = "http"
url = "http://127.0.0.1:9/charge"
description = "Charge a card."
input_schema = { type = "object" }
"""


@pytest.fixture
def office(make_project: MakeProject) -> Project:
    project = make_project()
    project.write("perdure.toml", TOOL)
    project.write("agents/clerk.md", CLERK)
    project.write("agents/scribe.md", "---\nmailbox: true\n---\n")
    return project


def test_each_agent_is_listed_with_its_tools_and_their_effects(office: Project) -> None:
    done = office.perdure("agents", "--json")
    assert (done.code, done.err) == (0, "")
    rows = {row["agent"]: row for row in json.loads(done.out)}
    assert set(rows) == {"default", "clerk", "scribe"}
    settings = rows["clerk"].pop("settings")
    assert (settings["max_tokens"], settings["effort"], settings["cache"]) == (8192, None, "auto")
    assert rows["clerk"] == {
        "agent": "clerk",
        "description": "takes notes",
        "models": ["claude-haiku-4-5"],
        "tools": {"fetch": "read", "charge": "once"},
        "searched": {"tools": 0, "tokens": 0},
        "pace": "live",
        "peers": ["scribe", "default"],
        "follow_ups": {"sessions": ["ops"]},
        "limits": {"max_steps": 5, "soft_limit": "PT5M"},
        "mailbox": False,
        "file": str(office.folder / "agents/clerk.md"),
    }
    assert (rows["default"]["models"], rows["default"]["file"]) == (["claude-sonnet-5-5"], None)
    assert (rows["scribe"]["mailbox"], rows["scribe"]["models"], rows["scribe"]["tools"]) == (True, [], {})


def test_a_person_sees_the_same_in_a_table(office: Project) -> None:
    done = office.perdure("agents")
    assert (done.code, done.err) == (0, "")
    for words in ("charge (once)", "scribe, default", "soft_limit 5m", "agents/clerk.md", "external: a mailbox"):
        assert words in " ".join(done.out.split()), words


def test_searched_tools_are_counted(office: Project) -> None:
    office.write("agents/finder.md", "---\ntools: [fetch, charge]\nsearch_tools: true\n---\n")
    rows = {row["agent"]: row for row in json.loads(office.perdure("agents", "--json").out)}
    assert rows["finder"]["searched"]["tools"] == 1
    words = "1 of them searched ({:,} tokens)".format(rows["finder"]["searched"]["tokens"])
    assert words in " ".join(office.perdure("agents").out.split())


BROKEN = {
    "broken": ("no front matter", ': expected front matter between two lines "---"'),
    "lonely": (
        "---\npeers: [nobody]\n---\n",
        ", line 2: peers: there is no agent 'nobody'; the agents are: broken, clerk",
    ),
    "lost": ("---\ntools:\n- teleport\n---\n", ", line 3: tools: there is no tool 'teleport'; the tools are: fetch"),
    "odd": ("---\ncolour: red\n---\n", ", line 2: colour: no such setting in this version"),
    "open": ("---\ntools: [fetch\n---\n", ": while parsing a flow sequence, line 2, column 8"),
    "scribe": ("", ": expected front matter"),  # a peer of another one, and reported once
    "twin": ("---\nname: clerk\n---\n", ", line 2: name: agent 'clerk' is already in clerk.md"),
}


def test_each_broken_file_is_one_line_beside_the_others(office: Project) -> None:
    for name, (text, _) in BROKEN.items():
        office.write(f"agents/{name}.md", text)
    done = office.perdure("agents")
    assert done.code == 1
    assert "default" in done.out
    lines = dict(zip(BROKEN, sorted(done.err.splitlines()), strict=True))
    for name, (_, says) in BROKEN.items():
        assert lines[name].startswith(f"perdure: {office.folder}/agents/{name}.md{says}")
    errors = [row["error"] for row in json.loads(office.perdure("agents", "--json").out) if "error" in row]
    assert sorted(errors) == [line.removeprefix("perdure: ") for line in lines.values()]
    refused = office.perdure("run", "anything", "--agent", "odd")
    assert (refused.code, len(refused.err.splitlines())) == (1, 1)


def test_a_pipe_among_the_agent_files_is_reported_and_not_read(office: Project) -> None:
    os.mkfifo(office.folder / "agents/pipe.md")
    done = office.perdure("agents")
    assert (done.code, done.err) == (1, f"perdure: {office.folder}/agents/pipe.md: not a file\n")


def test_a_folder_within_a_project_is_not_taken_for_it_without_a_word(office: Project) -> None:
    done = Project(office.folder / "agents").perdure("agents")
    assert done.code == 0
    assert done.err == (f"perdure: no perdure.toml in this folder, but one in {office.folder}: run the command there\n")
