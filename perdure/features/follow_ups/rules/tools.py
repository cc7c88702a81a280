"""Calls of the `workflow_*` tools as the source's commands; defaults are the run's own (E1)."""

import re
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from perdure.contracts.conversation import MAX_ID_LENGTH, Headers
from perdure.contracts.failures import ToolFault
from perdure.contracts.run.limits import Share
from perdure.contracts.run.state import Call, RunState
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.decisions import ids
from perdure.decisions.errors import format_validation_error
from perdure.decisions.ids import platform_name
from perdure.decisions.people.terms import pass_on, sources_of_call
from perdure.decisions.run.limits import total_spent
from perdure.decisions.run.resume import step_key_id
from perdure.decisions.text.formatting import truncate
from perdure.decisions.tools import (
    WORKFLOW_CREATE,
    WORKFLOW_TASK_CREATE,
    WORKFLOW_WAIT_FOR_REPLY,
    object_schema,
    tool_schema,
)
from perdure.features.follow_ups.contract import (
    Completion,
    CreateCommand,
    CreateData,
    FollowUpCommands,
    TaskCommand,
    TaskData,
)
from perdure.features.follow_ups.rules import kinds

CLIENT = "perdure"
MENTION = r"[A-Za-z0-9@._:-]{1,200}"

# Sent with every call of an agent with follow-ups, so each thing is said once.
_KIND_INPUTS = "; ".join(f"{kind.name}: {kind.about}" for kind in kinds.KINDS.values()) + ". All: timeoutMs?"
CREATE_SCHEMA = tool_schema(
    WORKFLOW_CREATE,
    "Create a follow-up: add its tasks, then end this run; the work resumes when they resolve.",
    {
        "definition": object_schema(
            {
                "summary": "All that is known on resume.",
                "completion": {"type": "string", "enum": list(Completion)},
                "resumeTarget": {
                    "type": "object",
                    "description": "session_id?, request_client?, mention_user_id?",
                },
            },
            "summary",
        )
    },
    "definition",
)
TASK_CREATE_SCHEMA = tool_schema(
    WORKFLOW_TASK_CREATE,
    "Add a task to a follow-up.",
    {"workflowId": "", "kind": "", "description": "", "input": {"type": "object", "description": _KIND_INPUTS}},
    "workflowId",
    "kind",
    "description",
    "input",
)
WAIT_FOR_REPLY_SCHEMA = tool_schema(
    WORKFLOW_WAIT_FOR_REPLY,
    "Wait for a chat reply after this run; without workflowId in a new follow-up.",
    {
        "workflowId": "",
        "description": "",
        "platform": "Default: discord.",
        "channelId": "",
        "messageId": "",
        "after": "Your message in a Slack thread or GitHub issue.",
        "fromUserId": "",
        "timeoutMs": {"type": "integer"},
    },
    "description",
    "channelId",
    "messageId",
)


def build_follow_up_commands(state: RunState, call: Call) -> FollowUpCommands | ToolOutcome:
    """Return the commands of a call, or the error that the model can act on.

    Ids derive from the step, so a repeated call, also in a resumed run, yields the same commands.
    """
    try:
        return _build_commands(state, call)
    except ValidationError as error:
        return error_outcome(ToolFault.invalid_arguments, format_validation_error(error))
    except ValueError as error:
        return error_outcome(ToolFault.invalid_arguments, str(error))


def _build_commands(state: RunState, call: Call) -> FollowUpCommands:
    arguments = call.arguments
    if call.tool == WORKFLOW_CREATE:
        return FollowUpCommands(create=_build_create(state, call, arguments.get("definition")))
    if call.tool == WORKFLOW_TASK_CREATE:
        return FollowUpCommands(task=_build_task(state, call, arguments))
    platform = arguments.get("platform")
    is_discord = platform is None or (isinstance(platform, str) and platform_name(platform) == kinds.DISCORD)
    kind = kinds.DISCORD_REPLY if is_discord else kinds.ANY_REPLY
    names = ("channelId", "messageId", "fromUserId", "timeoutMs", *(() if is_discord else ("platform", "after")))
    fields = {"kind": kind.name, "input": {name: arguments[name] for name in names if arguments.get(name) is not None}}
    fields |= {name: arguments[name] for name in ("workflowId", "description") if arguments.get(name) is not None}
    if "workflowId" in fields:
        return FollowUpCommands(task=_build_task(state, call, fields))
    work = f"{truncate(state.goal, 2000)}\n\n{truncate(state.last_finding, 2000)}"
    create = _build_create(state, call, {"summary": f"{work}\n\nWaiting for: {arguments.get('description')}"})
    fields["workflowId"] = create.data.workflow_id
    return FollowUpCommands(create=create, task=_build_task(state, call, fields))


