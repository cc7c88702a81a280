"""`ProjectQuestion`: one question to people, for which many runs wait. Its answer frees them."""

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.activities.telemetry.attributes import AGENT_STATUS, WAITING_FOR
from perdure.contracts.people import NoticeKind
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.state import RunStatus
from perdure.decisions.ids import QUESTION_PREFIX, notice_workflow_id
from perdure.decisions.text.formatting import escape_markdown, format_wait, truncate
from perdure.features.notices.announce import start_notice
from perdure.features.notices.contract import Notice, NoticeRequest
from perdure.features.project_questions import rules
from perdure.features.project_questions.activities import ProjectQuestions
from perdure.features.project_questions.contract import (
    ProjectAnswer,
    QuestionInput,
    QuestionRules,
    QuestionState,
    ReleaseRequest,
    Settlement,
    SettleRequest,
    Waiter,
)
from perdure.workflows.execution import FILES
from perdure.workflows.handlers import (
    ValidatedWorkflow,
    ignore_if_invalid,
    invalid_input,
    read_argument,
    require_continue_as_new,
    start_type,
)
from perdure.workflows.rotation import Rotation, continue_as_new
from perdure.workflows.search_attributes import ShownAttributes


@workflow.defn
class ProjectQuestion(ValidatedWorkflow[QuestionState]):
    """A question of the project. Input: an `QuestionInput`. Result: a `ProjectAnswer`.

    After the answer, its feature carries it out, and the runs that wait for it go on.
    """

    UNKNOWN_SIGNAL = "no such signal; there are wait, settle and human_input"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._rotation = Rotation()
        self._shown = ShownAttributes()
        self._must_release = False
        super().__init__(_begin_question, args)

    @workflow.run
    async def run(self, *args: Any) -> ProjectAnswer:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        workflow.set_current_details(escape_markdown(self.context.question.text))
        if self.context.rules is None:
            read = await workflow.execute_activity_method(ProjectQuestions.prepare_question, summary="ask", **FILES)
            self.context = self.context.evolve(rules=read)
            await self._announce(read)
        answer = await self._wait_for_answer()
        return await self._finish(answer)

    async def _wait_for_answer(self) -> ProjectAnswer:
        """Return the first answer. Continues as new if it waits for long."""
        while self.context.answer is None:
            before = self.context
            self._show()
            self._rotation.decide()
            if self._rotation.is_due:
                await workflow.wait_condition(workflow.all_handlers_finished)
                continue_as_new(self.context)
            ends = before.question.expires_at
            try:
                await workflow.wait_condition(
                    lambda before=before: self.context is not before or self._rotation.is_undecided,  # type: ignore[misc]
                    timeout=None if ends is None else max((ends - workflow.now()).total_seconds(), 0.001),
                    timeout_summary="until the question expires",
                )
            except TimeoutError:
                expired = ProjectAnswer(option=None, at=workflow.now())
                self.context = rules.record_end(self.context, expired)
        self._show()
        return self.context.answer

    async def _finish(self, answer: ProjectAnswer) -> ProjectAnswer:
        """Carry out the answer, and free the runs, also those that come to wait meanwhile."""
        question = self.context.question
        if question.subject and answer.option is not None:
            request = SettleRequest(question=question, answer=answer)
            try:
                await workflow.execute_activity_method(
                    ProjectQuestions.apply_answer, request, summary=truncate(answer.option, 100), **FILES
                )
            except ActivityError as error:  # the runs meet again what they waited for
                cause = error.cause
                note = cause.message if isinstance(cause, ApplicationError) else str(error)
                answer = answer.evolve(note=truncate(note, 500))
        self.context = self.context.evolve(answer=answer, is_applied=True)
        self._must_release = True
        while self._must_release:
            self._must_release = False
            release = ReleaseRequest(id=question.id, workflows=tuple(self.context.waiting))
            await workflow.execute_activity_method(
                ProjectQuestions.release_runs, release, summary=f"free {self.context.runs} runs", **FILES
            )
        await workflow.wait_condition(workflow.all_handlers_finished)
        return answer

    async def _announce(self, read: QuestionRules) -> None:
        if not read.notify:
            return
        (shown,) = self.context.questions or (None,)
        if shown is None:
            return
        name = f"{QUESTION_PREFIX}{shown.id}"
        notice = Notice(
            kind=NoticeKind.waiting,
            run_id=name,
            agent="",
            title="the project asks a question, for which runs wait",
            text=truncate(shown.text, 1500),
            question_id=shown.id,
            is_cut=len(shown.text) > 1500,
            options=shown.options if len(shown.text) <= 1500 else (),
            asked_at=self.context.asked_at,
        )
        await start_notice(
            notice_workflow_id(name, NoticeKind.waiting), NoticeRequest(notice=notice, routes=read.notify)
        )

    def _show(self) -> None:
        """Show the question in lists, as those of runs."""
        state = self.context

        def attributes_for(hides: bool) -> TypedSearchAttributes:
            if state.answer is not None:
                return TypedSearchAttributes([SearchAttributePair(AGENT_STATUS, RunStatus.running.value)])
            about = "a question" if hides else f"asks: {state.questions[0].text}"
            runs = rules.format_runs(state.runs)
            waits = format_wait(f"{truncate(about, 160)}{f' ({runs})' if runs else ''}")
            status = SearchAttributePair(AGENT_STATUS, RunStatus.waiting_on_human.value)
            return TypedSearchAttributes([status, SearchAttributePair(WAITING_FOR, waits)])

        self._shown.update(attributes_for)

    @workflow.signal(name="wait", description="For runs: a workflow waits for the answer")
    @ignore_if_invalid
    def add_waiting_run(self, *args: Any) -> None:
        self.context = rules.add_waiter(self.context, read_argument(Waiter, args).workflow_id)
        self._must_release = True

    @workflow.signal(description='For features: the matter is settled: {"option", "by"?}')
    @ignore_if_invalid
    def settle(self, *args: Any) -> None:
        settled = read_argument(Settlement, args)
        answer = ProjectAnswer(option=settled.option, by=settled.by, at=workflow.now())
        self.context = rules.record_end(self.context, answer)

    @workflow.signal(description='Answer: {"option", "text"?, "by"?}')
    @ignore_if_invalid
    def human_input(self, *args: Any) -> None:
        self._take(read_argument(HumanInput, args))

    @workflow.update(description='Answer: {"option", "text"?, "by"?}; refused with the reason')
    async def answer(self, *args: Any) -> dict[str, Any]:
        await workflow.wait_condition(lambda: self.context.rules is not None)
        self._take(read_argument(HumanInput, args))
        return {"question_id": self.context.question.id, "accepted": True}

    @answer.validator
    def _answer_fits(self, *args: Any) -> None:
        answer = read_argument(HumanInput, args)
        if reason := rules.judge_answer_of_project(self.context, self.context.rules or QuestionRules(), answer):
            raise invalid_input(reason)

    def _take(self, answer: HumanInput) -> None:
        """Take an answer. Raises ApplicationError with the reason if it is not taken."""
        if self.context.rules is None:
            raise invalid_input("it is being opened; answer again")
        if reason := rules.judge_answer_of_project(self.context, self.context.rules, answer):
            raise invalid_input(reason)
        self.context = rules.take_answer(self.context, answer, workflow.now())

    @workflow.query(description="The question, the number of runs that wait for it, and its answer")
    def state(self, *_: Any) -> QuestionState:
        return self.context


def _begin_question(args: Sequence[Any]) -> QuestionState:
    """Return a new question, or that of an earlier execution. Raises ApplicationError `InvalidInput`."""
    if start_type(args) == "question.continue":
        require_continue_as_new()
        return read_argument(QuestionState, args)
    question, info = read_argument(QuestionInput, args), workflow.info()
    if info.workflow_id != f"{QUESTION_PREFIX}{question.id}":
        raise invalid_input(f"question {question.id} has to be started as {QUESTION_PREFIX}{question.id}")
    return rules.open_state(question, info.first_execution_run_id, workflow.now())
