"""Tools: the built-in ones, the rules of the model APIs, names and schemas."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

from perdure.contracts.agent import ToolSchema
from perdure.contracts.tool import Approval, Effect, ToolKind, ToolRoute
from perdure.registry import feature_tools, load

SEPARATOR = "__"


MAX_WORD = 60  # characters of a value in a schema; a longer one is prose


def server_of_tool(name: str) -> str | None:
    """Return the server in `server__tool` and `server__*`, if any."""
    server, separator, tool = name.partition(SEPARATOR)
    return server if separator and server and tool else None


def schema_texts(schema: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text of a schema that a model would read, with its place: descriptions, and long values."""
    inner = schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    for key, value in inner:
        place = f"{path}.{key}" if path else str(key)
        if isinstance(value, str) and (key == "description" or len(value) > MAX_WORD):
            yield place.removesuffix(".description").removeprefix("properties."), value
        else:
            yield from schema_texts(value, place)


MAX_DEFINITION = 64 * 1024  # bytes of a tool's description and schema, which are sent to the model
COMBINATORS = ("anyOf", "oneOf", "allOf")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def api_rejection(name: str, description: str, input_schema: Any) -> tuple[str, str] | None:
    """Return the field that the API rejects, and its rule, if any."""
    if not _NAME.fullmatch(name):
        return "name", "the name must match ^[a-zA-Z0-9_-]{1,64}$"
    if not isinstance(input_schema, dict):
        return "input_schema", "the schema must be an object"
    if error := _schema_rejection(input_schema):
        return error
    if len(json.dumps([description, input_schema]).encode()) > MAX_DEFINITION:
        return "input_schema", f"the definition is larger than {MAX_DEFINITION:,} bytes"
    return None


def _schema_rejection(schema: dict[str, Any]) -> tuple[str, str] | None:
    """Check the root of the schema. Deeper levels may have combinators, and properties of any name."""
    if schema.get("type") != "object":
        return "input_schema.type", 'the schema must have the type "object"'
    if combinators := [word for word in COMBINATORS if word in schema]:
        return "input_schema", f"{combinators[0]} is not supported at the root of the schema"
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return "input_schema.properties", "the properties must be an object"
    bad_name = next((key for key in properties if not _PROPERTY.fullmatch(key)), None)
    if bad_name is not None:
        rule = "names of properties must match ^[a-zA-Z0-9_.-]{1,64}$"
        return "input_schema.properties", f"{rule}, and {bad_name[:100]!a} does not"
    return None


Path = tuple[str, ...]  # names and indexes from the root of the schema

DEFINITIONS = ("$defs", "definitions")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_BY_NAME = (*DEFINITIONS, "properties", "patternProperties", "dependentSchemas", "dependencies")  # schemas by a name
_DATA = ("const", "enum", "default", "examples")
MAX_SHOWN = 200  # characters of a reference in a message


@dataclass(frozen=True)
class Reference:
    """A reference: the schema that it stands in, its keyword and text. `base` is the URI that it is relative to."""

    place: Path
    keyword: str
    text: str
    base: str


@dataclass
class _Index:
    references: list[Reference] = field(default_factory=list)
    places: dict[tuple[str, str], Path] = field(default_factory=dict)  # by URI and anchor

    def add(self, schema: Any, place: Path, base: str) -> None:
        """Add a value of the schema, and all that is in it. `base` is the URI that its references are relative to."""
        if isinstance(schema, list):
            for number, inner in enumerate(schema):
                self.add(inner, (*place, str(number)), base)
        if not isinstance(schema, dict):
            return
        base = self._add_names(schema, place, base)
        for keyword, value in schema.items():
            if keyword in REFERENCES and isinstance(value, str):
                self.references.append(Reference(place, keyword, value, base))
            elif keyword in _BY_NAME and isinstance(value, dict):
                for name, inner in value.items():
                    self.add(inner, (*place, keyword, name), base)
            elif keyword not in _DATA:
                self.add(value, (*place, keyword), base)

    def _add_names(self, schema: Mapping[str, Any], place: Path, base: str) -> str:
        """Add the schema under its URI and its anchors. Return the URI for what is in it."""
        named = schema.get("$id")
        if isinstance(named, str) and named.startswith("#"):  # an anchor, as older drafts write it
            self.places[base, named[1:]] = place
        elif isinstance(named, str):
            base = urldefrag(_join(base, named))[0]
            self.places[base, ""] = place
        for keyword in _ANCHORS:
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                self.places[base, anchor] = place
        return base


def _join(base: str, uri: str) -> str:
    """Return the URI relative to a base. What cannot be joined stays as it is, and names nothing."""
    if uri.startswith("#"):
        return base + uri
    try:
        return urljoin(base, uri)
    except ValueError:
        return uri


def _index(schema: Any) -> _Index:
    index = _Index()
    index.places["", ""] = ()
    index.add(schema, (), "")
    return index


