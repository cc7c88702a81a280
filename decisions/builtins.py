"""The tools that are decisions themselves: settled inside the workflow, at the cost of no activity."""

from datetime import timedelta

from contracts.agent import ToolSchema
from contracts.tool import Effect, ToolKind, ToolRoute

FINISH, REFRAME, ESCALATE, ASK_HUMAN = "finish", "reframe", "escalate", "ask_human"

# Settled after the other calls of their turn, since they judge what those brought.
CONTROL = (FINISH, ESCALATE, REFRAME)


def _text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


SCHEMAS = (
    ToolSchema(
        name=FINISH,
        description="End the run: the goal is reached. Say what was achieved, and name the files that hold it.",
        input_schema={
            "type": "object",
            "properties": {
                "outcome": _text("What was achieved, in one to three sentences."),
                "artifacts": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Paths of the results.",
                },
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
                "options": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Suggested answers, if any.",
                },
            },
            "required": ["question"],
        },
    ),
)

ROUTES = tuple(
    ToolRoute(
        name=schema.name,
        kind=ToolKind.builtin,
        effect=Effect.read,
        timeout=timedelta(seconds=1),
        takes_step=schema.name not in CONTROL,
    )
    for schema in SCHEMAS
)

NAMES = frozenset(schema.name for schema in SCHEMAS)
