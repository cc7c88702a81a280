"""`Notify`: delivers one notice to its channels, and reminds of a question that stays open."""

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.people.notices import Notices
from contracts.people.notice import (
    Notice,
    NoticeDelivery,
    NoticeKind,
    NoticeReport,
    NoticeRequest,
    NoticeRoute,
    OpenQuestion,
)
from decisions.people.notice import overdue_notice, overdue_routes
from decisions.text.formatting import truncate
from workflows.handlers import read_argument
from workflows.policies import NOTIFYING


@workflow.defn
class Notify:
    """A notice about a run. Input: a `NoticeRequest`. Result: a `NoticeReport`.

    It fails if a channel did not accept the notice within three days, so that it is in the list of failed workflows.
    """

    def __init__(self) -> None:
        self._delivered: list[str] = []
        self._failures: list[str] = []

    @workflow.run
    async def run(self, *args: Any) -> NoticeReport:
        request = read_argument(NoticeRequest, args)
        notice = request.notice
        await self._send(notice, [route for route in request.routes if _wants(route, notice.kind)])
        if notice.kind is NoticeKind.waiting:
            await self._remind(notice, request.routes)
        if self._failures:
            raise ApplicationError("; ".join(self._failures), type="NotDelivered", non_retryable=True)
        return NoticeReport(delivered=tuple(self._delivered))

    async def _remind(self, notice: Notice, routes: Sequence[NoticeRoute]) -> None:
        """Send `waiting_long` to each channel whose patience ends while the question is open."""
        for patience, route in overdue_routes(routes):
            remaining = (notice.asked_at or workflow.now()) + patience - workflow.now()
            if remaining.total_seconds() > 0:
                await workflow.sleep(remaining, summary=f"{notice.question_id} still open? → {route.channel}")
            question = OpenQuestion(run_id=notice.run_id, question_id=notice.question_id or "")
            summary = f"is {question.question_id} still open"
            if not await workflow.execute_activity_method(
                Notices.is_question_open, question, summary=summary, **NOTIFYING
            ):
                return
            await self._send(overdue_notice(notice, patience), [route])

    async def _send(self, notice: Notice, routes: Sequence[NoticeRoute]) -> None:
        await asyncio.gather(*(self._deliver(notice, route.channel) for route in routes))

    async def _deliver(self, notice: Notice, channel: str) -> None:
        delivery = NoticeDelivery(
            id=f"{workflow.info().workflow_id}:{notice.kind}:{channel}", channel=channel, notice=notice
        )
        summary = f"{notice.kind} → {channel}"
        try:
            await workflow.execute_activity_method(Notices.send_notice, delivery, summary=summary, **NOTIFYING)
        except ActivityError as error:
            if workflow.cancellation_reason() is not None:
                raise
            self._failures.append(f"{channel}: {truncate(str(error.cause or error), 300)}")
        else:
            self._delivered.append(channel)


def _wants(route: NoticeRoute, kind: NoticeKind) -> bool:
    return kind in route.on or (kind is NoticeKind.budget and NoticeKind.ended in route.on)
