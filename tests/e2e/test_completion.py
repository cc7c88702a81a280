"""Completion in a real shell: commands, agents and run ids; never an error, never a server that it has started."""

import shutil
import socket
import subprocess
import time
from typing import Any

import pytest

from tests.e2e.projects import MakeProject, Project, Served
from tests.preloaded import program
from tests.waiting import until

BASH = shutil.which("bash") or ""
# What a person has typed, as bash tells it to the function.
COMPLETES = """
source <("$PERDURE" completion bash)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_perdure_completion "$PERDURE"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(project: Project, *typed: str, **env: str) -> list[str]:
    """What bash offers for the last word."""
    there = {"PERDURE": program("cli"), **env}
    done = subprocess.run(
        [BASH, "-c", COMPLETES, "bash", "perdure", *typed],
        cwd=project.folder,
        env=project.environment(there),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_options_and_agents_are_completed_without_a_server(make_project: MakeProject) -> None:
    project = make_project()
    project.write("agents/clerk.md", "---\ntools: []\n---\nYou take notes.\n")
    project.write("agents/broken.md", "no front matter")
    assert complete(project, "re") == ["resume", "redeliver", "replay"]
    assert complete(project, "schedule", "p") == ["pause"]
    assert complete(project, "list", "--w") == ["--waiting"]
    assert complete(project, "run", "--agent", "cl") == ["clerk"]
    assert complete(project, "show", "") == []
    assert not project.home.exists()


async def test_ids_of_runs_are_completed_those_that_wait_for_an_answer(worked: Served) -> None:
    def perdure(*args: str) -> Any:
        return worked.project.perdure(*args, TEMPORAL_ADDRESS=worked.address)

    for run_id in ("asks-1", "asks $(2)", "over-1"):
        assert perdure("run", "--detach", "--id", run_id, "produce a 2 para critique").code == 0
    await until(lambda: perdure("list", "--waiting", "--json").out.count("\n") == 3)
    assert perdure("cancel", "over-1").code == 0
    # On a busy machine 0.3 s can be too short: a person would press the key again.
    await until(lambda: sorted(complete(worked.project, "show", "")) == ["asks-1", "over-1"])
    await until(lambda: complete(worked.project, "answer", "") == ["asks-1"])
    await until(lambda: complete(worked.project, "watch", "ov") == ["over-1"])
    listed = perdure("list").out.splitlines()
    assert listed[0] == "waits for a person"
    assert "  perdure answer 'asks $(2)' \"…\"" in listed
    assert [line.split()[:2] for line in listed if line.startswith("over-1")] == [["over-1", "cancelled"]]


@pytest.mark.parametrize("is_silent", [True, False])
def test_completion_does_not_wait_for_a_server_that_does_not_answer(make_project: MakeProject, is_silent: bool) -> None:
    project = make_project()
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        if is_silent:
            there.listen()
        began = time.monotonic()
        assert complete(project, "show", "", TEMPORAL_ADDRESS=f"127.0.0.1:{there.getsockname()[1]}") == []
        assert time.monotonic() - began < 20
