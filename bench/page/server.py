"""A small server: the page's real files with their real headers, and made-up answers in the real forms."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse

from bench.page.course import Course, end_frame, long_course
from bench.page.project import BURSTS, LONG, OPEN_LONG, SHOWN, Project
from perdure.client.files import Artifact
from perdure.client.questions import QuestionList
from perdure.contracts.run.state import RunStatus
from perdure.gateway.app import PAGE_FILES, PAGE_HEADERS, PAGE_TYPES
from perdure.gateway.auth import Credential
from perdure.gateway.routes.conversations import ConversationPage
from perdure.gateway.routes.files import ArtifactList
from perdure.gateway.routes.runs import RunPage
from perdure.gateway.routes.session import SessionInfo
from perdure.gateway.routes.sse import HEADERS, RETRY_HINT
from perdure.gateway.tokens import Scope
from tests.ports import free_port

STEPS, RUNS = 2000, 10_000
BURST, BURSTS_A_SECOND = 20, 200  # events that come together
SEND = 64 * 1024  # bytes of a stream that are sent at once
TOKEN = "pdr_made_up"  # noqa: S105 - no gateway has it


@dataclass
class Site:
    """The answers of the server. `runs` of the list are those of the project if it is 0."""

    steps: int = STEPS
    runs: int = RUNS
    project: Project = field(default_factory=Project)
    is_signed_in: bool = True

    def __post_init__(self) -> None:
        long = long_course(self.steps, self.project.now - timedelta(days=9))
        self.courses: dict[str, Course] = {SHOWN: self.project.shown, LONG: long, OPEN_LONG: long, BURSTS: long}
        self.listed = self.project.many_runs(self.runs) if self.runs else self.project.runs()
        self.frames = {name: list(course.frames()) for name, course in self.courses.items() if name != OPEN_LONG}
        self.frames[OPEN_LONG] = self.frames[LONG][:-2]


def make_app(site: Site) -> FastAPI:  # noqa: C901 - the routes
    app = FastAPI(openapi_url=None)
    project = site.project

    @app.get("/")
    async def get_page() -> FileResponse:
        return FileResponse(PAGE_FILES["index.html"], headers=PAGE_HEADERS)

    @app.get("/page/{name:path}")
    async def get_page_file(name: str) -> FileResponse:
        path = PAGE_FILES[name]
        return FileResponse(path, headers=PAGE_HEADERS, media_type=PAGE_TYPES.get(path.suffix, "text/javascript"))

    @app.get("/v1/session")
    async def get_session() -> Response:
        if not site.is_signed_in:
            return JSONResponse({"detail": "sign in"}, 401, media_type="application/problem+json")
        return JSONResponse(session().model_dump(mode="json"))

    @app.post("/v1/session")
    async def sign_in() -> SessionInfo:
        site.is_signed_in = True
        return session()

    @app.get("/v1/agents")
    async def get_agents() -> Any:
        return project.agents()

    @app.get("/v1/overview")
    async def get_overview(since: datetime | None = None) -> Any:
        return project.overview(since or project.ago(hours=24))

    @app.get("/v1/questions")
    async def get_questions() -> QuestionList:
        return project.questions()

    @app.get("/v1/runs")
    async def get_runs(limit: int = 50, cursor: int = 0, status: str | None = None) -> RunPage:
        if limit == 30:  # the first screen's
            return RunPage(runs=tuple(project.runs()), cursor=None)
        fit = [run for run in site.listed if status in (None, run.status)]
        after = cursor + limit
        return RunPage(runs=tuple(fit[cursor:after]), cursor=str(after) if after < len(fit) else None)

    @app.get("/v1/runs/{run_id}")
    async def get_run(run_id: str) -> Any:
        return project.details(run_id, site.courses[run_id], is_open=run_id in (SHOWN, OPEN_LONG))

    @app.get("/v1/runs/{run_id}/events")
    async def get_events(run_id: str, request: Request) -> StreamingResponse:
        return StreamingResponse(stream(site, run_id, request), media_type="text/event-stream", headers=HEADERS)

    @app.get("/v1/runs/{run_id}/artifacts")
    async def get_artifacts(run_id: str) -> ArtifactList:
        made = (("unmatched.csv", 3_120, "text/plain"), ("reminder-2026-0417.pdf", 48_300, "application/pdf"))
        files = (Artifact(path=f"artifacts/{n}", bytes=b, content_type=t, sha256="0" * 64) for n, b, t in made)
        return ArtifactList(run_id=run_id, available=True, artifacts=tuple(files))

    @app.get("/v1/conversations")
    async def get_conversations() -> ConversationPage:
        return ConversationPage(conversations=tuple(project.conversations()), cursor=None)

    @app.get("/v1/conversations/{name}")
    async def get_conversation(name: str) -> Any:
        return project.lane().model_copy(update={"conversation_id": name})

    @app.get("/v1/{name}")
    async def get_list(name: str) -> Any:
        return project.feature_lists()[name]

    return app


def session() -> SessionInfo:
    scopes = (Scope.read, Scope.start, Scope.answer)
    ends = datetime.now(UTC) + timedelta(hours=12)
    return SessionInfo(
        name="maria",
        credential=Credential.cookie,
        person=None,
        scopes=scopes,
        groups=("accounting", "finance"),
        expires_at=ends,
    )


async def stream(site: Site, run_id: str, request: Request) -> AsyncIterator[bytes]:
    """The events of a run; those of an open one stay open, and those of `bursts` come many times a second."""
    frames = site.frames[run_id]
    yield RETRY_HINT
    if run_id == BURSTS:
        for at in range(0, len(frames), BURST):
            yield b"".join(frames[at : at + BURST])
            await asyncio.sleep(1 / BURSTS_A_SECOND)
    else:
        whole = b"".join(frames)
        for at in range(0, len(whole), SEND):
            yield whole[at : at + SEND]
    if run_id in (SHOWN, OPEN_LONG):
        await request.receive()  # the page leaves
        return
    yield end_frame(run_id, RunStatus.completed, "All invoices are checked: 12 of them do not match.")


@contextlib.contextmanager
def serving(site: Site) -> Iterator[str]:
    """The address of a server in a thread of this process."""
    port = free_port()
    config = uvicorn.Config(make_app(site), host="127.0.0.1", port=port, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
