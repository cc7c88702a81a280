"""`Notify`: delivers one notice to its channels, and reminds of a question that stays open."""

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.contracts.people import NoticeKind, NoticeRoute
from perdure.decisions.text.formatting import truncate
from perdure.features.notices.activities import Notices
from perdure.features.notices.contract import Notice, NoticeDelivery, NoticeReport, NoticeRequest, OpenQuestion
from perdure.features.notices.rules import overdue_notice, overdue_routes
from perdure.workflows.execution import NOTIFYING
from perdure.workflows.handlers import read_argument


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
        is_new = notice.group or notice.revision  # to these people, or about this call: their patience begins now
        asked_at = workflow.now() if is_new or notice.asked_at is None else notice.asked_at
        for patience, route in overdue_routes(routes):
            remaining = asked_at + patience - workflow.now()
            if remaining.total_seconds() > 0:
                await workflow.sleep(remaining, summary=f"{notice.question_id} still open? → {route.channel}")
            question = OpenQuestion(
                run_id=notice.run_id, question_id=notice.question_id or "", group=notice.group, call=notice.call
            )
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
            self._failures.append(f"{channel}: {truncate(str(error.cause or error))}")
        else:
            self._delivered.append(channel)


def _wants(route: NoticeRoute, kind: NoticeKind) -> bool:
    return kind in route.on or (kind is NoticeKind.budget and NoticeKind.ended in route.on)
