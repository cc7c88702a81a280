"""Checks of a start, and its sender, at every door.

One set of checks, so that what must fail fails at once, in one line. A worker checks again what it reads of its own
project: another client may know an older one. The sender replaces whatever a caller wrote.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import Client

from perdure.activities.run.status import read_snapshot
from perdure.client.errors import BadStartError, StartTooLargeError, convert_rpc_errors
from perdure.contracts.agent import DEFAULT_AGENT, Agent
from perdure.contracts.conversation import SubmitRequest
from perdure.contracts.media import Attachments
from perdure.contracts.model_settings import ModelOptions, Pace
from perdure.contracts.models import Value, escape_unprintable
from perdure.contracts.people import Sender, Work
from perdure.contracts.run.events import StartEvent, StartPayload
from perdure.contracts.run.state import RunState
from perdure.decisions.ids import run_id_of_workflow, run_workflow_id
from perdure.decisions.model_names import provider_of
from perdure.decisions.people.terms import sources_of_call, work_of
from perdure.decisions.run.transcript import goal_part, start_rejection
from perdure.settings import ProjectError, Settings

B = TypeVar("B", bound=Value)
W = TypeVar("W", StartEvent, SubmitRequest)
ANSWER_WITHIN = timedelta(seconds=10)

_sender: ContextVar[Sender | None] = ContextVar("sender", default=None)


def set_sender(sender: Sender) -> None:
    """Set the sender for this task and the tasks it starts from now on."""
    _sender.set(sender)


def name_person(people: Mapping[str, Collection[str]], name: str, sender: Sender) -> Sender:
    """Return the sender with the person's groups in `[people]`, and with their name if no token has it."""
    if not people:
        return sender
    return sender.evolve(groups=groups_of(people, name), person=None if sender.token else name)


def groups_of(people: Mapping[str, Collection[str]], name: str) -> tuple[str, ...]:
    """Return the groups of `[people]` that have this name."""
    return tuple(group for group, members in people.items() if name in members)


def stamp_sender(body: B) -> B:
    """Return the body with the current sender; a sender that the caller wrote is dropped."""
    return body.evolve(sender=_sender.get())


async def stamp_work(client: Client, body: W) -> W:
    """Return the body with the work of the run whose tool sends it, if one does; a work that it wrote is dropped.

    Raises TemporalUnavailableError, RunNotFoundError.
    """
    return body.evolve(work=await _work_of_caller(client))


async def _work_of_caller(client: Client) -> Work | None:
    workflow_id = activity.info().workflow_id if activity.in_activity() else None
    if workflow_id is None or workflow_id != run_workflow_id(run_id_of_workflow(workflow_id)):
        return None
    with convert_rpc_errors(workflow_id):
        state = (await read_snapshot(client.get_workflow_handle(workflow_id), ANSWER_WITHIN)).state
    is_governed = state.policy or state.work or any(call.verdict for call in state.calls)
    if not is_governed:
        return Work(account=state.account) if state.account else None
    return work_of(state).with_sources(_readable_sources(state))


def _readable_sources(state: RunState) -> tuple[str, ...]:
    """Return what the run may have read: the state does not hold what it has read."""
    from perdure.decisions.policy.facts import source_of  # few runs have a policy

    may = (source for route in state.tools if (source := source_of(route.name)))
    return tuple(dict.fromkeys((*may, *(source for call in state.calls for source in sources_of_call(call)))))


async def check_start(payload: StartPayload, project: Settings | None) -> None:
    """Check a start, for workers that have this project; without one, what is true of any project.

    Raises BadStartError, StartTooLargeError.
    """
    if project is not None:
        agent = _check_agent(payload.agent, payload.pace, payload.attachments, project, "payload.")
        await _check_context(agent, payload.context)
    if payload.output_schema is not None:
        await _check_output_schema(payload.output_schema)
    if reason := start_rejection([goal_part(payload.goal, payload.context)]):
        raise StartTooLargeError(reason)


def check_request(request: SubmitRequest, project: Settings | None) -> None:
    """Check a request to a conversation, which the lane checks further. Raises BadStartError."""
    if project is not None:
        _check_agent(request.agent, None, request.attachments, project, "")


def check_agent(name: str | None, pace: Pace | None, project: Settings) -> None:
    """Check agent and pace before there is a goal. Raises BadStartError."""
    _check_agent(name, pace, (), project, "payload.")


def _check_agent(
    name: str | None, pace: Pace | None, attachments: Attachments, project: Settings, prefix: str
) -> Agent:
    """Return the agent that a start names."""
    _convert(f"{prefix}agent", lambda: project.check_agent(name))
    agent = project.agent(name or DEFAULT_AGENT)
    _convert(f"{prefix}pace", lambda: project.check_pace(name, pace or agent.pace or project.file.model.pace))
    if attachments and not _sees(agent, project):
        names = ", ".join(escape_unprintable(attachment.name) for attachment in attachments)
        models = ", ".join(_models_of(agent, project))
        reason = f"agent {agent.name} ({models}) cannot see it; set `sees` of [model] if it can"
        raise BadStartError(f"payload.attachments: {names}: {reason}", f"{prefix}attachments")
    return agent


def _convert(field: str, check: Callable[[], None]) -> None:
    try:
        check()
    except ProjectError as error:
        raise BadStartError(str(error), field) from None


def _models_of(agent: Agent, project: Settings) -> tuple[str, ...]:
    return (agent.model, *agent.fallbacks) if agent.model else (project.model, *project.fallbacks)


def _sees(agent: Agent, project: Settings) -> bool:
    """Return whether a model of the agent sees images or PDF."""
    from perdure.activities.providers.options import visible_blocks  # takes long to import

    if project.is_rehearsal:
        return True
    providers = project.file.model.providers
    options = ModelOptions().override(project.file.model).override(agent.options)
    named = [provider_of(model, providers) for model in _models_of(agent, project)]
    chats = {name for name, row in providers.items() if row.kind == "openai"}
    return any(visible_blocks(model, options, is_chat=provider in chats) for provider, model in named)


async def _check_context(agent: Agent, context: Mapping[str, Any]) -> None:
    if isinstance(agent.input_schema, dict):
        from perdure.activities.run.definition import find_context_error  # takes long to import

        if reason := await find_context_error(agent, context):
            raise BadStartError(reason, "payload.context")


async def _check_output_schema(schema: dict[str, Any]) -> None:
    from perdure.activities.tools.json_schema import find_schema_error  # takes long to import

    if reason := await asyncio.to_thread(find_schema_error, schema):
        raise BadStartError(f"payload.output_schema: {reason}", "payload.output_schema")
