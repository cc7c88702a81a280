"""A project question from outside, and from an activity that waits for its answer."""

from datetime import timedelta
from functools import partial

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure.activities.effects.holding import HeldError, confirm_hold
from perdure.activities.temporal import IgnoreMissing, QueryCache, own_workflow_id
from perdure.client.runs import STATE_QUERY_TIMEOUT, AddressedView, query_view
from perdure.decisions.ids import QUESTION_PREFIX
from perdure.decisions.text.formatting import escape_markdown, truncate
from perdure.features.project_questions.contract import (
    ProjectAnswer,
    QuestionInput,
    QuestionState,
    Settlement,
    Waiter,
)


async def ask_project(client: Client, task_queue: str, question: QuestionInput) -> ProjectAnswer | None:
    """Open a question, unless it is open. Return its answer if it has been answered. Raises RPCError."""
    name = f"{QUESTION_PREFIX}{question.id}"
    try:
        await client.start_workflow(
            "ProjectQuestion",
            question,
            id=name,
            task_queue=task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
            static_summary=escape_markdown(truncate(question.text, 200)),
        )
    except WorkflowAlreadyStartedError:
        return await _read_answer(client, name)
    return None


async def _read_answer(client: Client, name: str) -> ProjectAnswer | None:
    """Return the answer, also while the question is open: a run that it has freed must not wait for it again."""
    handle = client.get_workflow_handle(name, result_type=ProjectAnswer)
    if (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED:
        answer: ProjectAnswer = await handle.result()
        return answer
    state = await query_view(handle, "state", QuestionState, name)
    return state.answer if state and state.is_applied else None


async def wait_for_answer(client: Client, question: QuestionInput, why: str = "") -> ProjectAnswer:
    """Return the answer, if there is one. Otherwise ask, and raise HeldError: the activity waits on the server for it.

    The caller must pass it on, before any effect. `why` says in a line why it waits; by default the question does.
    Raises RPCError.
    """
    if answer := await ask_project(client, activity.info().task_queue, question):
        return answer
    confirm_hold(partial(_register, client, f"{QUESTION_PREFIX}{question.id}"))
    raise HeldError(f"{QUESTION_PREFIX}{question.id}", why or question.text)


async def _register(client: Client, name: str) -> bool:
    """Have this activity, which is paused, freed by the answer. Return False if the question is over.

    The pause comes first: a question that takes the signal is not over, and frees what is paused.
    """
    with IgnoreMissing():
        await client.get_workflow_handle(name).signal("wait", Waiter(workflow_id=own_workflow_id()))
        return True
    return False


async def settle_question(client: Client, question_id: str, option: str, by: str) -> None:
    """Close a question, if it is open: its matter is settled, so the runs that wait go on. Raises RPCError."""
    with IgnoreMissing():
        settled = Settlement(option=option, by=by)
        await client.get_workflow_handle(f"{QUESTION_PREFIX}{question_id}").signal("settle", settled)


async def question_state(
    client: Client, named: str, patience: timedelta = STATE_QUERY_TIMEOUT, cache: QueryCache | None = None
) -> QuestionState | None:
    """Return the state of `question:<id>`, if a worker answers. Raises RunNotFoundError."""
    handle = client.get_workflow_handle(named)
    return await query_view(handle, "state", QuestionState, named, patience, cache)


async def query_question(
    client: Client, named: str, patience: timedelta = STATE_QUERY_TIMEOUT, cache: QueryCache | None = None
) -> AddressedView | None:
    """Return what clients need of a project question, if a worker answers. Raises RunNotFoundError."""
    state = await question_state(client, named, patience, cache)
    if state is None:
        return None
    return AddressedView(
        state=state,
        goal="",
        questions=state.questions,
        execution=state.execution,
        answer_keys=state.rules.answer_keys if state.rules else {},
        runs=state.runs,
    )
