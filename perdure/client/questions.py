"""The open questions of all runs and follow-ups, and of the project, with filters: one inbox for people."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from perdure.activities.temporal import QueryCache
from perdure.client.errors import RunNotFoundError
from perdure.client.run_list import RunInfo, iterate_waiting
from perdure.client.runs import AddressedView, query_addressed
from perdure.contracts.models import FrozenModel, omit_default
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import QuestionView, TermsView
from perdure.decisions.text.visible_text import render_visible

MAX_SEARCHED_RUNS = 200  # runs whose questions are read for a filter
MAX_CONCURRENT_QUERIES = 10  # each is answered by a worker
INBOX_QUERY_TIMEOUT = timedelta(seconds=5)


class ListedQuestion(FrozenModel):
    """An open question. `question` is null if no worker answered; `waiting_for` is the server's record."""

    run_id: str
    agent: str
    goal: str | None
    waiting_for: str
    started_at: datetime
    question: QuestionView | None
    runs: int | None = omit_default(None)  # of a project question: the runs that wait for it


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

    `person` has the groups `groups`: only questions that the person may answer, and has not approved yet.
    `older_than` is the age of the question.
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
            and (self.group is None or any(self.group in terms.approvers for terms in _unmet(question)))
            and (self.person is None or self._is_for_person(question, self.person))
        )

    def _is_for_person(self, question: QuestionView, person: str) -> bool:
        """Return whether the person's answer counts: an approval for one of the terms that are not met."""
        return not question.terms or any(
            (not terms.approvers or not set(terms.approvers).isdisjoint(self.groups))
            and person not in (*terms.approved_by, *terms.not_by)
            for terms in _unmet(question)
        )


def _unmet(question: QuestionView) -> Iterator[TermsView]:
    return (terms for terms in question.terms if not terms.is_met)


ANY = QuestionFilter()


async def list_questions(
    client: Client,
    limit: int,
    only: QuestionFilter = ANY,
    patience: timedelta = INBOX_QUERY_TIMEOUT,
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
        runs: int | None = None
        views: Collection[QuestionView | None] = (None,)
        async with self._slots:
            with suppress(RunNotFoundError):
                view = await query_addressed(self._client, run.run_id, self._patience, self._cache)
                if view is not None:
                    goal, views = view.goal, view.questions
                    runs = view.runs if isinstance(view, AddressedView) else None
        return [
            ListedQuestion(
                run_id=run.run_id,
                agent=run.agent,
                goal=render_visible(goal) if goal else goal,
                waiting_for=run.waiting_for,
                started_at=run.execution.start_time,
                question=question,
                runs=runs,
            )
            for question in views
        ]
