"""The built-in tools. The workflow settles them itself, without an activity, except `search_tools`."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from contracts.agent import ToolSchema
from contracts.followup import Completion
from contracts.tool import Approval, Effect, ToolKind, ToolRoute
from decisions.followup.kinds import KINDS

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
# No policy is about these: they reach nothing beyond the run and the person who is asked, and end it.
UNGOVERNED = frozenset({*CONTROL_TOOLS, *JOURNAL_TOOLS, ASK_HUMAN, SEARCH_TOOLS, CALL_TOOL})

# Part of results, since tools and prompt must not change, for the provider's cache. Small models repeat a call whose
# result does not state the next step.
GO_ON = "Go on with the task: call the tool that it needs next, or write your answer as text without a tool call."

TEXT_SECTIONS = ("objective", "current_state", "handoff_next_action")
LIST_SECTIONS = ("verified_findings", "decisions", "artifacts", "open_questions", "blockers")


def _property_schema(written: Any) -> Any:
    """Return the schema of a property: a description is a text's, one in a list is that of a list of texts."""
    match written:
        case str():
            return {"type": "string", **_described(written)}
        case [description]:
            return {"type": "array", "items": {"type": "string"}, **_described(description)}
        case _:
            return written


def _described(text: str) -> dict[str, str]:
    return {"description": text} if text else {}


def _object_schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    schemas = {name: _property_schema(written) for name, written in properties.items()}
    return {"type": "object", "properties": schemas, **({"required": list(required)} if required else {})}


def _tool_schema(name: str, description: str, properties: dict[str, Any], *required: str) -> ToolSchema:
    return ToolSchema(name=name, description=description, input_schema=_object_schema(properties, *required))


_KIND_INPUTS = "; ".join(f"{kind.name}: {kind.about}" for kind in KINDS.values()) + ". All: timeoutMs?"

# Sent with every call, so each thing is said once: in the name, a description, or the prompt.
SCHEMAS = (
    _tool_schema(
        FINISH,
        "End the run.",
        {"outcome": "One to three sentences.", "artifacts": ["Paths of the results."]},
        "outcome",
    ),
    _tool_schema(REFRAME, "Restate the task, and go on.", {"frame": ""}, "frame"),
    _tool_schema(
        ESCALATE,
        "Give the task back to a person.",
        {"reason": "What is in the way, and what a person must do."},
        "reason",
    ),
    _tool_schema(
        ASK_HUMAN,
        "Ask a person, and wait.",
        {"question": "One question, with its context.", "options": [""]},
        "question",
    ),
    _tool_schema(GET_JOURNAL, "Read your run journal.", {}),
    _tool_schema(
        UPDATE_JOURNAL,
        "Replace sections of your run journal, at milestones: it stays when old messages are dropped.",
        {**dict.fromkeys(TEXT_SECTIONS, ""), **{name: [""] for name in LIST_SECTIONS}, "decisions": ["With reasons."]},
    ),
    _tool_schema(
        APPEND_JOURNAL, "Add one sentence to a list of the journal.", {"section": "", "entry": ""}, "section", "entry"
    ),
    _tool_schema(
        WORKFLOW_CREATE,
        "Create a follow-up: add its tasks, then end this run; the work resumes when they resolve.",
        {
            "definition": _object_schema(
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
    ),
    _tool_schema(
        WORKFLOW_TASK_CREATE,
        "Add a task to a follow-up.",
        {"workflowId": "", "kind": "", "description": "", "input": {"type": "object", "description": _KIND_INPUTS}},
        "workflowId",
        "kind",
        "description",
        "input",
    ),
    _tool_schema(
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
    ),
)

# Only for agents that have peers, if the depth limit allows it.
DELEGATE_SCHEMA = _tool_schema(
    DELEGATE,
    "Have peers do parts of the task, as a DAG of subtasks. Returns all their results, or the first failure.",
    {
        "subtasks": {
            "type": "array",
            "items": _object_schema(
                {
                    "id": "Letters, digits, - and _.",
                    "agent": "The peer.",
                    "instructions": "",
                    "depends_on": ["Ids of subtasks whose results it needs."],
                    "expected_output": "What to bring back, in which form.",
                    "timeout": 'Such as "10m".',
                    "output_schema": {"type": "object", "description": "JSON Schema of its `result`."},
                },
                "id",
                "agent",
                "instructions",
            ),
        },
        "join": {
            "type": "string",
            "enum": ["all", "any"],
            "description": "all (default): each must be done. any: the first that is done ends the others.",
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


_RESULT = "#/properties/result"
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = (*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas")  # these hold schemas by a name
_DATA = ("const", "enum", "default", "examples")


def add_result_parameter(finish: ToolSchema, output_schema: dict[str, Any]) -> ToolSchema:
    """Return `finish` with the required parameter `result`.

    Definitions move to the top, where models and servers expect them; other references are adjusted.
    """
    schema = finish.input_schema
    own = {name: value for name, value in output_schema.items() if name not in (*_DEFINITIONS, "$schema", "$id")}
    definitions = {name: _adjust_keyword(name, output_schema[name]) for name in _DEFINITIONS if name in output_schema}
    changes = {
        "properties": {**schema["properties"], "result": _adjust_references(own)},
        "required": [*schema["required"], "result"],
    }
    return finish.model_copy(update={"input_schema": {**schema, **changes, **definitions}})


def _adjust_references(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_adjust_references(inner) for inner in schema]
    if not isinstance(schema, dict) or "$id" in schema:  # references below an `$id` are relative to it
        return schema
    return {keyword: _adjust_keyword(keyword, value) for keyword, value in schema.items()}


def _adjust_keyword(keyword: str, value: Any) -> Any:
    if keyword in _DATA:
        return value
    if keyword in _BY_NAME and isinstance(value, dict):
        return {name: _adjust_references(inner) for name, inner in value.items()}
    if keyword in ("$ref", "$dynamicRef") and isinstance(value, str):
        is_moved = value == "#" or (value.startswith("#/") and value.split("/")[1] not in _DEFINITIONS)
        return _RESULT + value[1:] if is_moved else value
    return _adjust_references(value)


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
