"""Open questions of all runs and follow-ups, with the exact call of an approval."""

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from temporalio.client import Client

from contracts.followup import Task
from contracts.models import Value
from contracts.run.question import QuestionKind
from contracts.run.state import QuestionView
from decisions import ids
from decisions.followup.kind import Asked
from decisions.followup.kinds import read
from decisions.followup.state import questions
from decisions.text.visible_text import render_visible
from gateway.auth import Here, Route, needs
from gateway.problems import described
from gateway.routes.runs import QUERY_PATIENCE
from gateway.tokens import Scope
from perdure.client.errors import NoSuchRun
from perdure.client.run_list import Found, listing
from perdure.client.runs import follow_up_state, state

MOST_LISTED = 200
AT_ONCE = 10  # concurrent queries, each answered by a worker

router = APIRouter(prefix="/v1", tags=["people"], route_class=Route)


class Open(Value):
    """An open question. `question` is null if no worker answered; `waiting_for` is the server's record."""

    run_id: str
    agent: str
    goal: str | None
    waiting_for: str
    started_at: datetime
    question: QuestionView | None


class Questions(Value):
    questions: tuple[Open, ...]


@router.get("/questions", dependencies=[needs(Scope.read)], responses=described(400, 401, 403, 408, 413, 422, 500, 503))
async def list_questions(gateway: Here, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100) -> Questions:
    """List all open questions; answer one at `/v1/runs/{run_id}/answer`."""
    client, slots = gateway.session.client, asyncio.Semaphore(AT_ONCE)

    async def read_questions(run: Found) -> tuple[Open, ...]:
        async with slots:
            return await _asked(client, run)

    runs = [run async for run in listing(client, waiting=True, limit=limit)]
    groups = await asyncio.gather(*map(read_questions, runs))
    return Questions(questions=tuple(question for group in groups for question in group)[:limit])


async def _asked(client: Client, run: Found) -> tuple[Open, ...]:
    goal: str | None = None
    views: tuple[QuestionView | None, ...] = (None,)
    with suppress(NoSuchRun):
        if run.run_id.startswith(ids.FOLLOW_UP):
            follow_up = await follow_up_state(client, run.run_id, QUERY_PATIENCE)
            if follow_up is not None:
                goal, views = follow_up.definition.summary, tuple(map(_view, questions(follow_up)))
        elif (state_view := await state(client, run.run_id, QUERY_PATIENCE)) is not None:
            goal, views = state_view.goal, (state_view.question,) if state_view.question else ()
    return tuple(
        Open(
            run_id=run.run_id,
            agent=run.agent,
            goal=render_visible(goal) if goal else goal,
            waiting_for=run.waiting_for,
            started_at=run.execution.start_time,
            question=view,
        )
        for view in views
    )


def _view(task: Task) -> QuestionView:
    kind, arguments = read(task)
    question = kind.asks(arguments) if kind.asks else Asked(task.description)
    text = render_visible(question.text)
    return QuestionView(id=task.task_id, kind=QuestionKind.question, text=text, options=question.options)
