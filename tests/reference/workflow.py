"""`workflow.md`: what Temporal knows of Perdure by name, from the definitions and the handlers' own code."""

import ast
import inspect
import pkgutil
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Any

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RetryPolicy

from perdure import activities, features
from perdure.activities.model.turn import PAUSES
from perdure.activities.run.status import LONGEST_PAUSE, SIGNALLED_PAUSE
from perdure.activities.telemetry import attributes
from perdure.contracts.conversation import ConversationStart, LaneView
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.state import RunStatus, RunView
from perdure.contracts.run.transcript import TranscriptPage
from perdure.contracts.run.turn import READS_TIME, TURN_MARGIN
from perdure.contracts.tool import CALL_MARGIN, Effect
from perdure.decisions import ids
from perdure.features.batches import policies as batch_policies
from perdure.features.delegation.contract import DelegationState
from perdure.features.follow_ups.contract import FollowUpState, TopicState
from perdure.features.project_questions.contract import QuestionInput, QuestionState
from perdure.process.workflows import all_workflows
from perdure.workflows import handlers
from perdure.workflows.agent_run.unfinished_calls import ASKING_SERVER
from perdure.workflows.execution import (
    ANSWERING_TURNS,
    FILES,
    FINDING_OPEN_TURN,
    HEARTBEAT,
    KEEPING,
    LOCAL_ACTIVITY,
    MAILING,
    MAX_RECONCILE_TIME,
    NOTIFYING,
    RECONCILE_RETRIES,
    SENDING,
    SUMMARY_MARGIN,
    TOOL_RETRIES,
    WATCHING,
    WITHDRAWING,
)
from tests.reference import events
from tests.reference.failures import list_words
from tests.reference.fields import Fields
from tests.reference.markdown import code, duration, page, slug, table
from tests.reference.meanings import docstring

INTRO = """\
A person or a program can start and speak to workflows without any of our code, with the `temporal` CLI, an SDK or the
Web UI. Each signal and update takes one JSON value; queries take none, or one. A bad one never harms a workflow:
updates are refused, signals ignored, and shown in its state.
[An example](../../README.md#from-any-temporal-client)."""

IDS = (
    ("AgentRun", ids.run_workflow_id("<run id>")),
    ("Conversation", ids.conversation_workflow_id("<conversation id>")),
    ("Delegation", ids.delegation_workflow_id("<run id>", 3).replace("3", "<step>")),
    ("FollowUp", ids.follow_up_workflow_id("<workflowId>")),
    ("EventTopic", ids.topic_workflow_id("<platform>:<channel>:<message>")),
    ("ProjectQuestion", f"{ids.QUESTION_PREFIX}<id>"),
)
OTHER_IDS = (
    ("the run of a `dedupe_key`", code("k-<digest of the key>"), "two starts with one key find the same run"),
    (
        "the run of a request",
        code("c-<digest of conversation and request>"),
        "a request that comes again finds its run",
    ),
    ("a run that resumes another", code(ids.resumed_id("<run id>")), "resuming twice finds the same run"),
    ("the run of a subtask", code("<run id>.<step>-<subtask>"), "`d-<digest>` if that is too long"),
    ("the key of a call", code(ids.request_key("<run id>", 3).replace("3", "<step>")), "the same on every attempt"),
    ("a schedule", code(ids.run_schedule_id("<name>")), "its runs are `<name>-<time>`"),
)
INPUTS = {
    "AgentRun": "[`agentic.start`](events.md#agenticstart) or [`agentic.resume`](events.md#agenticresume)",
    "Conversation": "[ConversationStart](#conversationstart), or none",
    "Delegation": "a run's own; started by runs alone",
    "FollowUp": "[`cmd.workflow.create`](events.md#cmdworkflowcreate)",
    "EventTopic": '`{"key"}`: the id without `topic:`',
    "ProjectQuestion": "[QuestionInput](#questioninput)",
}
ANSWERS: tuple[type[BaseModel], ...] = (
    RunView,
    Journal,
    TranscriptPage,
    LaneView,
    DelegationState,
    FollowUpState,
    TopicState,
    QuestionState,
)
TAKEN: tuple[type[BaseModel], ...] = (ConversationStart, QuestionInput)
INNER = ("Snapshot",)  # answers that are a run's own business, and not laid out here


def workflows() -> str:
    parts = [INTRO, "## Workflows", _types()]
    for each in spoken_to():
        parts += _workflow(each)
    parts += ["## Ids", table(("what", "id", "so that"), OTHER_IDS)]
    parts += ["## Search attributes", ATTRIBUTES, _attributes(), "### AgentStatus", list_words(RunStatus, "status")]
    parts += ["## Activities", ACTIVITIES, _activities()]
    parts += [
        "## Shapes",
        "What signals, updates and queries take and answer, where [events](events.md) do not have it.",
    ]
    for model in dict.fromkeys((*TAKEN, *_taken(), *ANSWERS)):
        parts += [f"### {model.__name__}", docstring(model), _fields(model)]
    return page("Workflows", *parts)


def spoken_to() -> list[type]:
    """The workflows that somebody may speak to."""
    known = dict(IDS)
    return [each for each in all_workflows() if each.__name__ in known]


