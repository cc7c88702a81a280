"""`events.md`: what goes in and what comes out, from the contracts."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from perdure.contracts.conversation import DropRequest, Headers, SubmitRequest, Submitted, WhenBusy
from perdure.contracts.run.events import (
    CompletedEvent,
    EscalatedEvent,
    ResumeEvent,
    StartEvent,
    ToolRequestEvent,
    ToolResultEvent,
)
from perdure.contracts.run.signals import CancelRequest, Decision, HumanInput, QuestionKind
from perdure.decisions.run.question import QUESTIONS
from perdure.features.follow_ups.contract import (
    CancelCommand,
    CreateCommand,
    Event,
    LifecycleEvent,
    Outbound,
    TaskCommand,
    TaskResolved,
)
from perdure.features.follow_ups.rules.kinds import KINDS
from perdure.features.mailbox.contract import PickPolicy, ReplyHead, TaskHead
from tests.reference.examples import EXAMPLES
from tests.reference.failures import list_words
from tests.reference.fields import Fields
from tests.reference.markdown import as_json, code, page, table
from tests.reference.meanings import meanings

ELSEWHERE = {
    "LimitOverrides": "configuration.md#limits",
    "Headers": "#headers",
    "Event": "#an-event-from-outside",
}
INTRO = """\
What can be said to Perdure, and what it says, as JSON. By which door each goes: [workflows](workflow.md),
[HTTP](http.md), [files](../mailbox.md).

What comes in is read strictly: an unknown field is refused by name. A duration is `"500ms"`, `"30s"`, `"15m"`, `"2h"`,
`"7d"` or a number of seconds, up to 366 days. The texts of one event together have to fit Temporal's 2 MiB."""


@dataclass(frozen=True)
class Section:
    title: str
    model: type[BaseModel]
    summary: str
    after: str = ""
    comes_out: bool = False


def decisions() -> str:
    """Which answers a question takes."""
    kinds, said = meanings(QuestionKind), meanings(Decision)
    rows = [
        (
            code(kind.value),
            kinds.get(kind.name, ""),
            ", ".join(code(each.value) for each in QUESTIONS[kind].decisions) or "a text",
            "another direction" if QUESTIONS[kind].decisions and QUESTIONS[kind].takes_own_words else "",
        )
        for kind in QuestionKind
    ]
    summary = ((code(each.value), said.get(each.name, "")) for each in Decision)
    return "\n\n".join(
        (
            "### Decisions",
            "A text answers an agent's own question. Other kinds take a decision:",
            table(("question", "why it is asked", "takes", "or, as a text"), rows),
            table(("decision", "means"), summary),
        )
    )


SECTIONS = (
    "## Runs",
    Section(
        "agentic.start",
        StartEvent,
        "Starts a run: the input of the workflow `AgentRun`, the body of `POST /v1/runs`.",
    ),
    Section(
        "agentic.resume",
        ResumeEvent,
        "Starts a run that goes on from another one: an input of `AgentRun` too, under an id of its own. `perdure "
        "resume` and `perdure fork` send it.",
    ),
    Section("agent.completed", CompletedEvent, "The result of a run that reached its goal.", comes_out=True),
    Section(
        "agent.escalated", EscalatedEvent, "The result of a run that gave its task back to a person.", comes_out=True
    ),
    Section("Human input", HumanInput, "Answers the open question of a run or follow-up.", after=decisions()),
    Section("Cancel", CancelRequest, "Stops a run. Running calls finish first; the body may be left out."),
    "## Tools outside",
    Section(
        "agentic.tool_request",
        ToolRequestEvent,
        "The request to a tool of the kind `http`, `signal` or `queue`. An HTTP request has `dedupe_key` as its "
        "`Idempotency-Key`, too; percent-encoded if it is not ASCII.",
        comes_out=True,
    ),
    Section(
        "agentic.tool_result",
        ToolResultEvent,
        "The result of a `signal` tool, by the signal `tool_result` or HTTP. What does not fit the run, its step and "
        "its tool is not taken; for a step that was never asked, or another tool's, the run escalates.",
    ),
    "## Conversations",
    Section("Request", SubmitRequest, "A request for a lane: the update `submit`, the signal `request`, or HTTP."),
    Section("Submitted", Submitted, "The answer to it.", comes_out=True),
    Section("Drop", DropRequest, "Takes a request out of the queue: the signal `drop`."),
    "## Events from outside",
    Section(
        "An event from outside",
        Event,
        "A message on a chat platform. It resolves the tasks that wait for a reply to that message: `perdure event`, "
        "HTTP, or the signal `event` of `EventTopic`. At most 256 KiB, nested at most 50 deep.",
    ),
    "## Follow-ups",
    Section("cmd.workflow.create", CreateCommand, "Opens a follow-up: the input of `FollowUp`."),
    Section(
        "cmd.workflow.task.create", TaskCommand, "One task more: the signal `task_create`, or the update `create_task`."
    ),
    Section("Task resolved", TaskResolved, "An event for a task to judge, or its result: the signal `task_resolved`."),
    Section("cmd.workflow.cancel", CancelCommand, "Ends a follow-up, and resumes nothing: the signal `cancel`."),
    Section(
        "evt.workflow",
        LifecycleEvent,
        "The events of a follow-up, in the log and in its `state`: `evt.workflow.lifecycle.changed`, "
        "`evt.workflow.task.lifecycle.changed`, `evt.workflow.task.resolved`, `evt.workflow.resolved`. The last one is "
        "its result.",
        comes_out=True,
    ),
    Section(
        "A message that goes out",
        Outbound,
        "The message of the task `notify`: a line of `outbound.jsonl`, or a POST to the "
        "[outbox](configuration.md#outbox).",
        comes_out=True,
    ),
    "## Messages as files",
    Section(
        "Task",
        TaskHead,
        "The head of a file that brings work; [the body](../mailbox.md#a-message) says what. 256 KiB at most.",
    ),
    Section("Reply", ReplyHead, "The head of a file that answers one; the body is the result, or why there is none."),
)

HEADERS = "By what the request is known that something came from. All of it may be left out."


def events() -> str:
    parts = [INTRO]
    for each in SECTIONS:
        parts += [each] if isinstance(each, str) else _section(each)
    parts += ["## Shapes", "### Headers", HEADERS, Fields().table(Headers)]
    return page("Events and messages", *parts)


def _section(section: Section) -> Iterator[str]:
    yield f"### {section.title}"
    yield section.summary
    yield as_json(EXAMPLES[section.model])
    mode = "serialization" if section.comes_out else "validation"
    yield Fields(ELSEWHERE, mode).table(section.model)
    if section.model is SubmitRequest:
        yield "#### When busy\n\n" + list_words(WhenBusy, "`when_busy`")
    if section.model is TaskHead:
        yield "#### Pick policy\n\n" + list_words(PickPolicy, "`pick_policy`")
    if section.model is TaskCommand:
        rows = ((code(kind.name), kind.about) for kind in KINDS.values())
        yield "#### Kinds of tasks\n\n" + table(("`kind`", "`input`, beside `timeoutMs`"), rows)
    if section.after:
        yield section.after
