"""The open questions of all runs and follow-ups, with filters: one inbox for people."""

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from activities.temporal import QueryCache
from contracts.followup import Task
from contracts.models import FrozenModel
from contracts.run.question import QuestionKind
from contracts.run.state import QuestionView
from decisions import ids
from decisions.followup.kinds import question_of
from decisions.followup.state import open_prompts
from decisions.text.visible_text import render_visible
from perdure.client.errors import RunNotFoundError
from perdure.client.run_list import RunInfo, iterate_waiting
from perdure.client.runs import follow_up_state, query_run_state

MAX_SEARCHED_RUNS = 200  # runs whose questions are read for a filter
MAX_CONCURRENT_QUERIES = 10  # each is answered by a worker


class ListedQuestion(FrozenModel):
    """An open question. `question` is null if no worker answered; `waiting_for` is the server's record."""

    run_id: str
    agent: str
    goal: str | None
    waiting_for: str
    started_at: datetime
    question: QuestionView | None


class QuestionList(FrozenModel):
    """Open questions. `unread` counts the runs that the filters cannot judge, as no worker answered.

    `is_partial`: more runs wait than were read.
    """

    questions: tuple[ListedQuestion, ...]
    unread: int = 0
    is_partial: bool = False


@dataclass(frozen=True)
class QuestionFilter:
    """The questions to list; None and () mean any. `group` is one of those asked; `kind` is a `QuestionKind`.

    `person` has the groups `groups`: only questions that are for everyone or one of the groups, and that the person has
    not approved yet. `older_than` is the age of the question.
    """

    agent: str | None = None
    tool: str | None = None
    kind: QuestionKind | None = None
    group: str | None = None
    person: str | None = None
    groups: tuple[str, ...] = ()
    older_than: timedelta | None = None

    @property
    def reads_questions(self) -> bool:
        """True if the server's record of a run does not suffice."""
        return any(value is not None for value in (self.tool, self.kind, self.group, self.person))

    def is_met(self, listed: ListedQuestion, now: datetime) -> bool:
        question = listed.question
        asked_at = (question and question.asked_at) or listed.started_at
        if self.older_than is not None and now - asked_at < self.older_than:
            return False
        if question is None:
            return not self.reads_questions
        return (
            self.tool in (None, question.tool)
            and self.kind in (None, question.kind)
            and (self.group is None or self.group in question.approvers)
            and (self.person is None or self._is_for_person(question, self.person))
        )

    def _is_for_person(self, question: QuestionView, person: str) -> bool:
        is_asked = not question.approvers or not set(question.approvers).isdisjoint(self.groups)
        return is_asked and person not in question.approved_by


ANY = QuestionFilter()


async def list_questions(
    client: Client,
    limit: int,
    only: QuestionFilter = ANY,
    patience: timedelta = timedelta(seconds=5),
    cache: QueryCache | None = None,
) -> QuestionList:
    """Return the open questions that the filter lets through, of the latest runs first.

    Raises TemporalUnavailableError.
    """
    now, reader = datetime.now(UTC), _Reader(client, patience, cache)
    searched = limit if only == QuestionFilter(agent=only.agent) else MAX_SEARCHED_RUNS
    before = now - only.older_than if only.older_than else None
    runs = [run async for run in iterate_waiting(client, searched + 1, only.agent, before)]
    groups = await asyncio.gather(*map(reader.read, runs[:searched]))
    listed = [question for group in groups for question in group]
    return QuestionList(
        questions=tuple(question for question in listed if only.is_met(question, now))[:limit],
        unread=sum(question.question is None for question in listed) if only.reads_questions else 0,
        is_partial=len(runs) > searched,
    )


class _Reader:
    def __init__(self, client: Client, patience: timedelta, cache: QueryCache | None) -> None:
        self._client = client
        self._patience = patience
        self._cache = cache
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)

    async def read(self, run: RunInfo) -> Iterable[ListedQuestion]:
        goal: str | None = None
        views: Collection[QuestionView | None] = (None,)
        async with self._slots:
            with suppress(RunNotFoundError):
                if run.run_id.startswith(ids.FOLLOW_UP_PREFIX):
                    follow_up = await follow_up_state(self._client, run.run_id, self._patience, self._cache)
                    if follow_up is not None:
                        goal = follow_up.definition.summary
                        views = [_question_of_task(task) for task in open_prompts(follow_up)]
                elif (
                    state := await query_run_state(self._client, run.run_id, self._patience, self._cache)
                ) is not None:
                    goal, views = state.goal, state.questions
        return [
            ListedQuestion(
                run_id=run.run_id,
                agent=run.agent,
                goal=render_visible(goal) if goal else goal,
                waiting_for=run.waiting_for,
                started_at=run.execution.start_time,
                question=view,
            )
            for view in views
        ]


def _question_of_task(task: Task) -> QuestionView:
    question = question_of(task)
    text = render_visible(question.text)
    return QuestionView(id=task.task_id, kind=QuestionKind.question, text=text, options=question.options)