def _find_target(schema: Any, reference: Reference, places: Mapping[tuple[str, str], Path]) -> Path | None:
    """Return the place in the schema that a reference leads to, if there is one."""
    uri, fragment = urldefrag(_join(reference.base, reference.text))
    if not fragment.startswith("/"):
        return places.get((uri, fragment))
    start = places.get((uri, ""))
    if start is None:
        return None
    steps = (step.replace("~1", "/").replace("~0", "~") for step in unquote(fragment[1:]).split("/"))
    path = (*start, *steps)
    return path if _has_place(schema, path) else None


def _has_place(schema: Any, path: Path) -> bool:
    for step in path:
        if isinstance(schema, list) and step.isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        elif isinstance(schema, dict) and step in schema:
            schema = schema[step]
        else:
            return False
    return isinstance(schema, dict | bool)


def find_foreign_reference(schema: Any) -> Reference | None:
    """Return the first reference that leads to no schema within this one, if any. Raises RecursionError."""
    index = _index(schema)
    return next((found for found in index.references if _find_target(schema, found, index.places) is None), None)


def describe_foreign_reference(found: Reference) -> str:
    """Return the reason, in one line, why a schema with such a reference is not taken."""
    place = "/".join((*found.place, found.keyword))
    target = found.text[:MAX_SHOWN]
    return f"{place[:MAX_SHOWN]!a} refers to {target!a}, which is not in the schema: nothing outside of it is read"


