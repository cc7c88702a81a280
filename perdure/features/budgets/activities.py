"""The activities of the workflow `Budgets`: a notice for people, and the release of the runs that wait for one."""

import asyncio
from typing import Self

from temporalio import activity
from temporalio.client import Client

from perdure.activities.effects.attempts import heartbeating
from perdure.activities.effects.held import release_held
from perdure.activities.parts import WorkerParts
from perdure.activities.project import Project
from perdure.activities.temporal import own_workflow_id
from perdure.contracts.people import NoticeKind
from perdure.features.budgets.contract import BudgetNews, Release
from perdure.features.budgets.question import CHANGED
from perdure.features.budgets.rules import USED_UP, format_share, format_whose, holder_of, key_of
from perdure.features.notices.channels import channels_of, match_routes
from perdure.features.notices.contract import Notice, NoticeRequest
from perdure.features.project_questions.client import settle_question

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
        whose = format_whose(allowance.name, allowance.value)
        share = format_share(allowance.measure, allowance.used, allowance.limit or 0)
        state = "is used up" if news.mark == USED_UP else "is nearly used up"
        notice = Notice(
            kind=NoticeKind.budget,
            run_id=f"budget:{allowance.name}",
            agent="*",
            title=f"budget {whose} {state}"[:150],
            text=f"{share} used. To raise it: perdure budget raise {allowance.name}",
        )
        key = key_of(allowance.name, allowance.measure, allowance.value)
        return NoticeRequest(notice=notice, routes=routes, id=f"{own_workflow_id()}:{key}:{news.mark}:{news.window}")

    @activity.defn
    async def release_waiting(self, release: Release) -> None:
        """Let the runs go on that wait for an allowance; also those that had just begun to, and were not listed.

        A question about it is closed, which lets its runs go on.
        """
        if release.question:
            await settle_question(self._client, release.question, CHANGED, "")
        async with heartbeating(lambda: release.key):
            await release_held(self._client, self._task_queue, holder_of(release.key))
            await asyncio.sleep(LISTED_AFTER)
            await release_held(self._client, self._task_queue, holder_of(release.key))
