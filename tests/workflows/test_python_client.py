"""`Perdure`, the Python client, with scripted models and workers on the real server."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any, assert_type
from uuid import UUID

import pytest
from pydantic import BaseModel, ValidationError, field_validator
from temporalio.client import Client

from perdure import NO_RESULT, Perdure, ReportedError, Run, RunCancelledError, RunEscalatedError, RunFailedError
from perdure.client.errors import (
    AnswerRejectedError,
    BadStartError,
    RejectedError,
    RunNotFoundError,
    TemporalUnavailableError,
)
from perdure.client.questions import ListedQuestion
from perdure.client.run_events import RunEvent, WaitStarted, event_to_json
from perdure.codec import AesGcmCodec
from perdure.contracts.agent import Agent
from perdure.contracts.run.events import CompletedPayload
from perdure.contracts.tool import Approval
from perdure.process.queue_marker import set_marker
from perdure.session import Session
from perdure.settings import load_settings
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, World, connect_encrypted
from tests.workflows.script import by_turn, count_replies


class Invoice(BaseModel):
    number: str
    cents: int

    @field_validator("number")
    @classmethod
    def _check_number(cls, number: str) -> str:
        if number == "unknown":
            raise ValueError("no number was read")
        return number


GOOD = {"number": "A-17", "cents": 1200}
ASK = calls(("ask_human", {"question": "Which one?"}))


def finishes(result: Any) -> Reply:
    return calls(("finish", {"outcome": "Read it.", "result": result}))


@asynccontextmanager
async def client_of(it: World) -> AsyncIterator[Perdure]:
    settings = load_settings({}, it.project.workspaces)
    async with Perdure(settings, client=it.client, task_queue=it.queue) as perdure:
        yield perdure


async def test_a_typed_run_returns_the_model_of_its_result(world: MakeWorld) -> None:
    async with world([finishes(GOOD)]) as it, client_of(it) as perdure:
        invoice = await perdure.run("Read the invoice", result_type=Invoice)
        (request,) = it.model.requests
    assert_type(invoice, Invoice)
    assert invoice == Invoice(number="A-17", cents=1200)
    (finish,) = [tool for tool in request["tools"] if tool["name"] == "finish"]
    assert finish["input_schema"]["properties"]["result"]["required"] == ["number", "cents"]


class Colour(StrEnum):
    red = "red"


class Visit(BaseModel, strict=True):
    day: date
    place: UUID
    colour: Colour
    seats: tuple[int, ...]
    kinds: frozenset[str]


@dataclass
class Stay:
    first: date
    visits: list[Visit]


async def test_a_strict_type_and_a_dataclass_are_read_as_json(world: MakeWorld) -> None:
    place = "12345678-1234-5678-1234-567812345678"
    given = {"day": "2026-01-02", "place": place, "colour": "red", "seats": [1], "kinds": ["a"]}
    visit = Visit(day=date(2026, 1, 2), place=UUID(place), colour=Colour.red, seats=(1,), kinds=frozenset({"a"}))
    answers = {"model": finishes(given)}
    async with world(lambda _: answers["model"]) as it, client_of(it) as perdure:
        assert await perdure.run("Plan it", result_type=Visit) == visit
        answers["model"] = finishes({"first": "2026-01-01", "visits": [given]})
        assert await perdure.run("Plan it all", result_type=Stay) == Stay(date(2026, 1, 1), [visit])


async def test_a_result_in_no_format_of_its_type_is_asked_for_again(world: MakeWorld) -> None:
    script = by_turn(lambda turn: finishes({"first": "tomorrow" if turn == 0 else "2026-01-01", "visits": []}))
    async with world(script) as it, client_of(it) as perdure:
        stay = await perdure.run("Plan it", result_type=Stay)
        assert len(it.model.requests) == 2
        assert "first: 'tomorrow' is not a 'date'" in json.dumps(it.model.requests[1]["messages"])
    assert stay == Stay(date(2026, 1, 1), [])


async def test_a_list_is_a_result_type(world: MakeWorld) -> None:
    async with world([finishes([GOOD, GOOD])]) as it, client_of(it) as perdure:
        invoices = await perdure.run("Read the invoices", result_type=list[Invoice])
    assert_type(invoices, list[Invoice])
    assert [invoice.cents for invoice in invoices] == [1200, 1200]


async def test_a_run_without_a_type_returns_its_outcome_and_the_plain_result_of_its_agent(world: MakeWorld) -> None:
    clerk = Agent(name="clerk", tools=(), output_schema=Invoice.model_json_schema())
    script = by_turn(lambda _: finishes(GOOD))
    async with world(script, agents=[clerk]) as it, client_of(it) as perdure:
        plain = await perdure.run("Read it", context={"language": "en"})
        typed = await perdure.run("Read it", agent="clerk")
        first, _ = it.model.requests
    assert_type(plain, CompletedPayload)
    assert (plain.outcome, plain.result, typed.result) == ("Read it.", NO_RESULT, GOOD)
    assert "language" in json.dumps(first["messages"])


async def test_null_is_a_result_and_not_the_absence_of_one(world: MakeWorld) -> None:
    maybe: Any = Invoice | None
    async with world(by_turn(lambda _: finishes(None))) as it, client_of(it) as perdure:
        typed = await perdure.run("Read the invoice, if there is one", result_type=maybe)
        plain = await perdure.run("Read it", output_schema={"type": ["object", "null"]})
    assert typed is None
    assert plain.result is None
    assert "result" in plain.model_dump()


async def test_a_result_that_a_validator_of_the_model_rejects_raises_pydantics_error(world: MakeWorld) -> None:
    async with world([finishes({**GOOD, "number": "unknown"})]) as it, client_of(it) as perdure:
        with pytest.raises(ValidationError, match="no number was read"):
            await perdure.run("Read it", result_type=Invoice)


async def test_a_stream_has_the_events_of_watch_and_a_question_in_it_is_answered(world: MakeWorld) -> None:
    seen: list[RunEvent] = []
    async with world([ASK, says("The second.")]) as it, client_of(it) as perdure:
        run = await perdure.start("Choose")
        async for event in run.stream():
            assert_type(event, RunEvent)
            seen.append(event)
            if isinstance(event, WaitStarted):
                state = await run.state()
                assert state is not None
                assert state.question is not None
                assert state.question.text == "Which one?"
                await run.answer("the second", by="ann")
        end = await run.result()
    kinds = [json.loads(event_to_json(event))["type"] for event in seen]
    assert (kinds[0], kinds[-1], "answer_received" in kinds) == ("run_started", "run_ended", True)
    assert end.outcome == "The second."


async def test_a_call_is_approved_with_a_decision(world: MakeWorld) -> None:
    pay = ScriptedTool("pay", lambda *_: "paid", approval=Approval.always)
    async with world([calls(("pay", {})), says("Paid.")], pay) as it, client_of(it) as perdure:
        run = await perdure.start("Pay")
        async for event in run.stream():
            if isinstance(event, WaitStarted):
                await run.answer(decision="approve")
        assert (await run.result()).outcome == "Paid."
    assert len(pay.calls) == 1


async def test_an_answer_that_does_not_fit_is_rejected_with_the_reason(world: MakeWorld) -> None:
    async with world([ASK, says("done")]) as it, client_of(it) as perdure:
        run = await perdure.start("Choose")
        await it.until_state(it.client.get_workflow_handle(f"run:{run.id}"), question=True)
        with pytest.raises(AnswerRejectedError):
            await run.answer(decision="approve")
        with pytest.raises(RejectedError, match="decision: Input should be 'approve'"):
            await run.answer(decision="yes")
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()


async def test_a_run_that_escalates_raises_its_reason_and_its_handoff(world: MakeWorld) -> None:
    escalate = calls(("escalate", {"reason": "no_access", "detail": "I may not read the folder."}))
    async with world([escalate]) as it, client_of(it) as perdure:
        with pytest.raises(RunEscalatedError, match=r"^run \S+ escalated: asked: no_access") as raised:
            await perdure.run("Read it", result_type=Invoice)
    assert (raised.value.reason, raised.value.text) == ("asked", "no_access")
    assert "Read it" in raised.value.handoff


async def test_a_run_that_fails_raises_the_kind_of_its_failure(world: MakeWorld) -> None:
    async with world([says("done")]) as it, client_of(it) as perdure:
        with pytest.raises(RunFailedError, match="ghost") as raised:
            await perdure.run("Read it", agent="ghost")
    assert raised.value.reason == "UnknownAgent"


async def test_a_cancelled_run_raises_with_the_reason(world: MakeWorld) -> None:
    async with world([ASK]) as it, client_of(it) as perdure:
        run = await perdure.start("Choose")
        await run.cancel("not needed")
        with pytest.raises(RunCancelledError, match=f"run {run.id} was cancelled"):
            await run.result()
        with pytest.raises(RejectedError, match="has ended"):
            await run.cancel()
        with pytest.raises(RejectedError, match="has ended"):
            await run.steer("go on")


async def test_a_cancelled_task_leaves_the_run_going(world: MakeWorld) -> None:
    async with world([ASK, says("The first.")]) as it, client_of(it) as perdure:
        waiting = asyncio.create_task(perdure.run("Choose", run_id="left"))
        run = perdure.get_run("left")
        await it.until(lambda: _asks(run))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await run.answer("the first")
        assert (await run.result()).outcome == "The first."


async def _asks(run: Run) -> bool:
    try:
        state = await run.state()
    except RunNotFoundError:
        return False
    return state is not None and state.question is not None


async def test_a_dedupe_key_starts_one_run_and_a_used_id_is_refused(world: MakeWorld) -> None:
    async with world([says("done")]) as it, client_of(it) as perdure:
        first = await perdure.start("Do it", dedupe_key=it.queue)
        again = await perdure.start("Do it", dedupe_key=it.queue)
        await first.result()
        with pytest.raises(RejectedError, match=f"run {first.id} already exists"):
            await perdure.start("Do it", run_id=first.id)
        assert (first.id, len(it.model.requests)) == (again.id, 1)


async def test_a_bad_start_is_rejected_in_one_line_that_names_the_field(world: MakeWorld) -> None:
    async with world([says("done")]) as it, client_of(it) as perdure:
        bad: dict[str, dict[str, Any]] = {
            "limits.max_steps: ": {"limits": {"max_steps": 0}},
            "colour: Extra inputs are not permitted": {"colour": "red"},
            "payload.output_schema: not a JSON Schema": {"output_schema": {"type": "sentence"}},
        }
        for reason, fields in bad.items():
            with pytest.raises(RejectedError, match=f"^{reason}[^\n]*$"):
                await perdure.start("Do it", **fields)
        with pytest.raises(RejectedError, match="goal: the goal is empty"):
            await perdure.start(" ")
        assert it.model.requests == []


async def test_a_message_steers_a_run_at_its_next_model_call(world: MakeWorld) -> None:
    called, go = asyncio.Event(), asyncio.Event()

    async def look(*_: Any) -> str:
        called.set()
        await go.wait()
        return "nothing"

    tool = ScriptedTool("look", look)
    async with world([calls(("look", {})), says("done")], tool) as it, client_of(it) as perdure:
        run = await perdure.start("Look")
        await called.wait()
        await run.steer("in the cellar, too")
        go.set()
        await run.result()
        assert "in the cellar, too" in json.dumps(it.model.requests[-1])


async def test_turns_of_a_conversation_are_runs_that_follow_each_other(world: MakeWorld) -> None:
    def script(body: dict[str, Any]) -> ScriptedAnswer:
        return says(f"reply {count_replies(body)}")

    async with world(script) as it, client_of(it) as perdure:
        first = await perdure.submit("Hello", conversation=it.queue, request_id="r-1")
        second = await perdure.submit("And again", conversation=it.queue)
        again = await perdure.submit("Hello", conversation=it.queue, request_id="r-1")
        assert (await second.result()).outcome == "reply 1"
        assert (await first.result()).outcome == "reply 0"
        assert (again.id, len(it.model.requests)) == (first.id, 2)
        with pytest.raises(RejectedError, match="when_busy: "):
            await perdure.submit("Hello", conversation=it.queue, when_busy="wait")


async def test_a_message_that_joins_the_active_turn_returns_that_turn(world: MakeWorld) -> None:
    async with world([ASK, says("done")]) as it, client_of(it) as perdure:
        turn = await perdure.submit("Choose", conversation=it.queue)
        await it.until(lambda: _asks(turn))
        state = await turn.state()
        assert state is not None
        assert state.question is not None
        answer = await perdure.submit("the first", conversation=it.queue, question_id=state.question.id)
        assert answer.id == turn.id
        assert (await answer.result()).outcome == "done"


async def test_what_python_sends_has_its_door(world: MakeWorld) -> None:
    async with world([says("done")]) as it, client_of(it) as perdure:
        run = await perdure.start("Do it")
        await run.result()
        raw = await it.raw_history(it.client.get_workflow_handle(f"run:{run.id}"))
    assert b'"sender":{"door":"python"}' in raw


async def test_a_run_is_as_encrypted_as_its_workers_and_their_key_is_needed(world: MakeWorld, client: Client) -> None:
    encrypted = await connect_encrypted(client)
    async with world([finishes(GOOD)], server=encrypted) as it:
        await set_marker(encrypted, it.queue, AesGcmCodec({"k1": b"1" * 32}))
        async with client_of(it) as perdure:
            run = await perdure.start("Read the invoice", result_type=Invoice)
            assert (await run.result(Invoice)).cents == 1200
        assert b"Read the invoice" not in await it.raw_history(encrypted.get_workflow_handle(f"run:{run.id}"))
        with pytest.raises(TemporalUnavailableError, match="is encrypted with key k1: set PERDURE_CODEC_KEYS"):
            async with Perdure(client=client, task_queue=it.queue):
                pass


async def test_a_plain_client_gets_perdures_converter(world: MakeWorld) -> None:
    async with world([finishes(GOOD)]) as it:
        plain = await Client.connect(it.client.service_client.config.target_host)
        async with Perdure(client=plain, task_queue=it.queue) as perdure:
            assert await perdure.run("Read it", result_type=Invoice) == Invoice(number="A-17", cents=1200)


async def test_an_address_is_connected_to_and_an_unused_one_is_named(world: MakeWorld) -> None:
    async with world([says("done")]) as it:
        address = it.client.service_client.config.target_host
        async with Perdure.connect(address, task_queue=it.queue, namespace="default") as perdure:
            assert (await perdure.run("Do it")).outcome == "done"
    with pytest.raises(TemporalUnavailableError, match=r"^no Temporal server answers at 127.0.0.1:1: [^\n]*$"):
        async with Perdure.connect("127.0.0.1:1"):
            pass
    with pytest.raises(TemporalUnavailableError, match="set TEMPORAL_TLS or TEMPORAL_API_KEY"):
        async with Perdure.connect("temporal.example:7233"):
            pass


async def test_a_question_that_a_result_waits_for_is_logged(
    world: MakeWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.python_client.QUESTION_CHECK_SECONDS", 0.05)
    async with world([ASK, says("done")]) as it, client_of(it) as perdure:
        run = await perdure.start("Choose")
        with caplog.at_level(logging.WARNING, "perdure"):
            waiting = asyncio.create_task(run.result())
            await it.until(
                lambda: f"run {run.id} waits for a person: asks: Which one? (perdure show {run.id})" in caplog.text
            )
        await run.answer("the first")
        assert (await waiting).outcome == "done"


async def test_a_missing_worker_is_logged(world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    async with world([says("done")], works=False) as it:
        with caplog.at_level(logging.WARNING, "perdure"):
            async with client_of(it):
                pass
    assert "no worker is running; start one with: perdure worker" in caplog.messages


async def test_a_pace_that_no_model_has_is_refused_at_once(world: MakeWorld) -> None:
    """By a client of the workers' own project, which knows that no model is configured."""
    async with world([says("done")], works=False) as it:
        settings = load_settings({"PERDURE_TASK_QUEUE": it.queue}, it.project.workspaces)
        with pytest.raises(BadStartError, match=r"\(rehearsal\) has no batches: use pace live"):
            await Perdure.over(Session(it.client, settings, None)).start("Do it", pace="batch")


