"""Follow-ups from outside: their state, their open questions, and the events that resolve their tasks."""

from datetime import timedelta

from temporalio.client import Client

from perdure.activities.temporal import QueryCache
from perdure.client.door import stamp_sender
from perdure.client.runs import STATE_QUERY_TIMEOUT, AddressedView, query_view
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import QuestionView
from perdure.decisions import ids
from perdure.decisions.text.visible_text import render_visible
from perdure.features.follow_ups.activities import signal_event
from perdure.features.follow_ups.contract import Event, FollowUpState, Task
from perdure.features.follow_ups.rules.kinds import question_of
from perdure.features.follow_ups.rules.state import open_prompts


async def follow_up_state(
    client: Client, follow_up_id: str, patience: timedelta = STATE_QUERY_TIMEOUT, cache: QueryCache | None = None
) -> FollowUpState | None:
    """Return the state of the follow-up `wf:<workflowId>`, if a worker answers. Raises RunNotFoundError."""
    handle = client.get_workflow_handle(ids.addressed_workflow_id(follow_up_id))
    return await query_view(handle, "state", FollowUpState, f"run {follow_up_id}", patience, cache)


async def query_follow_up(
    client: Client, follow_up_id: str, patience: timedelta = STATE_QUERY_TIMEOUT, cache: QueryCache | None = None
) -> AddressedView | None:
    """Return what clients need of a follow-up, if a worker answers. Raises RunNotFoundError."""
    state = await follow_up_state(client, follow_up_id, patience, cache)
    if state is None:
        return None
    return AddressedView(
        state=state,
        goal=state.definition.summary,
        questions=tuple(map(question_of_task, open_prompts(state))),
        execution=state.execution,
        answer_keys=state.answer_keys,
    )


def question_of_task(task: Task) -> QuestionView:
    """Return the question of a task that asks a person, as it is listed with those of runs."""
    question = question_of(task)
    text = render_visible(question.text)
    options = tuple(map(render_visible, question.options))
    return QuestionView(id=task.task_id, kind=QuestionKind.question, text=text, options=options)


async def publish_external_event(client: Client, task_queue: str, event: Event) -> str:
    """Publish an event to its topic and return the topic's workflow id. Raises NotAwaitedError, RPCError."""
    return await signal_event(client, task_queue, stamp_sender(event))
