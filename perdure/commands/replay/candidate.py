"""The replay of a run with another model or agent: the run is played twice, on a server of its own."""

import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from temporalio.client import Client

from activities.project import Project
from activities.providers.port import Model
from contracts.run.evaluation import Case
from contracts.run.export import Export
from devserver import embedded_server, remove_folder
from perdure.client.connection import connect
from perdure.client.errors import RejectedError
from perdure.commands.replay.columns import Column, Comparison, compare_columns
from perdure.commands.replay.play import Beyond, Replay
from perdure.commands.replay.recording import Recording, must_be_replayable, replayed_agent
from perdure.process.models import open_models
from perdure.process.project import display_project
from settings import Settings


@dataclass(frozen=True)
class Candidate:
    """A substitute for a run's agent: a file, a model, or both. `cases` are the checks."""

    settings: Settings
    file: Path | None
    model: str | None
    beyond: Beyond
    cases: Sequence[Case] = ()

    def case_of(self, record: Export) -> Case | None:
        """Return the case with the run's goal, or the only one. Raises RejectedError if none of several fits."""
        goal = record.start["payload"]["goal"]
        only = self.cases[0] if len(self.cases) == 1 else None
        case = next((case for case in self.cases if case.goal == goal), only)
        if self.cases and case is None:
            raise RejectedError(f"run {record.run_id} cannot be replayed: no case has its goal")
        return case

    @asynccontextmanager
    async def open(self, agent: str) -> AsyncIterator[tuple[Project, Model]]:
        """Yield the project with the candidate as this agent, and its models. Raises ProjectError."""
        settings = self.settings.with_candidate(agent, self.file, self.model)
        async with display_project(settings) as project, AsyncExitStack() as closing:
            yield project, open_models(settings, closing)


@asynccontextmanager
async def open_stage() -> AsyncIterator[tuple[Client, Path]]:
    """Yield a server for plays alone, and a folder for their files. Both are gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="perdure-replay-"))
    try:
        async with embedded_server(root / "server") as server:
            yield await connect(server.address), root / "runs"
    finally:
        await remove_folder(root)


async def replay_run(
    record: Export, current: Project, candidate: Candidate, client: Client, folder: Path
) -> Comparison:
    """Play the run as it was in the `current` project, then with the candidate. Raises RejectedError, ProjectError."""
    must_be_replayable(record, current)
    case, token = candidate.case_of(record), secrets.token_hex(3)
    media = current.stores.of(record.run_id)
    again = Replay(client, replace(current, workspaces=folder), Recording(record), f"as-it-was-{token}")
    async with candidate.open(replayed_agent(record)) as (project, model):
        tried = Replay(
            client,
            replace(project, workspaces=folder),
            Recording(record),
            f"candidate-{token}",
            model=model,
            beyond=candidate.beyond,
        )
        played, new = await again.run(media), await tried.run(media)
    return compare_columns(
        Column.of("observed", record, case),
        Column.of("as it was", played, case, again.left),
        Column.of("candidate", new, case, tried.left),
    )
