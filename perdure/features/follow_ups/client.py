"""Follow-ups from outside: a list of them, their state and open questions, and the events that resolve their tasks."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from perdure.activities.temporal import QueryCache
from perdure.client.details import RunRecord
from perdure.client.door import stamp_sender
from perdure.client.errors import RunNotFoundError
from perdure.client.run_list import RunFilter, RunInfo, list_page
from perdure.client.runs import STATE_QUERY_TIMEOUT, AddressedView, query_view
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import QuestionView
from perdure.decisions import ids
from perdure.decisions.text.visible_text import render_visible
from perdure.features.follow_ups.activities import signal_event
from perdure.features.follow_ups.contract import Event, FollowUpState, Task
from perdure.features.follow_ups.rules.kinds import question_of
from perdure.features.follow_ups.rules.state import open_prompts, open_tasks

CONCURRENT_QUERIES = 10  # each is answered by a worker
LIST_PATIENCE = 5.0  # seconds for the states of a page


class ListedFollowUp(RunRecord):
    """A follow-up, `wf:…`, in a list; in `conversation` the work resumes.

    `summary`, `open_tasks` and `next_at` are null if no worker answers, or at its end.
    """

    summary: str | None
    open_tasks: int | None
    next_at: datetime | None  # the first time that ends a task, if there is one


@dataclass(frozen=True)
class FollowUpPage:
    """A page of the list, latest first. `next` is the cursor of the next page, if any."""

    follow_ups: tuple[ListedFollowUp, ...]
    next: bytes | None


async def list_follow_ups(
    client: Client, only: RunFilter, limit: int, after: bytes | None, cache: QueryCache
) -> FollowUpPage:
    """Return at most `limit` follow-ups, the open ones with their states. Raises RejectedError for a bad cursor."""
    page = await list_page(client, only, follow_ups=True, limit=limit, after=after)
    slots = asyncio.Semaphore(CONCURRENT_QUERIES)

    async def read(run: RunInfo) -> FollowUpState | None:
        async with slots:
            try:
                return await follow_up_state(client, run.run_id, cache=cache) if run.is_open else None
            except RunNotFoundError:
                return None

    reads = [asyncio.create_task(read(run)) for run in page.runs]
    if reads:
        _, late = await asyncio.wait(reads, timeout=LIST_PATIENCE)
        for task in late:
            task.cancel()  # without a worker, each query takes its time
        await asyncio.wait(reads)
    states = [None if task.cancelled() else task.result() for task in reads]
    rows = zip(page.runs, states, strict=True)
    return FollowUpPage(tuple(_describe(run, state) for run, state in rows), page.next)


def _describe(run: RunInfo, state: FollowUpState | None) -> ListedFollowUp:
    tasks = open_tasks(state) if state else ()
    ends = [task.expires_at for task in tasks if task.expires_at is not None]
    return ListedFollowUp.of(
        run,
        summary=render_visible(state.definition.summary) if state else None,
        open_tasks=len(tasks) if state else None,
        next_at=datetime.fromtimestamp(min(ends) / 1000, UTC) if ends else None,
    )


async def follow_up_state(
    client: Client, follow_up_id: str, patience: timedelta = STATE_QUERY_TIMEOUT, cache: QueryCache | None = None
) -> FollowUpState | None:
    """Return the state of the follow-up `wf:<workflowId>`, if a worker answers. Raises RunNotFoundError."""
    handle = client.get_workflow_handle(ids.addressed_workflow_id(follow_up_id))
    return await query_view(handle, "state", FollowUpState, f"run {follow_up_id}", patience, cache)


async def query_follow_up(
    client: Client, follow_up_id: str, patience: timedelta = STATE_QUERY_TIMEOUT, cache: QueryCache | None = None
) -> AddressedView | None:
    """Return what clients need of a follow-up, if a worker answers. Raises RunNotFoundError."""
    state = await follow_up_state(client, follow_up_id, patience, cache)
    if state is None:
        return None
    return AddressedView(
        state=state,
        goal=state.definition.summary,
        questions=tuple(map(question_of_task, open_prompts(state))),
        execution=state.execution,
        answer_keys=state.answer_keys,
    )


def question_of_task(task: Task) -> QuestionView:
    """Return the question of a task that asks a person, as it is listed with those of runs."""
    question = question_of(task)
    text = render_visible(question.text)
    options = tuple(map(render_visible, question.options))
    return QuestionView(id=task.task_id, kind=QuestionKind.question, text=text, options=options)


async def publish_external_event(client: Client, task_queue: str, event: Event) -> str:
    """Publish an event to its topic and return the topic's workflow id. Raises NotAwaitedError, RPCError."""
    return await signal_event(client, task_queue, stamp_sender(event))
