"""The activities of budgets: the notice that one is nearly used up, and the release of the runs that wait for one."""

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
from perdure.features.budgets.contract import BudgetNews
from perdure.features.budgets.rules import USED_UP, format_amount, format_whose, holder_of, key_of
from perdure.features.notices.channels import channels_of
from perdure.features.notices.contract import Notice, NoticeRequest

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
        every = (channel for channel in channels_of(self._project) if "*" in channel.agents)
        routes = tuple(channel.route for channel in every if wanted.intersection(channel.route.on))
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
    async def release_waiting(self, key: str) -> None:
        """Let the runs go on that wait for this allowance; also those that had just begun to, and were not listed."""
        async with heartbeating(lambda: key):
            await release_held(self._client, self._task_queue, holder_of(key))
            await asyncio.sleep(LISTED_AFTER)
            await release_held(self._client, self._task_queue, holder_of(key))
