"""The built-in tools. The workflow settles them itself, without an activity, except `search_tools`."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from contracts.agent import ToolSchema
from contracts.followup import Completion
from contracts.tool import Approval, Effect, ToolKind, ToolRoute
from decisions.followup.kinds import KINDS
from decisions.typed_result import add_result_parameter

FINISH, REFRAME, ESCALATE, ASK_HUMAN = "finish", "reframe", "escalate", "ask_human"
GET_JOURNAL, UPDATE_JOURNAL = "get_run_journal", "update_run_journal"
APPEND_JOURNAL = "append_run_journal_entry"
WORKFLOW_CREATE, WORKFLOW_TASK_CREATE = "workflow_create", "workflow_task_create"
WORKFLOW_WAIT_FOR_REPLY = "workflow_wait_for_reply"
DELEGATE = "delegate"
SEARCH_TOOLS, CALL_TOOL = "search_tools", "call_tool"

# Settled after the other calls of their turn, since they judge those results.
CONTROL_TOOLS = (FINISH, ESCALATE, REFRAME)
JOURNAL_TOOLS = (GET_JOURNAL, UPDATE_JOURNAL, APPEND_JOURNAL)
FOLLOW_UP_TOOLS = (WORKFLOW_CREATE, WORKFLOW_TASK_CREATE, WORKFLOW_WAIT_FOR_REPLY)

# Part of results, since tools and prompt must not change, for the provider's cache. Small models repeat a call whose
# result does not state the next step.
GO_ON = "Go on with the task: call the tool that it needs next, or write your answer as text without a tool call."

TEXT_SECTIONS = ("objective", "current_state", "handoff_next_action")
LIST_SECTIONS = ("verified_findings", "decisions", "artifacts", "open_questions", "blockers")


def _property_schema(written: Any) -> Any:
    """Return the schema of a property: a description is a text's, one in a list is that of a list of texts."""
    match written:
        case str():
            return {"type": "string", "description": written}
        case [description]:
            return {"type": "array", "items": {"type": "string"}, "description": description}
        case _:
            return written


def _object_schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    schemas = {name: _property_schema(written) for name, written in properties.items()}
    return {"type": "object", "properties": schemas, **({"required": list(required)} if required else {})}


def _tool_schema(name: str, description: str, properties: dict[str, Any], *required: str) -> ToolSchema:
    return ToolSchema(name=name, description=description, input_schema=_object_schema(properties, *required))


