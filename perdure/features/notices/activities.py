"""The activities of a notice: `send_notice`, and `is_question_open` before a reminder."""

from typing import Self
from urllib.parse import quote

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError

from perdure.activities.parts import WorkerParts
from perdure.activities.project import Project
from perdure.activities.security import redact_model
from perdure.activities.temporal import IgnoreMissing
from perdure.contracts.models import FrozenModel
from perdure.contracts.run.state import QuestionView
from perdure.decisions.ids import run_workflow_id
from perdure.features.notices.channels import NOT_DELIVERED, channels_of
from perdure.features.notices.contract import NoticeDelivery, OpenQuestion


class _Asking(FrozenModel):
    """The open questions, of a run or of the project."""

    questions: tuple[QuestionView, ...] = ()


class Notices:
    def __init__(self, client: Client, project: Project) -> None:
        self._client = client
        self._project = project

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts.client, parts.project)

    @activity.defn
    async def send_notice(self, delivery: NoticeDelivery) -> None:
        """Send a notice to one channel. Raises ApplicationError `NotDelivered`; an unknown channel is not retried."""
        channel = next((row for row in channels_of(self._project) if row.route.channel == delivery.channel), None)
        if channel is None:
            reason = f"there is no [[notify]] named {delivery.channel} in this worker's perdure.toml"
            raise ApplicationError(reason, type=NOT_DELIVERED, non_retryable=True)
        notice = redact_model(delivery.notice, self._project.secrets)
        page = self._project.page_url
        link = f"{page.rstrip('/')}/#{quote(notice.run_id, safe='')}" if page else ""
        await channel.sender.send(notice, delivery.id, link)

    @activity.defn
    async def is_question_open(self, question: OpenQuestion) -> bool:
        """Return whether the run still asks this group this question, about this call. An ended run asks nothing."""
        for workflow_id in (run_workflow_id(question.run_id), question.run_id):  # another client may choose its id
            with IgnoreMissing():
                return await self._asks(workflow_id, question)
        return False

    async def _asks(self, workflow_id: str, question: OpenQuestion) -> bool:
        handle = self._client.get_workflow_handle(workflow_id)
        if (await handle.describe()).close_time is not None:
            return False
        try:
            view: _Asking = await handle.query("state", result_type=_Asking)
        except WorkflowQueryFailedError:  # rejected at its start
            return False
        wanted = question.question_id, question.group, question.call
        return any((asked.id, asked.group, asked.call) == wanted for asked in view.questions)