async def test_the_inbox_the_details_and_the_lane_are_read_by_one_client(world: MakeWorld) -> None:
    async with world([ASK, says("The second.")]) as it, client_of(it) as perdure:
        turn = await perdure.submit("Choose", conversation="inbox-1")
        lane = perdure.conversation("inbox-1")
        await it.until_state(it.client.get_workflow_handle(f"run:{turn.id}"), question=True)
        state = await lane.state()
        asked: list[ListedQuestion] = []

        async def is_listed() -> bool:
            asked[:] = [each for each in (await perdure.questions()).questions if each.run_id == turn.id]
            return bool(asked)

        await it.until(is_listed)
        during = await turn.details()
        await turn.answer("the second")
        await turn.result()
        after = await turn.details(subtasks=False)
    assert state is not None
    assert state.active is not None
    assert state.active.run_id == turn.id
    assert [each.question and each.question.text for each in asked] == ["Which one?"]
    assert (during.end, during.subtasks, during.state and during.state.status) == (None, (), "waiting_on_human")
    assert during.to_row().items() >= {"status": "waiting_on_human", "waiting_for": asked[0].waiting_for}.items()
    assert (after.end and after.end.text, after.subtasks, after.known.is_open) == ("The second.", None, False)


async def test_a_run_that_does_not_exist_and_a_client_that_is_not_open_are_named(world: MakeWorld) -> None:
    async with world([says("done")]) as it, client_of(it) as perdure:
        missing = perdure.get_run("nowhere")
        for ask in (missing.result, missing.state, missing.cancel, lambda: missing.answer("yes")):
            with pytest.raises(ReportedError, match="there is no run nowhere"):
                await ask()
        with pytest.raises(RunNotFoundError):
            [event async for event in missing.stream()]
    with pytest.raises(RuntimeError, match="async with Perdure"):
        await perdure.start("Do it")