SCHEMAS = (
    _tool_schema(
        FINISH,
        "End the run: the goal is reached. Say what was achieved, and name the files that hold it.",
        {"outcome": "What was achieved, in one to three sentences.", "artifacts": ["Paths of the results."]},
        "outcome",
    ),
    _tool_schema(
        REFRAME,
        "The approach does not work: state the task anew, and go on from there.",
        {"frame": "The task as you see it now.", "reason": "Why the old one failed."},
        "frame",
    ),
    _tool_schema(
        ESCALATE,
        "Give the task back to a person: it cannot be done with these tools or rights.",
        {"reason": "What stands in the way, and what a person would have to do."},
        "reason",
    ),
    _tool_schema(
        ASK_HUMAN,
        "Ask a person one question and wait for the answer, however long it takes.",
        {
            "question": "One question, understandable without the conversation.",
            "options": ["Suggested answers, if any."],
        },
        "question",
    ),
    _tool_schema(GET_JOURNAL, "Read your run journal: your own notes, which outlast the conversation.", {}),
    _tool_schema(
        UPDATE_JOURNAL,
        "Replace sections of your run journal. Keep current_state and handoff_next_action true after each "
        "milestone: old messages are dropped when the conversation grows long, the journal is not.",
        {
            "objective": "The task in your own words.",
            "current_state": "Where the work stands, in a few sentences.",
            "handoff_next_action": "What should happen next if you stopped here, in one line.",
            "verified_findings": ["What you have confirmed."],
            "decisions": ["What was decided, and why."],
            "artifacts": ["Where the results are: paths, ids."],
            "open_questions": ["What is unresolved."],
            "blockers": ["What stands in the way; an empty list once it is gone."],
        },
    ),
    _tool_schema(
        APPEND_JOURNAL,
        "Add one entry to a list of your run journal.",
        {
            "section": {"type": "string", "enum": list(LIST_SECTIONS)},
            "entry": "One sentence, understandable without the conversation.",
        },
        "section",
        "entry",
    ),
    _tool_schema(
        WORKFLOW_CREATE,
        "Create a follow-up: tasks that resolve later, after this run has ended. When they have, a new request "
        "goes on with the work, in the session of resumeTarget. Add its tasks, then end this run.",
        {
            "definition": _object_schema(
                {
                    "summary": "What is being done and what is waited for; nothing else is known on resume.",
                    "completion": {
                        "type": "string",
                        "enum": list(Completion),
                        "description": "Resume after all tasks (the default), or after any of them.",
                    },
                    "resumeTarget": _object_schema(
                        {
                            "session_id": "The session to go on in; this one by default.",
                            "request_client": "Its platform, e.g. discord.",
                            "mention_user_id": "Who is to be mentioned there.",
                        }
                    ),
                    "origin": {"type": "object", "description": "By default this run's own request."},
                    "version": {"type": "integer", "enum": [2]},
                },
                "summary",
            )
        },
        "definition",
    ),
    _tool_schema(
        WORKFLOW_TASK_CREATE,
        "Add a task to a follow-up. After the timeoutMs of its input, if any, the work goes on without it.",
        {
            "workflowId": "As workflow_create returned it.",
            "kind": {"type": "string", "enum": list(KINDS)},
            "description": "What is waited for, understandable without the conversation.",
            "input": {
                "type": "object",
                "description": "By kind. " + ". ".join(f"{kind.name}: {kind.about}" for kind in KINDS.values()),
            },
        },
        "workflowId",
        "kind",
        "description",
        "input",
    ),
    _tool_schema(
        WORKFLOW_WAIT_FOR_REPLY,
        "Wait for a reply to a chat message, after this run has ended. Without workflowId a follow-up is "
        "created for it, which goes on with the work in this session.",
        {
            "workflowId": "A follow-up to add it to, if any.",
            "description": "What is waited for, understandable without the conversation.",
            "platform": "Where the message was sent: discord (the default), slack, github, …",
            "channelId": "The channel of the message.",
            "messageId": "The message; only a reply to it counts. In Slack what began the thread, on GitHub the issue.",
            "after": (
                "Your own message, where messageId names another: in Slack its ts, when you wrote in a thread; on "
                "GitHub the id of your comment. Only what was written after it counts."
            ),
            "fromUserId": "Only a reply of this user counts.",
            "timeoutMs": {"type": "integer", "description": "Go on without a reply after this time."},
        },
        "description",
        "channelId",
        "messageId",
    ),
)

# Only for agents that have peers, if the depth limit allows it.
DELEGATE_SCHEMA = _tool_schema(
    DELEGATE,
    "Have peers do parts of the task: a DAG of subtasks, each a run of its own. Those that wait for nothing start "
    "at once. Comes back when all are done, with their results, which you put together; or when one has failed.",
    {
        "subtasks": {
            "type": "array",
            "items": _object_schema(
                {
                    "id": "A short name: letters, digits, - and _.",
                    "agent": "Which peer does it.",
                    "instructions": "All that the peer must know: it sees neither this conversation nor the DAG.",
                    "depends_on": ["Ids of the subtasks whose results it needs, and is given."],
                    "expected_output": "What it should bring back, and in which form.",
                    "timeout": 'How long it may take, such as "10m".',
                    "output_schema": {
                        "type": "object",
                        "description": "The JSON Schema of its `result`, if you need one.",
                    },
                },
                "id",
                "agent",
                "instructions",
            ),
        },
        "join": {
            "type": "string",
            "enum": ["all", "any"],
            "description": "all (the default): each must be done. any: the first that is done ends the others.",
        },
    },
    "subtasks",
)