def _types() -> str:
    rows = []
    for each in spoken_to():
        name, summary = each.__name__, docstring(each).split("Input:")[0].split("\n\n")[0]
        rows.append((f"[`{name}`](#{name.lower()})", code(dict(IDS)[name]), INPUTS[name], summary))
    rows.append(("`Reconcile`", code("perdure-reconcile:<task queue>…"), "none", "Looks at all runs, by the clock."))
    return table(("type", "workflow id", "input", "is"), rows)


@dataclass(frozen=True)
class Handler:
    kind: str
    name: str
    function: Callable[..., Any]
    summary: str


def handlers_of(each: type) -> Iterator[Handler]:
    """The signals, updates and queries that a workflow has by name."""
    definition = workflow._Definition.must_from_class(each)
    kinds: dict[str, Mapping[str | None, Any]] = {
        "signal": definition.signals,
        "update": definition.updates,
        "query": definition.queries,
    }
    for kind, named in kinds.items():
        for name, handler in named.items():
            if name is not None and not name.startswith("__"):
                yield Handler(kind, name, handler.fn, handler.description or "")


def _workflow(each: type) -> Iterator[str]:
    yield f"### {each.__name__}"
    rows = (
        (code(one.name), one.kind, _takes(each, one.function), _answers(one.function), one.summary)
        for one in handlers_of(each)
    )
    yield table(("name", "kind", "takes", "answers", "does"), rows)


def _takes(owner: type, handler: Callable[..., Any]) -> str:
    return ", or ".join(_linked(model) for model in models_read(owner, handler))


@cache
def in_events() -> Mapping[type[BaseModel], str]:
    sections = [each for each in events.SECTIONS if isinstance(each, events.Section)]
    return {each.model: each.title for each in sections}


def _linked(model: type[BaseModel]) -> str:
    if title := in_events().get(model):
        return f"[{title}](events.md#{slug(title)})"
    return f"[{model.__name__}](#{model.__name__.lower()})"


def models_read(owner: type, handler: Callable[..., Any]) -> tuple[type[BaseModel], ...]:
    """The models that a handler reads its argument as, itself or by a function that it hands it to."""
    return tuple(dict.fromkeys(_read_by(owner, handler, frozenset())))


def _read_by(owner: type, function: Callable[..., Any], seen: frozenset[str]) -> Iterator[type[BaseModel]]:
    names = inspect.getmodule(owner).__dict__
    for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if not (isinstance(call, ast.Call) and any("args" in ast.unparse(each) for each in call.args)):
            continue
        called = ast.unparse(call.func)
        if called in (handlers.read_argument.__name__, handlers.read_optional_argument.__name__):
            yield names[ast.unparse(call.args[0])]
        elif called not in seen:
            own = (
                getattr(owner, called.removeprefix("self."), None) if called.startswith("self.") else names.get(called)
            )
            if inspect.isfunction(own) and inspect.getmodule(own) is inspect.getmodule(owner):
                yield from _read_by(owner, own, seen | {called})


def _taken() -> Iterator[type[BaseModel]]:
    """What handlers take that the events do not have."""
    for each in spoken_to():
        for one in handlers_of(each):
            yield from (model for model in models_read(each, one.function) if model not in in_events())


