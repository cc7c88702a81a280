"""The activities of budgets: the notice that one is nearly used up, and the release of the runs that wait for one."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Self

from temporalio import activity
from temporalio.client import Client

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.effects.held import release_held
from perdure.activities.parts import WorkerParts
from perdure.activities.project import Project
from perdure.activities.temporal import own_workflow_id
from perdure.contracts.people import NoticeKind, Sender
from perdure.decisions.ids import digest_names
from perdure.features.budgets.contract import AllowanceView, BudgetChange, BudgetNews, Terms
from perdure.features.budgets.rules import USED_UP, budgets_id, format_amount, format_whose, holder_of, key_of
from perdure.features.notices.channels import channels_of, match_routes
from perdure.features.notices.contract import Notice, NoticeRequest
from perdure.features.project_questions.client import ask_project
from perdure.features.project_questions.contract import ProjectAnswer, QuestionInput

SUBJECT, RAISE, STOP = "budget", "raise", "stop"  # of the question
LISTED_AFTER = 2.0  # seconds: the server's list of held activities is about one second old


class BudgetActivities:
    def __init__(self, client: Client, project: Project, task_queue: str) -> None:
        self._client = client
        self._project = project
        self._task_queue = task_queue

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.client, parts.project, parts.task_queue)

    @activity.defn
    async def describe_news(self, news: BudgetNews) -> NoticeRequest | None:
        """Return the notice that people get, if a channel wants it: one that is for all agents."""
        wanted = {NoticeKind.budget, NoticeKind.ended}
        every = match_routes(channels_of(self._project), "")
        routes = tuple(route for route in every if wanted.intersection(route.on))
        if not routes:
            return None
        allowance = news.allowance
        whose, limit = format_whose(allowance.name, allowance.value), allowance.limit or 0
        used, most = (format_amount(allowance.measure, amount) for amount in (allowance.used, limit))
        state = "is used up" if news.mark == USED_UP else "is nearly used up"
        notice = Notice(
            kind=NoticeKind.budget,
            run_id=f"budget:{allowance.name}",
            agent="*",
            title=f"budget {whose} {state}"[:150],
            text=f"{used} of {most} are used. To raise it: perdure budget raise {allowance.name}",
        )
        key = key_of(allowance.name, allowance.measure, allowance.value)
        return NoticeRequest(notice=notice, routes=routes, id=f"{own_workflow_id()}:{key}:{news.mark}:{news.window}")

    @activity.defn
    async def ask_to_raise(self, news: BudgetNews) -> None:
        """Ask people whether to raise an allowance that is used up: once, until it is used up again."""
        allowance, terms = news.allowance, news.terms
        key = key_of(allowance.name, allowance.measure, allowance.value)
        whose, step = format_whose(allowance.name, allowance.value), format_amount(allowance.measure, terms.limit or 0)
        used, most = (format_amount(allowance.measure, amount) for amount in (allowance.used, allowance.limit or 0))
        text = f"Budget {whose}: {used} of {most} are used, and what is left does not cover another call."
        ends = None if allowance.resets_in is None else datetime.now(UTC) + timedelta(seconds=allowance.resets_in)
        question = QuestionInput(
            id=f"budget-{digest_names(self._task_queue, key, str(news.window), str(news.changes))}",
            subject=SUBJECT,
            text=f"{text} Raise it by {step} in this window, or stop the runs that need it?",
            options=(RAISE, STOP),
            approvers=terms.raise_by,
            expires_at=ends,
            details={"key": key, "changes": news.changes, "terms": terms.model_dump(mode="json")},
        )
        await ask_project(self._client, self._task_queue, question)

    @activity.defn
    async def release_waiting(self, key: str) -> None:
        """Let the runs go on that wait for this allowance; also those that had just begun to, and were not listed."""
        async with heartbeating(lambda: key):
            await release_held(self._client, self._task_queue, holder_of(key))
            await asyncio.sleep(LISTED_AFTER)
            await release_held(self._client, self._task_queue, holder_of(key))


async def apply_budget_answer(parts: WorkerParts, question: QuestionInput, answer: ProjectAnswer) -> None:
    """Raise the allowance by its limit, or stop the runs that need it, unless it was changed since the question."""
    terms = Terms.model_validate(question.details["terms"])
    stops = answer.option == STOP
    change = BudgetChange(
        key=question.details["key"],
        amount=0 if stops else terms.limit or 0,
        stops=stops,
        unless_after=question.details["changes"],
        terms=terms,
        sender=Sender(door="question", person=answer.by or None, groups=terms.raise_by),
    )
    handle = parts.client.get_workflow_handle(budgets_id(parts.task_queue))
    await handle.execute_update("change_allowance", change, id=question.id, result_type=AllowanceView)