# Only for agents with many tools. Both stay the same during a run, so that the provider's cache holds.
SEARCH_SCHEMA = _tool_schema(
    SEARCH_TOOLS,
    f"Find tools by what they do: there are more than those listed here. Returns the best matches, each with its "
    f"description and the schema of its arguments; call them by {CALL_TOOL}.",
    {"query": "Words for what the tool does, such as: create ticket. Or names of tools, for their schemas."},
    "query",
)
CALL_SCHEMA = _tool_schema(
    CALL_TOOL,
    f"Call a tool that {SEARCH_TOOLS} returns. If you know its arguments, it needs no search.",
    {"name": "The tool's name.", "arguments": {"type": "object", "description": "As its schema says."}},
    "name",
    "arguments",
)


def unwrap_use(block: dict[str, Any]) -> dict[str, Any]:
    """Return a use of `call_tool` as one of the tool that it names; any other block, and an invalid use, unchanged."""
    if block.get("name") != CALL_TOOL or not isinstance(given := block.get("input"), dict):
        return block
    match given.get("name"), given.get("arguments"):
        case str(name), (dict() | None) as arguments:
            return {**block, "name": name, "input": arguments or {}}
        case _:
            return block


def _route_of(schema: ToolSchema) -> ToolRoute:
    return ToolRoute(
        name=schema.name,
        kind=ToolKind.builtin,
        effect=Effect.keyed if schema.name in FOLLOW_UP_TOOLS else Effect.read,
        takes_step=schema.name not in (*CONTROL_TOOLS, *JOURNAL_TOOLS),
    )


ALL_SCHEMAS = (*SCHEMAS, DELEGATE_SCHEMA)
SEARCH_ROUTE = ToolRoute(name=SEARCH_TOOLS, kind=ToolKind.native, effect=Effect.read, timeout=timedelta(seconds=30))
ROUTES = (*map(_route_of, ALL_SCHEMAS), SEARCH_ROUTE, _route_of(CALL_SCHEMA))

BUILTIN_NAMES = frozenset(route.name for route in ROUTES)
NOTIFY_KIND = "notify"  # not a tool: a kind of task, by which an agent sends a message
GATED = (*FOLLOW_UP_TOOLS, DELEGATE, NOTIFY_KIND)  # may wait for an approval, as they reach beyond the run


def builtin_schemas(
    *, delegates: bool, journal: bool, follow_ups: bool, output_schema: dict[str, Any] | None = None
) -> tuple[ToolSchema, ...]:
    """Return the built-in tools of an agent. With an output schema, `finish` takes a result."""
    optional = ((delegates, (DELEGATE,)), (journal, JOURNAL_TOOLS), (follow_ups, FOLLOW_UP_TOOLS))
    left_out = {name for is_allowed, names in optional if not is_allowed for name in names}
    schemas = (schema for schema in ALL_SCHEMAS if schema.name not in left_out)
    if output_schema is None:
        return tuple(schemas)
    return tuple(add_result_parameter(tool, output_schema) if tool.name == FINISH else tool for tool in schemas)


def gated_routes(gates: Mapping[str, timedelta | None]) -> tuple[ToolRoute, ...]:
    """Return the built-in routes. `gates` names those that need an approval, each with the approval's time limit.

    A gate of `notify` applies only to tasks of that kind.
    """
    return tuple(_gate_route(route, gates) for route in ROUTES)


def _gate_route(route: ToolRoute, gates: Mapping[str, timedelta | None]) -> ToolRoute:
    if route.name in gates:
        return route.model_copy(update={"approval": Approval.always, "approval_timeout": gates[route.name]})
    if route.name == WORKFLOW_TASK_CREATE and NOTIFY_KIND in gates:
        return route.model_copy(update={"approval_kinds": (NOTIFY_KIND,), "approval_timeout": gates[NOTIFY_KIND]})
    return route
