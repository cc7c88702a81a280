"""A goal in a file: it is there before its run, and a start that is refused leaves nothing behind."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from perdure import Perdure
from perdure.activities.storage.workspace import Workspace
from perdure.client.errors import RejectedError, TemporalUnavailableError
from perdure.contracts.run.events import StartEvent
from perdure.session import Session
from perdure.settings import load_settings
from perdure.terminal.prompt import start_with_file

GOAL = "more and more of it " * 10_000


def event(**context: str) -> StartEvent:
    return StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": "cut", "context": context}})


def perdure_of(client: Client) -> Perdure:
    """A client of the project of an empty folder, whose task queue has no worker."""
    settings = load_settings({"PERDURE_TASK_QUEUE": "nobody"}, Path(__file__).parent / "nowhere")
    return Perdure.over(Session(client, settings, None))


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("run_id", "context"), [("x" * 1000, {}), ("wf:x", {}), ("a", {"k": "x" * 3_000_000}), ("b", {})]
)
async def test_a_rejected_start_leaves_no_files(
    client: Client, tmp_path: Path, run_id: str, context: dict[str, str], monkeypatch: Any
) -> None:
    """By us, and by the server."""
    if run_id == "b":
        monkeypatch.setattr("perdure.python_client.start_or_get_run", refuses)
    with pytest.raises(RejectedError):
        await start_with_file(perdure_of(client), Workspace(tmp_path / "runs" / "r"), event(**context), GOAL, run_id)
    assert [path for path in below(tmp_path) if path != "runs"] == []


async def refuses(*_: Any, **__: Any) -> None:
    raise RejectedError("the server does not take the start")


async def test_a_failed_start_keeps_existing_files(client: Client, tmp_path: Path) -> None:
    """The runs of a conversation share their files, and an earlier run of this id may have left some."""
    workspace = Workspace(tmp_path / "r")
    workspace.create()
    workspace.write("notes.md", b"mine")
    with pytest.raises(RejectedError):
        await start_with_file(perdure_of(client), workspace, event(k="x" * 3_000_000), GOAL, uuid4().hex)
    assert below(tmp_path) == ["r", "r/artifacts", "r/notes.md"]


async def test_a_start_that_finds_its_run_writes_no_file(client: Client, tmp_path: Path) -> None:
    run_id, workspace = uuid4().hex, Workspace(tmp_path / "r")
    first = await start_with_file(perdure_of(client), workspace, event(), GOAL, run_id)
    files = below(tmp_path)
    assert [workspace.read_own(name.removeprefix("r/")) for name in files if name.endswith(".md")] == [GOAL.encode()]
    again = await start_with_file(perdure_of(client), workspace, event(), f"another {GOAL}", run_id)
    assert (again.id, first.is_new, again.is_new, below(tmp_path)) == (first.id, True, False, files)
    await client.get_workflow_handle(f"run:{run_id}").terminate()


async def test_a_start_that_may_have_been_made_keeps_its_file(client: Client, tmp_path: Path, monkeypatch: Any) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise TemporalUnavailableError("it may have started the run all the same")

    monkeypatch.setattr("perdure.python_client.start_or_get_run", away)
    with pytest.raises(TemporalUnavailableError):
        await start_with_file(perdure_of(client), Workspace(tmp_path / "r"), event(), GOAL, uuid4().hex)
    assert len(below(tmp_path)) == 3
