"""Whatever JSON is sent to runs, lanes, topics, follow-ups, mailboxes and webhooks is taken, or refused in one line."""

import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ApplicationError

from perdure.activities.tools.json_schema import read_arguments
from perdure.contracts.conversation import DropRequest, SteerRequest, SubmitRequest
from perdure.contracts.run.events import BeginEvent, ResumeEvent, StartEvent, ToolResultEvent
from perdure.contracts.run.signals import CancelRequest, HumanInput
from perdure.converter import TolerantPayloadConverter
from perdure.decisions.tool_results import outcome_of_result
from perdure.features.follow_ups import commands as published
from perdure.features.follow_ups.activities import NotAwaitedError
from perdure.features.follow_ups.contract import (
    CancelCommand,
    CreateCommand,
    Event,
    Subscription,
    TaskCommand,
    TaskResolved,
)
from perdure.features.mailbox.activities import message
from perdure.features.mailbox.contract import MailReply
from perdure.features.starts.signatures import InvalidEventError, Webhook, WrongPlatformError
from perdure.gateway.problems import ApiError
from perdure.gateway.requests import read_body_json
from perdure.workflows.handlers import read_argument
from tests.drawn import Said, a_signal, a_state, turn_of
from tests.played import Played

MAX_CPU_SECONDS = 1.0
EVENT = {
    "type": "evt.adapter.message.created",
    "id": "e-1",
    "headers": {"session_id": "s"},
    "data": {
        "platform": "slack",
        "channelId": "C1",
        "messageId": "1.5",
        "userId": "U1",
        "userName": "Ann",
        "text": "yes",
        "ts": 1_771_243_200_000,
        "raw": {"slack": {"teamId": None}},
    },
}
ORIGIN = {"session_id": "s", "request_client": "c"}
RIGHT: dict[type[BaseModel], Any] = {
    StartEvent: {
        "type": "agentic.start",
        "payload": {"goal": "x", "context": {"max_steps": 3, "a": [1, {"b": None}]}, "limits": {"soft_limit": "15m"}},
        "dedupe_key": "k",
    },
    ResumeEvent: {"type": "agentic.resume", "payload": {"run_id": "R1", "step": 2, "say": "go on"}},
    BeginEvent: {
        "type": "agentic.begin",
        "payload": {"goal": "x"},
        "headers": ORIGIN,
        "after": ["R0"],
        "raw": {"a": 1},
    },
    ToolResultEvent: {
        "type": "agentic.tool_result",
        "payload": {
            "run_id": "R1",
            "step": 1,
            "tool": "vote",
            "status": "error",
            "result": {"a": [1.5, "x"]},
            "error": {"kind": "tool_error", "message": "no", "retryable": True},
            "completed_at": "2026-02-16T12:00:00Z",
        },
    },
    HumanInput: {"question_id": "q1", "text": "yes", "decision": "approve", "by": "Ann", "call": "0a"},
    CancelRequest: {"reason": "enough", "by": "Ann"},
    SteerRequest: {"request_id": "r", "text": "and hurry"},
    SubmitRequest: {
        "request_id": "r",
        "goal": "x",
        "context": {"max_steps": 3},
        "origin": ORIGIN,
        "when_busy": "queue",
        "raw": {"a": [1]},
    },
    DropRequest: {"request_id": "r"},
    CreateCommand: {
        "data": {
            "workflowId": "w-1",
            "definition": {"origin": ORIGIN, "resumeTarget": ORIGIN, "summary": "waits", "completion": "all"},
        }
    },
    TaskCommand: {
        "data": {
            "workflowId": "w-1",
            "taskId": "t:1",
            "kind": "slack_reply",
            "description": "an answer",
            "input": {"channelId": "C1", "messageId": "1.5", "timeoutMs": 5},
        }
    },
    TaskResolved: {"taskId": "t:1", "event": EVENT, "resolvedBy": "Ann"},
    CancelCommand: {"data": {"workflowId": "w-1", "reason": "enough"}},
    Event: EVENT,
    Subscription: {"subscriber": "wf:w-1", "taskId": "t:1", "expiresAt": 5},
    MailReply: {
        "mailbox": "m",
        "sender": "a",
        "subtask_id": "s",
        "status": "done",
        "body": "x",
        "artifacts": ["a"],
    },
}
SLACK = {
    "type": "event_callback",
    "team_id": "T",
    "event_id": "E",
    "event": {"type": "message", "ts": "1.500", "thread_ts": "1.400", "channel": "C", "user": "U", "text": "yes"},
}
GITHUB = {
    "action": "created",
    "comment": {
        "id": 1,
        "user": {"id": 2, "login": "ann"},
        "body": "yes",
        "created_at": "2026-02-16T12:00:00Z",
        "html_url": "https://example.com",
    },
    "issue": {"number": 3},
    "repository": {"full_name": "a/b"},
}
HOOKS = {"standard": EVENT, "slack": SLACK, "github": GITHUB}

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**63, -(2**70), 10**400, 1.5, 1e308, "", " ", "\n", "a\nb", "\x00", "\u2028", "é"),
    *("x" * 3000, "9" * 5000, "1e999", "2026-99-99", "PT0S", "P9999999999D", "9999999999999d", "-1s", "nan", "\ufeff"),
    *([], {}, [[]], [None], {"": ""}, {"a\nb": 1}, {"type": "x"}, ["x"] * 300, "approve", "completed", [1, "1", {}]),
    *("10000-01-01T00:00:00Z", "0000-00-00", "99:99", "²", "١", "--", "1.", ".5", "1" * 400, "../../etc", "wf:"),
)  # fmt: skip
RAW = (
    "NaN",
    "Infinity",
    "-Infinity",
    '"\\ud800"',
    "9" * 5000,
    "1e999999",
    "[" * 500 + "]" * 500,
    '{"a":1,"a":2}',
    "",
    "{",
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, with every key in it."""
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def mutated(right: Any, seed: int) -> bytes:
    """The JSON of what is right, with a few values gone, renamed, new or odd."""
    rng = Random(seed)
    value, marks = json.loads(json.dumps(right)), dict[str, str]()
    for number in range(rng.choice((1, 1, 2, 4))):
        holder, key = rng.choice(list(_places(value)) or [([value], 0)])
        match rng.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[rng.choice(("colour", "a\nb", "", "type", "x" * 2000))] = deepcopy(rng.choice(ODD))
            case 2:
                holder[key] = marks[rng.choice(RAW)] = f"@{number}@"
            case 3:
                for _ in range(rng.choice((3, 60, 120))):
                    holder[key] = [holder[key]] if rng.random() < 0.5 else {"a": holder[key]}
            case _:
                holder[key] = deepcopy(rng.choice(ODD))
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    for raw, mark in marks.items():
        text = text.replace(f'"{mark}"', raw)
    return text.encode()


def decoded(data: bytes) -> Any:
    """As a workflow gets it that somebody sent it to with any client."""
    payload = Payload(metadata={"encoding": b"json/plain"}, data=data)
    return TolerantPayloadConverter().from_payloads([payload])[0]


def must_be_one_line(why: str) -> None:
    assert why.strip()
    assert len(why) <= 600
    assert len(why.splitlines()) == 1, why


def of_a_workflow(data: bytes) -> None:
    read_argument(StartEvent, [decoded(data)])


READERS: dict[str, tuple[Callable[[bytes], object], type[Exception]]] = {
    "the gateway": (read_body_json, ApiError),
    "a workflow": (of_a_workflow, ApplicationError),
    "an event's file": (published._parse_event, NotAwaitedError),
    "a message's file": (lambda data: message.parse_message(data, "p"), message.MessageError),
    "a model": (lambda data: read_arguments(data.decode()), ValueError),
}


@pytest.mark.parametrize("data", [b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000], ids=len)
@pytest.mark.parametrize("reader", READERS)
def test_ten_thousand_levels_are_rejected_within_a_tenth_of_a_second(reader: str, data: bytes) -> None:
    reads, refusal = READERS[reader]
    took = []
    for _ in range(3):
        began = time.process_time()
        with pytest.raises(refusal):
            reads(data)
        took.append(time.process_time() - began)
    assert min(took) < 0.1


@pytest.mark.parametrize("reader", READERS)
def test_duplicate_names_are_rejected_by_every_reader_of_json(reader: str) -> None:
    reads, refusal = READERS[reader]
    with pytest.raises(refusal, match="twice"):
        reads(json.dumps({**EVENT, "message_id": "m"}).replace('"type"', '"type": "x", "type"').encode())


SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize("model", RIGHT, ids=lambda model: model.__name__)
def test_the_unchanged_examples_are_accepted(model: type[BaseModel]) -> None:
    read_argument(model, [decoded(json.dumps(RIGHT[model]).encode())])


@pytest.mark.parametrize("model", RIGHT, ids=lambda model: model.__name__)
@settings(max_examples=25)
@given(seed=SEEDS)
def test_a_message_is_accepted_and_survives_a_round_trip_or_is_rejected_in_one_line(
    model: type[BaseModel], seed: int
) -> None:
    must_be_taken_or_refused(model, mutated(RIGHT[model], seed))


def must_be_taken_or_refused(model: type[BaseModel], data: bytes) -> None:
    began = time.thread_time()
    try:
        taken = read_argument(model, [decoded(data)])
    except ApplicationError as refused:
        must_be_one_line(refused.message)
    else:
        written = taken.model_dump_json(by_alias=True)  # JSON has no NaN, so values are not compared
        assert model.model_validate_json(written).model_dump_json(by_alias=True) == written
        if isinstance(taken, ToolResultEvent):
            assert outcome_of_result(taken.payload).model_dump_json()
    assert time.thread_time() - began < MAX_CPU_SECONDS


@settings(max_examples=40)
@given(seed=SEEDS)
def test_no_signal_breaks_a_run_or_its_state(seed: int) -> None:
    rng = Random(seed)
    run = Played(a_state(rng, max_steps=9))
    uses = (("vote", {"brings": "fine"}), ("ask_human", {"question": "Which?"}), ("guarded", {"brings": "fine"}))
    run.give(run.waits[0], turn_of(Said(uses=(rng.choice(uses),)), 1))
    for _ in range(10):
        name, args = a_signal(rng, run)
        bodies = tuple(decoded(mutated(body, rng.randrange(2**32))) for body in args)
        run.signal(name, *bodies)
        written = run.state.model_dump_json()
        assert type(run.state).model_validate_json(written).model_dump_json() == written
        assert all(len(notice.splitlines()) == 1 for notice in run.state.ignored)


@pytest.mark.parametrize("scheme", HOOKS)
@settings(max_examples=150)
@given(seed=SEEDS)
def test_a_signed_webhook_is_an_event_or_is_refused_in_one_line(scheme: str, seed: int) -> None:
    began = time.thread_time()
    headers = {"webhook-id": "e-1", "x-github-event": "issue_comment"}
    try:
        hook = Webhook(scheme, "s" * 16, frozenset({"discord", "slack", "github"}))
        found = hook.read_event(headers, read_body_json(mutated(HOOKS[scheme], seed)))
        if isinstance(found, Event):
            assert found.model_dump_json()
    except (InvalidEventError, WrongPlatformError, ApiError) as refused:
        must_be_one_line(refused.detail if isinstance(refused, ApiError) else str(refused))
    assert time.thread_time() - began < MAX_CPU_SECONDS


@settings(max_examples=150)
@given(seed=SEEDS)
def test_an_event_from_a_file_is_read_or_refused_in_one_line(seed: int) -> None:
    for _, written in published._split_events(mutated(EVENT, seed)):
        try:
            assert published._parse_event(written).model_dump_json()
        except NotAwaitedError as refused:
            must_be_one_line(str(refused))
