"""A question of the project is asked once for many runs, is answered once, and its answer frees all of them."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from perdure import registry
from perdure.activities.parts import WorkerParts
from perdure.activities.telemetry.attributes import WAITING_FOR
from perdure.activities.tools.interface import CallContext, PreflightTool
from perdure.client.errors import AnswerRejectedError, RejectedError, RunNotFoundError
from perdure.client.questions import ListedQuestion, list_questions
from perdure.client.run_list import find_run, iterate_runs
from perdure.client.runs import submit_answer
from perdure.contracts.people import NoticeKind, NoticeRoute, Sender
from perdure.contracts.run.signals import HumanInput, QuestionKind
from perdure.contracts.tool import Effect, ToolOutcome
from perdure.features.notices.channels import Channel
from perdure.features.notices.contract import Notice
from perdure.features.project_questions.client import ask_project, question_state, settle_question, wait_for_answer
from perdure.features.project_questions.contract import ProjectAnswer, QuestionInput
from perdure.features.project_questions.rules import format_runs
from perdure.registry import Feature
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.script import FINISH, count_replies

LOOK = calls(("look", {}))
SUBJECT = "testing"


def look_once(body: dict[str, Any]) -> Any:
    return [LOOK, FINISH][count_replies(body)]


carried: list[tuple[str, str | None]] = []


async def carry(_: WorkerParts, question: QuestionInput, answer: ProjectAnswer) -> None:
    """Apply an answer, as the feature of these tests."""
    if answer.text == "break":
        raise ApplicationError("that cannot be done", non_retryable=True)
    carried.append((question.id, answer.option))


@pytest.fixture(autouse=True)
def _feature() -> Iterator[None]:
    carried.clear()
    registry.features()
    registry._rows["testing"] = Feature(on_answer={SUBJECT: f"{__name__}:carry"})
    yield
    del registry._rows["testing"]


def asks(name: str, **fields: Any) -> QuestionInput:
    return QuestionInput(id=name, text="may it go on?", options=("yes", "no"), **fields)


class Waiting(PreflightTool, ScriptedTool):
    """A tool that a question of the project holds, until it is answered."""

    def __init__(self, question: QuestionInput, effect: Effect = Effect.read) -> None:
        ScriptedTool.__init__(self, "look", effect=effect)
        self.question = question
        self.answers: list[ProjectAnswer] = []

    async def check_preflight(self, effect: Effect, accepts: str | None, timeout: timedelta) -> ToolOutcome | None:
        self.answers.append(await wait_for_answer(activity.client(), self.question))
        return None

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        self.calls.append((arguments, context))
        return ToolOutcome(result="seen")


async def until_waiting(it: World, name: str, runs: int) -> None:
    """Wait until so many runs wait, and the server lists the question so: a moment after it knows of them."""

    async def all_wait() -> bool:
        try:
            state = await question_state(it.client, name)
        except RunNotFoundError:
            return False
        if state is None or state.runs < runs:
            return False
        rows = it.client.list_workflows(f"WorkflowId = '{name}'")
        shown = [row.typed_search_attributes.get(WAITING_FOR) or "" async for row in rows]
        return any(format_runs(state.runs) in each for each in shown)

    await it.until(all_wait)


async def listed_question(it: World, name: str) -> ListedQuestion:
    """The question in the list of all, after `until_waiting`."""
    [own] = [each for each in (await list_questions(it.client, 100)).questions if each.run_id == name]
    return own


def new_name() -> str:
    return f"t-{uuid4().hex[:8]}"


async def started(it: World, count: int) -> list[Run]:
    return [await it.start() for _ in range(count)]


@pytest.mark.slow
async def test_many_runs_wait_for_one_question_and_its_answer_frees_all_of_them(world: MakeWorld) -> None:
    name = new_name()
    tool = Waiting(asks(name, subject=SUBJECT))
    async with world(look_once, tool) as it:
        runs = await started(it, 5)
        await until_waiting(it, f"question:{name}", 5)
        own = await listed_question(it, f"question:{name}")
        assert own.question is not None
        assert (own.question.kind, own.question.options, own.runs) == (QuestionKind.project, ("yes", "no"), 5)
        assert not tool.calls
        by_ann = HumanInput(option="yes", text="for today", by="ann")
        await submit_answer(it.client, f"question:{name}", by_ann)
        await asyncio.gather(*(run.result() for run in runs))
        assert len(tool.calls) == 5
        assert carried == [(name, "yes")]
        assert {(each.option, each.text, each.by) for each in tool.answers} == {("yes", "for today", "ann")}
        it.started.append(f"question:{name}")
        late = await it.start()  # the answer holds for later runs, too
        await late.result()
        assert len(tool.calls) == 6


async def test_a_call_with_one_attempt_comes_back_after_the_answer(world: MakeWorld) -> None:
    name = new_name()
    tool = Waiting(asks(name), Effect.once)
    async with world(look_once, tool) as it:
        run = await it.start()
        await until_waiting(it, f"question:{name}", 1)
        await submit_answer(it.client, f"question:{name}", HumanInput(text="no"))  # a page sends the option as a text
        await run.result()
        assert len(tool.calls) == 1
        assert tool.answers[0].option == "no"
        it.started.append(f"question:{name}")


async def test_reads_that_are_fused_wait_in_a_call_of_their_own(world: MakeWorld) -> None:
    name = new_name()
    tool = Waiting(asks(name))
    async with world(look_once, tool, fuses=True) as it:
        run = await it.start()
        await until_waiting(it, f"question:{name}", 1)
        await submit_answer(it.client, f"question:{name}", HumanInput(option="yes"))
        await run.result()
        assert (await it.shown(run))[0] == "seen"


async def test_the_first_valid_answer_counts_and_the_next_one_hears_whose_it_was(world: MakeWorld) -> None:
    name = f"question:{new_name()}"
    async with world([FINISH]) as it:
        question = asks(name.removeprefix("question:"), approvers=("ops",))
        assert await ask_project(it.client, it.queue, question) is None
        assert await ask_project(it.client, it.queue, question) is None  # one, whoever opens it again
        it.started.append(name)
        for answer, reason in (
            (HumanInput(option="maybe"), "takes one of: yes, no"),
            (HumanInput(option="yes", by="eve"), "is for ops; eve is in none of these groups"),
            (HumanInput(option="yes", question_id="other"), "is not open"),
        ):
            with pytest.raises(AnswerRejectedError, match=reason):
                await submit_answer(it.client, name, answer)
        sender = Sender(door="gateway", token="ann", groups=("ops",))
        handle = it.client.get_workflow_handle(name)
        body = HumanInput(option="yes", sender=sender).model_dump(mode="json", exclude_none=True)
        first, second = await asyncio.gather(
            *(handle.execute_update("answer", body, id=str(number)) for number in range(2)), return_exceptions=True
        )
        assert sum(isinstance(each, Exception) for each in (first, second)) <= 1
        given: ProjectAnswer = await it.client.get_workflow_handle(name, result_type=ProjectAnswer).result()
        assert (given.option, given.by) == ("yes", "ann")
        with pytest.raises(RejectedError, match="has ended"):
            await submit_answer(it.client, name, HumanInput(option="no"))
        known = await ask_project(it.client, it.queue, question)
        assert known == given


@pytest.mark.slow
async def test_a_run_that_pauses_itself_as_the_answer_comes_goes_on(world: MakeWorld) -> None:
    """The answers race with the pauses of many runs: none of them is left behind."""
    tools = [Waiting(asks(new_name())) for _ in range(6)]
    for tool in tools:
        async with world(look_once, tool) as it:
            name = f"question:{tool.question.id}"
            runs = await started(it, 3)
            await until_waiting(it, name, 1)
            await submit_answer(it.client, name, HumanInput(option="yes"))
            async with asyncio.timeout(20):
                await asyncio.gather(*(run.result() for run in runs))
            it.started.append(name)


async def test_an_answer_that_cannot_be_carried_out_says_so_and_frees_the_runs_all_the_same(world: MakeWorld) -> None:
    name = new_name()
    tool = Waiting(asks(name, subject=SUBJECT))
    async with world(look_once, tool) as it:
        run = await it.start()
        await until_waiting(it, f"question:{name}", 1)
        await submit_answer(it.client, f"question:{name}", HumanInput(option="yes", text="break"))
        await run.result()
        assert tool.answers[0].note == "that cannot be done"
        it.started.append(f"question:{name}")


async def test_a_question_expires_and_a_feature_settles_one_by_itself(world: MakeWorld) -> None:
    name, other = new_name(), new_name()
    async with world([FINISH]) as it:
        soon = datetime.now(UTC) + timedelta(seconds=1)
        await ask_project(it.client, it.queue, asks(name, expires_at=soon, subject=SUBJECT))
        await ask_project(it.client, it.queue, asks(other))
        await settle_question(it.client, other, "logged in", "ann")
        await settle_question(it.client, "unknown", "logged in", "ann")  # there is none
        expired, settled = [
            await it.client.get_workflow_handle(f"question:{each}", result_type=ProjectAnswer).result()
            for each in (name, other)
        ]
        assert (expired.option, settled.option, settled.by) == (None, "logged in", "ann")
        assert carried == []
        it.started += [f"question:{name}", f"question:{other}"]


async def test_it_is_in_the_list_of_what_waits_for_a_person_and_in_no_list_of_runs(world: MakeWorld) -> None:
    name = new_name()
    tool = Waiting(asks(name))
    async with world(look_once, tool) as it:
        run = await it.start()
        await until_waiting(it, f"question:{name}", 1)

        async def is_listed() -> bool:
            waiting = [each async for each in iterate_runs(it.client, waiting=True, limit=None)]
            return [each.waiting_for for each in waiting if each.run_id == f"question:{name}"] == [
                "human: asks: may it go on? (1 run waits)"
            ]

        await it.until(is_listed)
        assert f"question:{name}" not in [each.run_id async for each in iterate_runs(it.client)]
        with pytest.raises(RejectedError, match="is a question of the project, not a run"):
            await find_run(it.client, f"question:{name}")
        await submit_answer(it.client, f"question:{name}", HumanInput(option="yes"))
        await run.result()
        it.started.append(f"question:{name}")


class Listener:
    def __init__(self) -> None:
        self.notices: list[Notice] = []

    async def send(self, notice: Notice, _key: str, _link: str) -> None:
        self.notices.append(notice)


async def test_it_is_announced_once_to_the_channels_that_are_for_all_agents(world: MakeWorld) -> None:
    name, heard, other = new_name(), Listener(), Listener()
    async with world([FINISH]) as it:
        both = (NoticeKind.waiting, NoticeKind.waiting_long)
        route = NoticeRoute(channel="ops", on=both, patience=timedelta(seconds=0.01))
        channels = (Channel(route, ("*",), heard), Channel(route.evolve(channel="clerk"), ("clerk",), other))
        object.__setattr__(it.project, "parts", {"notices": channels})
        await ask_project(it.client, it.queue, asks(name))
        await it.until(lambda: len(heard.notices) == 2)
        first, reminder = heard.notices
        assert (first.run_id, first.question_id, first.options) == (f"question:{name}", name, ("yes", "no"))
        assert reminder.kind is NoticeKind.waiting_long
        assert not other.notices
        await settle_question(it.client, name, "yes", "ann")


async def test_a_start_under_another_id_or_a_state_from_outside_is_refused(world: MakeWorld) -> None:
    async with world([FINISH]) as it:
        for body in (asks("x"), {"type": "question.continue"}, {"id": "x"}):
            run = await it.start_raw(body, workflow_type="ProjectQuestion", id=f"question:{new_name()}")
            with pytest.raises(Exception, match="Workflow execution failed"):
                await run.result()


async def test_an_answer_to_a_run_takes_no_option(world: MakeWorld) -> None:
    async with world([calls(("ask_human", {"question": "Which?"})), FINISH]) as it:
        run = await it.start()
        await it.until_question(run, "q1")
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update("answer", {"option": "yes", "text": "yes"})
        assert "takes no option" in str(refused.value.cause)
        await it.answer(run, text="b")
        await run.result()


@pytest.mark.parametrize(
    ("runs", "text"),
    [(0, ""), (1, "1 run waits"), (3, "2+ runs wait"), (5, "5 runs wait"), (1234, "1000+ runs wait")],
)
def test_a_list_shows_the_number_of_runs_in_steps(runs: int, text: str) -> None:
    assert format_runs(runs) == text
