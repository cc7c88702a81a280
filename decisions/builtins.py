"""The tools that are decisions themselves: settled inside the workflow, at the cost of no activity."""

from datetime import timedelta
from typing import Any

from contracts.agent import ToolSchema
from contracts.tool import Effect, ToolKind, ToolRoute

FINISH, REFRAME, ESCALATE, ASK_HUMAN = "finish", "reframe", "escalate", "ask_human"
GET_JOURNAL, UPDATE_JOURNAL = "get_run_journal", "update_run_journal"
APPEND_JOURNAL = "append_run_journal_entry"
DELEGATE = "delegate"

# Settled after the other calls of their turn, since they judge what those brought.
CONTROL = (FINISH, ESCALATE, REFRAME)
JOURNAL = (GET_JOURNAL, UPDATE_JOURNAL, APPEND_JOURNAL)

TEXT_SECTIONS = ("objective", "current_state", "handoff_next_action")
LIST_SECTIONS = ("verified_findings", "decisions", "artifacts", "open_questions", "blockers")


def _text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


SCHEMAS = (
    ToolSchema(
        name=FINISH,
        description="End the run: the goal is reached. Say what was achieved, and name the files that hold it.",
        input_schema={
            "type": "object",
            "properties": {
                "outcome": _text("What was achieved, in one to three sentences."),
                "artifacts": _texts("Paths of the results."),
            },
            "required": ["outcome"],
        },
    ),
    ToolSchema(
        name=REFRAME,
        description="The approach does not work: state the task anew, and go on from there.",
        input_schema={
            "type": "object",
            "properties": {
                "frame": _text("The task as you see it now."),
                "reason": _text("Why the old one failed."),
            },
            "required": ["frame"],
        },
    ),
    ToolSchema(
        name=ESCALATE,
        description="Give the task back to a person: it cannot be done with these tools or rights.",
        input_schema={
            "type": "object",
            "properties": {"reason": _text("What stands in the way, and what a person would have to do.")},
            "required": ["reason"],
        },
    ),
    ToolSchema(
        name=ASK_HUMAN,
        description="Ask a person one question and wait for the answer, however long it takes.",
        input_schema={
            "type": "object",
            "properties": {
                "question": _text("One question, understandable without the conversation."),
                "options": _texts("Suggested answers, if any."),
            },
            "required": ["question"],
        },
    ),
    ToolSchema(
        name=GET_JOURNAL,
        description="Read your run journal: your own notes, which outlast the conversation.",
        input_schema={"type": "object", "properties": {}},
    ),
    ToolSchema(
        name=UPDATE_JOURNAL,
        description=(
            "Replace sections of your run journal. Keep current_state and handoff_next_action true after each "
            "milestone: old messages are dropped when the conversation grows long, the journal is not."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "objective": _text("The task in your own words."),
                "current_state": _text("Where the work stands, in a few sentences."),
                "handoff_next_action": _text("What should happen next if you stopped here, in one line."),
                "verified_findings": _texts("What you have confirmed."),
                "decisions": _texts("What was decided, and why."),
                "artifacts": _texts("Where the results are: paths, ids."),
                "open_questions": _texts("What is unresolved."),
                "blockers": _texts("What stands in the way; an empty list once it is gone."),
            },
        },
    ),
    ToolSchema(
        name=APPEND_JOURNAL,
        description="Add one entry to a list of your run journal.",
        input_schema={
            "type": "object",
            "properties": {
                "section": {"type": "string", "enum": list(LIST_SECTIONS)},
                "entry": _text("One sentence, understandable without the conversation."),
            },
            "required": ["section", "entry"],
        },
    ),
)

# Only for agents that have peers, and where depth is left.
DELEGATE_SCHEMA = ToolSchema(
    name=DELEGATE,
    description=(
        "Have peers do parts of the task: a DAG of subtasks, each a run of its own. Those that wait for nothing start "
        "at once. Comes back when all are done, with their results, which you put together; or when one has failed."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "subtasks": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "id": _text("A short name: letters, digits, - and _."),
                        "agent": _text("Which peer does it."),
                        "instructions": _text(
                            "All that the peer must know: it sees neither this conversation nor the DAG."
                        ),
                        "depends_on": _texts("Ids of the subtasks whose results it needs, and is given."),
                        "expected_output": _text("What it should bring back, and in which form."),
                        "timeout": _text('How long it may take, such as "10m".'),
                    },
                    "required": ["id", "agent", "instructions"],
                },
            },
            "join": {
                "type": "string",
                "enum": ["all", "any"],
                "description": "all (the default): each must be done. any: the first that is done ends the others.",
            },
        },
        "required": ["subtasks"],
    },
)


def _route(schema: ToolSchema) -> ToolRoute:
    return ToolRoute(
        name=schema.name,
        kind=ToolKind.builtin,
        effect=Effect.read,
        timeout=timedelta(seconds=1),
        takes_step=schema.name not in (*CONTROL, *JOURNAL),
    )


ROUTES = tuple(_route(schema) for schema in SCHEMAS)
DELEGATE_ROUTE = _route(DELEGATE_SCHEMA)

NAMES = frozenset(schema.name for schema in (*SCHEMAS, DELEGATE_SCHEMA))
