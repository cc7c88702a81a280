"""What waits for people, over all runs and follow-ups, with the exact call where one has to be approved."""

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
AT_ONCE = 10  # queries, each of which a worker has to answer

router = APIRouter(prefix="/v1", tags=["people"], route_class=Route)


class Open(Value):
    """A question. `question` is null where no worker could tell; `waiting_for` says what the server knows."""

    run_id: str
    agent: str
    goal: str | None
    waiting_for: str
    started_at: datetime
    question: QuestionView | None


class Questions(Value):
    questions: tuple[Open, ...]


@router.get("/questions", dependencies=[needs(Scope.read)], responses=described(400, 401, 403, 408, 413, 422, 500, 503))
async def list_questions(here: Here, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100) -> Questions:
    """Everything that waits for a person: answer it at `/v1/runs/{run_id}/answer`."""
    client, slots = here.session.client, asyncio.Semaphore(AT_ONCE)

    async def asked(found: Found) -> tuple[Open, ...]:
        async with slots:
            return await _asked(client, found)

    there = [found async for found in listing(client, waiting=True, limit=limit)]
    opened = await asyncio.gather(*map(asked, there))
    return Questions(questions=tuple(question for each in opened for question in each)[:limit])


async def _asked(client: Client, found: Found) -> tuple[Open, ...]:
    goal: str | None = None
    views: tuple[QuestionView | None, ...] = (None,)
    with suppress(NoSuchRun):
        if found.run_id.startswith(ids.FOLLOW_UP):
            follow_up = await follow_up_state(client, found.run_id, QUERY_PATIENCE)
            if follow_up is not None:
                goal, views = follow_up.definition.summary, tuple(map(_view, questions(follow_up)))
        elif (view := await state(client, found.run_id, QUERY_PATIENCE)) is not None:
            goal, views = view.goal, (view.question,) if view.question else ()
    return tuple(
        Open(
            run_id=found.run_id,
            agent=found.agent,
            goal=render_visible(goal) if goal else goal,
            waiting_for=found.waiting_for,
            started_at=found.execution.start_time,
            question=each,
        )
        for each in views
    )


def _view(task: Task) -> QuestionView:
    kind, given = read(task)
    asked = kind.asks(given) if kind.asks else Asked(task.description)
    text = render_visible(asked.text)
    return QuestionView(id=task.task_id, kind=QuestionKind.question, text=text, options=asked.options)