def _build_create(state: RunState, call: Call, definition: Any) -> CreateCommand:
    # Follow-ups resume work, so a chain of them shares one allowance.
    if total_spent(state).follow_ups >= (limit := state.limits.max_follow_ups):
        raise ValueError(
            f"no follow-up more: this run and the work it goes on from have used all of max_follow_ups ({limit}). "
            "Finish what can be finished now, and say what is left"
        )
    if not isinstance(definition, dict):
        raise ValueError("`definition` is required: an object with `summary`, and `completion` if not all tasks count")  # noqa: TRY004
    own = headers_of(state)
    origin = own.model_dump(exclude_none=True)
    for name, value in _object_field(definition, "origin").items():
        if origin.get(name) != value:
            raise ValueError(f"`origin.{name}` is the run's own and cannot be set: leave `origin` out")
    target = {"session_id": origin["session_id"], "request_client": origin["request_client"]}
    target |= _object_field(definition, "resumeTarget")
    _check_target(state, target, origin["session_id"])
    data = CreateData.model_validate(
        {
            "workflowId": ids.follow_up_id(*_creating_step(state, call)),
            "definition": {**definition, "origin": origin, "resumeTarget": target},
            "runId": state.run_id,
            "agent": state.agent,
            "share": follow_up_share(state.evolve(follow_ups=state.follow_ups + 1)),
            "work": pass_on(state, call),
            "quiet": state.quiet,
        }
    )
    return CreateCommand(headers=own, data=data)


def _check_target(state: RunState, target: dict[str, Any], own: str) -> None:
    """Raise ValueError if the agent's file does not allow the conversation, or the mention is not an id."""
    session = target["session_id"]
    if session != own and not any(fnmatchcase(str(session), allowed) for allowed in state.sessions):
        allowed = ", ".join((own, *state.sessions))
        raise ValueError(f"`resumeTarget.session_id` {truncate(str(session), 80)!r} is not allowed; allowed: {allowed}")
    client = headers_of(state).request_client
    if session == own and target["request_client"] != client:
        raise ValueError(f"`resumeTarget.request_client` of the run's own session is {client!r}: leave it out")
    mention = target.get("mention_user_id")
    if mention is not None and not re.fullmatch(MENTION, str(mention)):
        raise ValueError("`resumeTarget.mention_user_id` is the id of a user: letters, digits and @ . _ : -")


def _object_field(definition: dict[str, Any], name: str) -> dict[str, Any]:
    value = definition.get(name) or {}
    if not isinstance(value, dict):
        raise ValueError(f"`{name}` must be an object")  # noqa: TRY004 - an error of the arguments
    return value


def _build_task(state: RunState, call: Call, arguments: dict[str, Any]) -> TaskCommand:
    fields = {name: arguments[name] for name in ("workflowId", "kind", "description", "input") if name in arguments}
    task_id = ids.task_id(*_creating_step(state, call))
    own = {"taskId": task_id, "runId": state.run_id, "hasRead": sources_of_call(call)}
    data = TaskData.model_validate({**fields, **own})
    if reason := kinds.kind_rejection_reason(data.kind, data.input, round(state.updated_at.timestamp() * 1000)):
        raise ValueError(reason)
    created = {ids.follow_up_id(step_key_id(state, step), step) for step in range(1, (call.step or 0) + 1)}
    if data.workflow_id not in created:  # no step of this run, or of the run it resumes, created it
        name = truncate(data.workflow_id, 80)
        raise ValueError(f"{name!r} is no follow-up of this run: create one with {WORKFLOW_CREATE}")
    return TaskCommand(headers=headers_of(state), data=data)


def _creating_step(state: RunState, call: Call) -> tuple[str, int]:
    """Return the id of the run that first made this call, as in its keys, and the step."""
    step = call.step or 0
    return step_key_id(state, step), step


def headers_of(state: RunState) -> Headers:
    """Return the headers of the run's request; a run without one uses its own id.

    A long id is replaced, not cut: runs whose ids begin alike, such as subtasks, would share one conversation.
    """
    headers, own_id = state.headers, state.run_id
    if len(own_id) > MAX_ID_LENGTH:
        own_id = ids.placeholder_id(own_id)
    return Headers(
        request_id=headers.request_id or own_id,
        session_id=headers.session_id or state.conversation_id or own_id,
        request_client=headers.request_client or CLIENT,
        user_id=headers.user_id,
    )


def format_command_ids(commands: FollowUpCommands) -> dict[str, str]:
    if commands.task is not None:
        return {"workflowId": commands.task.data.workflow_id, "taskId": commands.task.data.task_id}
    return {"workflowId": commands.create.data.workflow_id} if commands.create is not None else {}


def follow_up_share(state: RunState) -> Share:
    """Return the share of each follow-up: they divide evenly what the run has left."""
    limits, used, count = state.limits, total_spent(state), max(state.follow_ups, 1)
    tokens = None if limits.budget_tokens is None else max(limits.budget_tokens - used.tokens, 0) // count
    usd = None if limits.budget_usd is None else max(limits.budget_usd - (used.usd or 0.0), 0.0) / count
    return Share(
        steps=max(limits.max_steps - used.steps, 0) // count,
        tokens=tokens,
        usd=usd,
        follow_ups=max(limits.max_follow_ups - used.follow_ups, 0) // count,
    )


def smaller_share(one: Share | None, other: Share | None) -> Share | None:
    """Return the share that exceeds neither. A missing share is no limit."""
    if one is None or other is None:
        return one or other
    fields = Share.model_fields
    values = {name: [n for n in (getattr(one, name), getattr(other, name)) if n is not None] for name in fields}
    return Share.model_validate({name: min(known, default=None) for name, known in values.items()})