def move_schema(schema: Mapping[str, Any], below: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema as it is written at the place `below` of another one, and the definitions for the top of that.

    Each reference becomes one from the new root, since many servers know neither `$id` nor anchors; they are left out.
    """
    rewritten = _Move(schema, _index(schema), below).rewrite(schema)
    rewritten.pop("$schema", None)
    definitions = {name: rewritten.pop(name) for name in DEFINITIONS if name in rewritten}
    return rewritten, definitions


@dataclass(frozen=True)
class _Move:
    schema: Mapping[str, Any]
    index: _Index
    below: Path

    def rewrite(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._rewrite_keywords(schema, ""))

    def _rewrite_keywords(self, schema: Mapping[str, Any], base: str) -> Iterator[tuple[str, Any]]:
        """Yield the keywords with references from the new root."""
        if isinstance(named := schema.get("$id"), str) and not named.startswith("#"):
            base = urldefrag(_join(base, named))[0]
        for keyword, value in schema.items():
            if keyword in ("$id", *_ANCHORS) and isinstance(value, str):
                continue
            if keyword in REFERENCES and isinstance(value, str):
                yield keyword, self._rewrite_reference(Reference((), keyword, value, base))
            elif keyword in _BY_NAME and isinstance(value, dict):
                yield keyword, {name: self._rewrite_value(inner, base) for name, inner in value.items()}
            else:
                yield keyword, value if keyword in _DATA else self._rewrite_value(value, base)

    def _rewrite_value(self, value: Any, base: str) -> Any:
        if isinstance(value, list):
            return [self._rewrite_value(inner, base) for inner in value]
        return dict(self._rewrite_keywords(value, base)) if isinstance(value, dict) else value

    def _rewrite_reference(self, reference: Reference) -> str:
        target = _find_target(self.schema, reference, self.index.places)
        if target is None:
            return reference.text
        path = target if target[:1] and target[0] in DEFINITIONS else (*self.below, *target)
        written = "#" + "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in path)
        return reference.text if unquote(reference.text) == written else quote(written, safe="#/$~")


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
# They change the run's state and nothing else: a call takes no step and no time.
STATE_TOOLS = (*CONTROL_TOOLS, *JOURNAL_TOOLS)
FOLLOW_UP_TOOLS = (WORKFLOW_CREATE, WORKFLOW_TASK_CREATE, WORKFLOW_WAIT_FOR_REPLY)
# No policy is about these: they reach nothing beyond the run and the person who is asked, and end it.
UNGOVERNED = frozenset({*STATE_TOOLS, ASK_HUMAN, SEARCH_TOOLS, CALL_TOOL})

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


def object_schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of an object, with the names of those properties that it must have."""
    schemas = {name: _property_schema(written) for name, written in properties.items()}
    return {"type": "object", "properties": schemas, **({"required": list(required)} if required else {})}


def tool_schema(name: str, description: str, properties: dict[str, Any], *required: str) -> ToolSchema:
    """Return the schema of a tool, with the names of those arguments that it must have."""
    return ToolSchema.model_construct(
        name=name, description=description, input_schema=object_schema(properties, *required)
    )


# Sent with every call, so each thing is said once: in the name, a description, or the prompt.
SCHEMAS = (
    tool_schema(
        FINISH,
        "End the run.",
        {"outcome": "One to three sentences.", "artifacts": ["Paths of the results."]},
        "outcome",
    ),
    tool_schema(REFRAME, "Restate the task, and go on.", {"frame": ""}, "frame"),
    tool_schema(
        ESCALATE,
        "Give the task back to a person.",
        {"reason": "What is in the way, and what a person must do."},
        "reason",
    ),
    tool_schema(
        ASK_HUMAN,
        "Ask a person, and wait.",
        {"question": "One question, with its context.", "options": [""]},
        "question",
    ),
    tool_schema(GET_JOURNAL, "Read your run journal.", {}),
    tool_schema(
        UPDATE_JOURNAL,
        "Replace sections of your run journal, at milestones: it stays when old messages are dropped.",
        {**dict.fromkeys(TEXT_SECTIONS, ""), **{name: [""] for name in LIST_SECTIONS}, "decisions": ["With reasons."]},
    ),
    tool_schema(
        APPEND_JOURNAL, "Add one sentence to a list of the journal.", {"section": "", "entry": ""}, "section", "entry"
    ),
)

# Only for agents with many tools. Both stay the same during a run, so that the provider's cache holds.
SEARCH_SCHEMA = tool_schema(
    SEARCH_TOOLS,
    f"Find tools by what they do: there are more than those listed here. Returns the best matches, each with its "
    f"description and the schema of its arguments; call them by {CALL_TOOL}.",
    {"query": "Words for what the tool does, such as: create ticket. Or names of tools, for their schemas."},
    "query",
)
CALL_SCHEMA = tool_schema(
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


def all_schemas() -> tuple[ToolSchema, ...]:
    """Return the schemas of all built-in tools, except those to search tools."""
    return (*SCHEMAS, *(load(tool.schema) for tool in feature_tools().values()))


def _route_of(name: str) -> ToolRoute:
    added = feature_tools().get(name)
    return ToolRoute(
        name=name,
        kind=ToolKind.builtin,
        effect=Effect(added.effect) if added else Effect.read,
        takes_step=name not in STATE_TOOLS,
    )


SEARCH_ROUTE = ToolRoute.model_construct(
    name=SEARCH_TOOLS, kind=ToolKind.native, effect=Effect.read, timeout=timedelta(seconds=30)
)
NOTIFY_KIND = "notify"  # not a tool: a kind of task, by which an agent sends a message


def routes() -> tuple[ToolRoute, ...]:
    """Return the routes of all built-in tools, those of features included."""
    names = (*(schema.name for schema in SCHEMAS), *feature_tools())
    return (*map(_route_of, names), SEARCH_ROUTE, _route_of(CALL_TOOL))


def builtin_names() -> frozenset[str]:
    return frozenset(route.name for route in routes())


def gated_names() -> tuple[str, ...]:
    """Return the built-in tools that may wait for an approval, as they reach beyond the run."""
    return (*feature_tools(), NOTIFY_KIND)


def builtin_schemas(
    *, delegates: bool, journal: bool, follow_ups: bool, output_schema: dict[str, Any] | None = None
) -> tuple[ToolSchema, ...]:
    """Return the built-in tools of an agent. With an output schema, `finish` takes a result."""
    optional = ((delegates, (DELEGATE,)), (journal, JOURNAL_TOOLS), (follow_ups, FOLLOW_UP_TOOLS))
    left_out = {name for is_allowed, names in optional if not is_allowed for name in names}
    schemas = (schema for schema in all_schemas() if schema.name not in left_out)
    if output_schema is None:
        return tuple(schemas)
    return tuple(add_result_parameter(tool, output_schema) if tool.name == FINISH else tool for tool in schemas)


def add_result_parameter(finish: ToolSchema, output_schema: dict[str, Any]) -> ToolSchema:
    """Return `finish` with the required parameter `result`.

    Definitions move to the top, where models and servers expect them; references are adjusted.
    """
    schema = finish.input_schema
    result, definitions = move_schema(output_schema, ("properties", "result"))
    changes = {
        "properties": {**schema["properties"], "result": result},
        "required": [*schema["required"], "result"],
    }
    return finish.evolve(input_schema={**schema, **changes, **definitions})


def gated_routes(gates: Mapping[str, timedelta | None]) -> tuple[ToolRoute, ...]:
    """Return the built-in routes. `gates` names those that need an approval, each with the approval's time limit.

    A gate of `notify` applies only to tasks of that kind.
    """
    return tuple(_gate_route(route, gates) for route in routes())


def _gate_route(route: ToolRoute, gates: Mapping[str, timedelta | None]) -> ToolRoute:
    if route.name in gates:
        return route.evolve(approval=Approval.always, approval_timeout=gates[route.name])
    if route.name == WORKFLOW_TASK_CREATE and NOTIFY_KIND in gates:
        return route.evolve(approval_kinds=(NOTIFY_KIND,), approval_timeout=gates[NOTIFY_KIND])
    return route