def _answers(function: Callable[..., Any]) -> str:
    answer = typing.get_type_hints(function).get("return")
    if answer in (None, type(None)):
        return ""
    several = typing.get_origin(answer) is tuple
    model = typing.get_args(answer)[0] if several else answer
    if isinstance(model, type) and issubclass(model, BaseModel):
        named = code(model.__name__) if model.__name__ in INNER else _linked(model)
        return f"list of {named}" if several else named
    return {dict[str, Any]: "object", str: "text"}.get(answer, "any JSON")


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models in what may be a union, or a list, of some."""
    parts = [part for each in typing.get_args(annotation) for part in models_in(each)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else parts


def _fields(model: type[BaseModel]) -> str:
    mode = "serialization" if model in ANSWERS else "validation"
    return Fields(events.ELSEWHERE | FROM_HERE, mode).table(model)


FROM_HERE = {
    "Headers": "events.md#headers",
    "Event": "events.md#an-event-from-outside",
    "TaskHead": "events.md#task",
    "ReplyHead": "events.md#reply",
}

ATTRIBUTES = """\
Runs and follow-ups carry them; a worker registers them where they are not there. They change with the status of a run,
not with each step, since each change is an event of its history. `perdure list` and the Web UI filter by them:
`AgentStatus = "waiting_on_human"`. The current details of a run have its plan, question and cost."""


def _attributes() -> str:
    summary = meanings_of(attributes)
    rows = [
        (code(key.name), key.indexed_value_type.name.lower().replace("_", " "), summary[key.name])
        for key in attributes.KEYS
    ]
    return table(("name", "type", "means"), rows)


def meanings_of(module: Any) -> dict[str, str]:
    """What the comment behind each search attribute says."""
    lines = [line for line in inspect.getsource(module).splitlines() if "SearchAttributeKey.for" in line]
    return {line.split('"')[1]: line.partition("  # ")[2] for line in lines}


ACTIVITIES = f"""\
They are on the task queue of their workflow, but for `dispatch_mail` and `withdraw_mail`, which the bridge of an agent
that lives outside takes from `mail:<agent>`, and the activities of [queue tools](../queue-tools.md), which are others'
own. *Time* is from start to close; a lost worker is noticed by the heartbeat timeout, which `[worker] heartbeat` sets.
`open_run`, `join_conversation` and `close_segment` are local activities at first,
once and for {duration(LOCAL_ACTIVITY["schedule_to_close_timeout"])} at most, and as the table has them if that
fails. At the end of a cancelled run or of a conversation's turn, and before a continue-as-new, `close_segment` is as
the table has it at once."""

Policy = Mapping[str, Any]
TURN: Policy = {
    "start_to_close_timeout": f"`turn_limit` and {duration(TURN_MARGIN)}",
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": f"{PAUSES.retries} times, after {', '.join(f'{s:g}s' for s in PAUSES)}, or as the provider asks",
}
UNRECORDED = frozenset({"check_task", "update_task", "cancel_task"})  # they need an MCP server: tests/workflows
POLICIES: dict[str, Policy] = {
    **dict.fromkeys(UNRECORDED, ASKING_SERVER),
    "await_state": WATCHING,
    "send_state": NOTIFYING,
    "dispatch_mail": MAILING,
    "withdraw_mail": WITHDRAWING,
    "plan": TURN,
    "reflect": TURN,
    "summarize": FILES | {"start_to_close_timeout": f"`turn_limit` and {duration(SUMMARY_MARGIN)}"},
    "accept_outcome": FILES | {"start_to_close_timeout": f"`turn_limit` and {duration(SUMMARY_MARGIN)}"},
    "create_batch": batch_policies.CREATING_BATCH,
    "check_batch": batch_policies.CHECKING_BATCH,
    "deliver_batch": batch_policies.DELIVERING_BATCH,
    "fail_turns": batch_policies.DELIVERING_BATCH,
    "call_tool": {
        "start_to_close_timeout": f"the tool's `timeout` and {duration(CALL_MARGIN)}",
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": TOOL_RETRIES,
    },
    "read_and_reflect": {
        "start_to_close_timeout": f"`turn_limit` and {duration(READS_TIME + TURN_MARGIN)}",
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": "never: `call_tool` and `reflect` do what is left",
    },
    "keep_result": KEEPING,
    "notify": SENDING | {"start_to_close_timeout": "the `timeout` of `[outbox]`, which each attempt keeps"},
    "send_notice": NOTIFYING,
    "is_question_open": NOTIFYING,
    "watch_run": WATCHING
    | {
        "retry_policy": f"until it is done, up to {duration(LONGEST_PAUSE)} apart, "
        f"or {duration(SIGNALLED_PAUSE)} if the run signals its end"
    },
    "answer_turn": ANSWERING_TURNS,
    "open_turn": FINDING_OPEN_TURN,
    "reconcile": {
        "start_to_close_timeout": MAX_RECONCILE_TIME,
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": RECONCILE_RETRIES,
    },
}


def _activities() -> str:
    rows = [(code(name), summary, *_policy(POLICIES.get(name, FILES))) for name, summary in sorted(activity_names())]
    return table(("activity", "does", "time", "heartbeat", "tried again"), rows)


def activity_names() -> Iterator[tuple[str, str]]:
    """Of every activity, with the first sentence of its docstring."""
    for info in (
        *pkgutil.walk_packages(activities.__path__, "perdure.activities."),
        *pkgutil.walk_packages(features.__path__, "perdure.features."),
    ):
        module = import_module(info.name)
        for each in vars(module).values():
            if (
                inspect.isclass(each)
                and each.__module__ == module.__name__
                and not getattr(each, "_is_protocol", False)
            ):
                for name, function in [*vars(each).items()]:
                    if hasattr(function, "__temporal_activity_definition"):
                        yield name, docstring(function).split("\n\n")[0]


def _policy(policy: Policy) -> tuple[str, str, str]:
    heartbeat = policy.get("heartbeat_timeout")
    retry = policy["retry_policy"]
    if isinstance(retry, Mapping):
        named: dict[str, list[str]] = {}
        for effect, each in retry.items():
            named.setdefault(_retried(each), []).append(code(Effect(effect)))
        summary = "; ".join(f"{', '.join(effects)}: {words}" for words, effects in named.items())
    else:
        summary = retry if isinstance(retry, str) else _retried(retry)
    return _time(policy["start_to_close_timeout"]), _time(heartbeat) if heartbeat else "", summary


def _time(value: timedelta | str) -> str:
    return value if isinstance(value, str) else duration(value)


def _retried(policy: RetryPolicy) -> str:
    most = policy.maximum_attempts
    if most == 1:
        return "never"
    first, longest = policy.initial_interval, policy.maximum_interval
    up_to = f", then later, up to {duration(longest)} apart" if longest else ", then later"
    return f"{f'{most - 1} times' if most else 'until it is done'}, after {duration(first)}{up_to}"
