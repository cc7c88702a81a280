"""The effect of an answer to a project question, and the release of the runs that wait for it."""

from typing import Self

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.effects.held import release_held
from perdure.activities.parts import WorkerParts
from perdure.decisions.ids import QUESTION_PREFIX
from perdure.features.notices.channels import channels_of, match_routes
from perdure.features.project_questions.contract import QuestionRules, ReleaseRequest, SettleRequest
from perdure.registry import features, load


class ProjectQuestions:
    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts

    @classmethod
    def of(cls, parts: WorkerParts) -> Self:
        return cls(parts)

    @activity.defn
    async def prepare_question(self) -> QuestionRules:
        """Return the channels that announce a question of the project, and the keys that sign answers."""
        project = self._parts.project
        return QuestionRules(notify=match_routes(channels_of(project), ""), answer_keys=dict(project.answer_keys))

    @activity.defn
    async def apply_answer(self, request: SettleRequest) -> None:
        """Do what the answer means to the feature that asked. Raises ApplicationError if that cannot be done."""
        subject = request.question.subject
        targets = (row.on_answer[subject] for row in features().values() if subject in row.on_answer)
        if (target := next(targets, None)) is None:
            raise ApplicationError(f"no feature here carries out answers about {subject!r}", non_retryable=True)
        await load(target)(self._parts, request.question, request.answer)

    @activity.defn
    async def release_runs(self, request: ReleaseRequest) -> None:
        """Free the runs that wait for the question. Repeating it changes nothing."""
        name = f"{QUESTION_PREFIX}{request.id}"
        await release_held(self._parts.client, activity.info().task_queue, name, request.workflows)
