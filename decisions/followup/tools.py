"""Calls of the `workflow_*` tools as the source's commands; defaults are the run's own (E1)."""

import re
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from contracts.conversation import MAX_ID_LENGTH, Headers
from contracts.failures import ToolFault
from contracts.followup import CreateCommand, CreateData, FollowUpCommands, TaskCommand, TaskData
from contracts.run.state import Call, RunState
from contracts.tool import ToolOutcome, error_outcome
from decisions import ids
from decisions.builtin_tools import WORKFLOW_CREATE, WORKFLOW_TASK_CREATE
from decisions.errors import format_validation_error
from decisions.followup import kinds
from decisions.followup.topic import platform_name
from decisions.run.limits import follow_up_share, total_spent
from decisions.run.resume import step_key_id
from decisions.text.formatting import truncate

CLIENT = "perdure"
MENTION = r"[A-Za-z0-9@._:-]{1,200}"


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
            "share": follow_up_share(state.model_copy(update={"follow_ups": state.follow_ups + 1})),
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
    data = TaskData.model_validate({**fields, "taskId": task_id, "runId": state.run_id})
    if reason := kinds.kind_rejection_reason(data.kind, data.input, round(state.updated_at.timestamp() * 1000)):
        raise ValueError(reason)
    own = {ids.follow_up_id(step_key_id(state, step), step) for step in range(1, (call.step or 0) + 1)}
    if data.workflow_id not in own:  # no step of this run, or of the run it resumes, created it
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
