"""`collect`: what of a subtask reaches others, and what is counted where nobody can tell."""

import os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from perdure.activities.project import Project
from perdure.contracts.agent import Agent
from perdure.contracts.model_settings import ModelOptions
from perdure.contracts.run.limits import LimitOverrides, Share, Spent, SubtaskStatus
from perdure.features.delegation.activities import Delegations
from perdure.features.delegation.contract import Collected, CollectRequest


def project(folder: Path) -> Project:
    return Project(
        agents={"default": Agent(name="default", tools=())},
        tools={},
        model="scripted",
        options=ModelOptions(max_tokens=1024),
        limits=LimitOverrides(),
        workspaces=folder,
        instructions="",
    )


class Closed:
    """A closed run: how it ended, and what it answers."""

    id = "run:child"

    def __init__(self, event: dict[str, Any] | Exception, view: Any) -> None:
        self._event, self._view = event, view

    async def result(self) -> dict[str, Any]:
        if isinstance(self._event, Exception):
            raise self._event
        return self._event

    async def query(self, name: str, *, result_type: type, rpc_timeout: timedelta) -> Any:
        if isinstance(self._view, Exception):
            raise self._view
        return self._view


def view(*artifacts: str) -> Any:
    usage = SimpleNamespace(total=70)
    spent = Spent(steps=3, tokens=30)
    figures = {"step": 2, "usage": usage, "cost_usd": 0.5, "delegated": spent, "follow_ups": 0}
    return SimpleNamespace(parent="lead", artifacts=artifacts, **figures)


async def collect(folder: Path, event: Any, answer: Any, most: int = 1000, attempt: int = 1) -> Collected:
    client: Any = SimpleNamespace(get_workflow_handle=lambda *_, **__: Closed(event, answer))
    share = Share(steps=5, tokens=100)
    request = CollectRequest(run_id="child", subtask="a", into=("lead", "other"), share=share, most=most)
    environment = ActivityEnvironment()
    environment.info = environment.default_info().__class__(**{**vars(environment.default_info()), "attempt": attempt})
    return await environment.run(Delegations(client, project(folder)).collect, request)


def done(outcome: str = "It is 4.") -> dict[str, Any]:
    return {"type": "agent.completed", "payload": {"outcome": outcome}}


async def test_only_named_files_are_copied_to_the_runs_that_need_them(tmp_path: Path) -> None:
    theirs = project(tmp_path).workspace("child")
    theirs.create()
    theirs.write("artifacts/x.md", b"x")
    theirs.write("notes.md", b"n")
    (theirs.root / "artifacts" / "link").symlink_to("/etc/hosts")
    (theirs.root / "other").write_text("a file of another name")
    (theirs.root / "artifacts" / "hard").hardlink_to(theirs.root / "other")
    (theirs.root / ".secret").write_text("no")
    links = ("artifacts/link", "artifacts/hard")
    names = ("artifacts/x.md", "notes.md", *links, ".secret", "../lead/y", "gone.md", "/etc/hosts")
    end = await collect(tmp_path, done(), view(*names))
    assert end.artifacts == ("artifacts/a/x.md", "artifacts/a/notes.md")
    for run in ("lead", "other"):
        assert sorted(path.name for path in (tmp_path / run / "artifacts" / "a").iterdir()) == ["notes.md", "x.md"]


async def test_a_second_subtask_of_one_name_leaves_what_the_first_has_brought(tmp_path: Path) -> None:
    theirs = project(tmp_path).workspace("child")
    theirs.create()
    paths: list[str] = []
    for text in (b"first", b"second", b"second"):
        theirs.write("artifacts/x.md", text)
        paths += (await collect(tmp_path, done(), view("artifacts/x.md"))).artifacts
    assert paths[0] == "artifacts/a/x.md"
    assert paths[1] == paths[2] != paths[0]  # tried again, it is the same
    for run in ("lead", "other"):
        assert [(tmp_path / run / path).read_bytes() for path in paths[:2]] == [b"first", b"second"]


async def test_what_a_run_delegated_counts_with_what_it_used_itself(tmp_path: Path) -> None:
    end = await collect(tmp_path, done(), view())
    assert (end.status, end.outcome) == (SubtaskStatus.done, "It is 4.")
    assert end.spent == Spent(steps=5, tokens=100, usd=0.5)


async def test_a_long_outcome_is_cut_and_lies_beside_it_as_a_whole(tmp_path: Path) -> None:
    end = await collect(tmp_path, done("ä" * 2000), view())
    assert len(end.outcome.encode()) <= 1000
    assert end.artifacts == ("artifacts/a/outcome.md",)
    assert (tmp_path / "lead" / "artifacts" / "a" / "outcome.md").read_text() == "ä" * 2000


async def test_a_large_outcome_is_handed_on_as_a_named_file(tmp_path: Path) -> None:
    theirs = project(tmp_path).workspace("child")
    theirs.create()
    for name, size in (("large", 50_000_000), ("too-large", 70_000_000)):
        (theirs.root / "artifacts" / name).touch()
        os.truncate(theirs.root / "artifacts" / name, size)
    end = await collect(tmp_path, done("x" * 1_900_000), view("artifacts/large", "artifacts/too-large"))
    assert end.artifacts == ("artifacts/a/large", "artifacts/a/outcome.md")
    assert len(end.model_dump_json()) < 2000
    for run in ("lead", "other"):
        sizes = {path.name: path.stat().st_size for path in (tmp_path / run / "artifacts" / "a").iterdir()}
        assert sizes == {"large": 50_000_000, "outcome.md": 1_900_000}


async def test_of_a_run_that_answers_nothing_the_whole_share_is_taken_for_used(tmp_path: Path) -> None:
    terminated = WorkflowFailureError(cause=TerminatedError("by hand"))
    silent = RPCError("no answer", RPCStatusCode.DEADLINE_EXCEEDED, b"")
    with pytest.raises(ApplicationError, match="does not answer"):
        await collect(tmp_path, terminated, silent)
    end = await collect(tmp_path, terminated, silent, attempt=4)
    assert end.status is SubtaskStatus.terminated
    assert end.spent == Spent(steps=5, tokens=100)


async def test_a_run_that_was_never_started_has_used_nothing(tmp_path: Path) -> None:
    end = await collect(tmp_path, RPCError("not found", RPCStatusCode.NOT_FOUND, b""), None)
    assert (end.status, end.spent) == (SubtaskStatus.cancelled, Spent())
