"""Open questions of all runs and follow-ups, with the exact call of an approval."""

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from contracts.followup import Task
from contracts.models import FrozenModel
from contracts.run.question import QuestionKind
from contracts.run.state import QuestionView
from decisions import ids
from decisions.followup.kinds import question_of
from decisions.followup.state import open_prompts
from decisions.text.visible_text import render_visible
from gateway.auth import CurrentGateway, Gateway, ScopedRoute, needs_scope
from gateway.problems import describe_problems
from gateway.routes.runs import READ_QUERY_TIMEOUT
from gateway.tokens import Scope
from perdure.client.errors import RunNotFoundError
from perdure.client.run_list import RunInfo, iterate_runs
from perdure.client.runs import follow_up_state, query_run_state

MAX_QUESTIONS = 200
MAX_CONCURRENT_QUERIES = 10  # concurrent queries, each answered by a worker

router = APIRouter(prefix="/v1", tags=["people"], route_class=ScopedRoute)


class ListedQuestion(FrozenModel):
    """An open question. `question` is null if no worker answered; `waiting_for` is the server's record."""

    run_id: str
    agent: str
    goal: str | None
    waiting_for: str
    started_at: datetime
    question: QuestionView | None


class QuestionList(FrozenModel):
    questions: tuple[ListedQuestion, ...]


@router.get(
    "/questions",
    dependencies=[needs_scope(Scope.read)],
    responses=describe_problems(400, 401, 403, 408, 413, 422, 500, 503),
)
async def list_questions(
    gateway: CurrentGateway, limit: Annotated[int, Query(ge=1, le=MAX_QUESTIONS)] = 100
) -> QuestionList:
    """List all open questions; answer one at `/v1/runs/{run_id}/answer`."""
    return await gateway.lists.read(("questions", limit), lambda: _collect_questions(gateway, limit))


async def _collect_questions(gateway: Gateway, limit: int) -> QuestionList:
    slots = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)
    runs = [run async for run in iterate_runs(gateway.session.client, waiting=True, limit=limit)]
    groups = await asyncio.gather(*(_read_questions(gateway, run, slots) for run in runs))
    return QuestionList(questions=tuple(question for group in groups for question in group)[:limit])


async def _read_questions(gateway: Gateway, run: RunInfo, slots: asyncio.Semaphore) -> tuple[ListedQuestion, ...]:
    client, cache = gateway.session.client, gateway.queries
    goal: str | None = None
    views: tuple[QuestionView | None, ...] = (None,)
    async with slots:
        with suppress(RunNotFoundError):
            if run.run_id.startswith(ids.FOLLOW_UP_PREFIX):
                follow_up = await follow_up_state(client, run.run_id, READ_QUERY_TIMEOUT, cache)
                if follow_up is not None:
                    goal, views = follow_up.definition.summary, tuple(map(_question_of_task, open_prompts(follow_up)))
            elif (state_view := await query_run_state(client, run.run_id, READ_QUERY_TIMEOUT, cache)) is not None:
                goal, views = state_view.goal, (state_view.question,) if state_view.question else ()
    return tuple(
        ListedQuestion(
            run_id=run.run_id,
            agent=run.agent,
            goal=render_visible(goal) if goal else goal,
            waiting_for=run.waiting_for,
            started_at=run.execution.start_time,
            question=view,
        )
        for view in views
    )


def _question_of_task(task: Task) -> QuestionView:
    question = question_of(task)
    text = render_visible(question.text)
    return QuestionView(id=task.task_id, kind=QuestionKind.question, text=text, options=question.options)
