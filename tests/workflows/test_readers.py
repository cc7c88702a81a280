"""Every reader of a run reads one that has each kind of child workflow, and names what it cannot read."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.client import Client

from perdure.activities.run.outcome import RunEnd
from perdure.activities.storage.store import LocalStores
from perdure.client.records.event_reader import EventReader
from perdure.client.records.export import Exporter
from perdure.client.records.record import list_events, verify_record
from perdure.client.records.run_facts import collect_facts
from perdure.client.run_events import RunEnded, UnreadableEvent, event_to_json
from perdure.client.watch import Watch
from perdure.codec import UnknownKeyError
from perdure.contracts.people import NoticeKind
from perdure.contracts.run.export import Export, ExportedExecution
from perdure.features.delegation.events import DelegationFinished, DelegationStarted
from perdure.features.notices.channels import WebhookSender
from perdure.features.proof.case import case_of_run
from perdure.features.proof.commands import _replay_each
from perdure.terminal.event_lines import format_event
from tests.workflows.conftest import MakeWorld, Run, World, connect_encrypted
from tests.workflows.runs import result_of
from tests.workflows.test_candidate_replay import replayed
from tests.workflows.test_delegation import FINISH, LEAD, WRITER, delegates, finishes, script, task, tree
from tests.workflows.test_notices import ASK, ENDS, SECRET, Receiver, add_channel, receiving
from tests.workflows.test_record import sign

SCRIPT = script([ASK, delegates(task("a")), FINISH], finishes)


async def announced_run(it: World, receiver: Receiver, client: httpx.AsyncClient) -> Run:
    """Return a run with a question, a delegation and notices of the question and its end."""
    add_channel(it, WebhookSender(receiver.url, SECRET, client), NoticeKind.waiting, *ENDS)
    async with it.worker():
        run = await it.start(agent="lead")
        await it.answer(run, text="b")
        await result_of(run)
        await it.until(lambda: {"run.waiting", "run.ended"} <= set(receiver.read_kinds()))
        await tree(it, run)
    return run


async def export(it: World, run: Run) -> Export:
    stores = LocalStores(it.project.workspaces)
    return await Exporter(it.client, stores, stores, asks=False).export(run.id.removeprefix("run:"))


async def test_every_reader_tells_a_delegation_from_a_notice(world: MakeWorld) -> None:
    with receiving() as receiver:
        async with world(SCRIPT, agents=[LEAD, WRITER], works=False) as it, httpx.AsyncClient() as client:
            run = await announced_run(it, receiver, client)
            sent = len(receiver.requests)
            events = [event async for event in Watch(it.client, run.id, follow=False).events()]
            record = await export(it, run)
            comparison, _ = await replayed(it, run, SCRIPT)
    children = [event["workflow_type"]["name"] for event in child_starts(record)]
    assert sorted(children) == ["Delegation", "Notify", "Notify"]
    assert sum(isinstance(event, DelegationStarted) for event in events) == 1
    assert sum(isinstance(event, DelegationFinished) for event in events) == 1
    assert isinstance(events[-1], RunEnded)
    assert not [event for event in events if isinstance(event, UnreadableEvent)]
    for event in events:
        assert json.loads(event_to_json(event))["type"] == event.type
        list(format_event(event, 80))
    assert not [line for line in record.missing if not line.startswith("state:")]
    assert [question.answers[0].text for question in record.questions] == ["b"]
    assert not verify_record(sign(list_events(record.model_dump(mode="json")))).findings
    assert case_of_run(record.run_id, collect_facts(record.executions), RunEnd(**record.end or {}), ("delegate",))[
        "expect"
    ]
    assert comparison.has_passed
    assert not comparison.differences
    assert len(receiver.requests) == sent  # a replay announces nothing


def child_starts(record: Export) -> list[dict[str, Any]]:
    events = [event for execution in record.executions for event in execution.events]
    return [event for event in events if event["type"] == "start_child_workflow_execution_initiated"]


JUNK: st.SearchStrategy[Any] = st.sampled_from([None, 7, "junk", [], {}, [{}], [[1]], {"payload": 1}])


async def test_an_event_of_another_shape_is_named_and_the_others_are_read_as_before(world: MakeWorld) -> None:
    with receiving() as receiver:
        async with world(SCRIPT, agents=[LEAD, WRITER], works=False) as it, httpx.AsyncClient() as client:
            record = await export(it, await announced_run(it, receiver, client))
    events = record.executions[0].events
    names = [(at, name) for at, event in enumerate(events) for name in event if name not in ("id", "type", "at")]

    @settings(max_examples=300)
    @given(st.sampled_from(names), JUNK)
    def check(place: tuple[int, str], junk: Any) -> None:
        at, name = place
        changed = deepcopy(events)
        changed[at][name] = junk
        reader = EventReader()
        read = [each for event in changed for each in reader.read(event)]
        assert isinstance(read[-1], RunEnded)
        facts = collect_facts([ExportedExecution(execution="e", events=changed)])
        named = {f"event {each.event_id} ({each.event_type})" for each in read if isinstance(each, UnreadableEvent)}
        assert named <= set(facts.unreadable)

    check()


async def test_one_run_that_cannot_be_read_does_not_end_the_replay_of_many(
    world: MakeWorld, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    async with world([FINISH] * 2, works=False) as it:
        encrypted = await connect_encrypted(client)
        async with it.worker(encrypted):
            lost = await replace(it, client=encrypted).run_to_end()
        async with it.worker():
            known = await it.run_to_end()
        names, stores = [lost.id[4:], known.id[4:]], LocalStores(it.project.workspaces)
        exporter = Exporter(it.client, stores, stores, asks=False)

        async def take(record: Export) -> str:
            return record.run_id

        assert await _replay_each(exporter, names, take, is_one=False) == names[1:]
        with pytest.raises(UnknownKeyError):
            await _replay_each(exporter, names[:1], take, is_one=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"perdure: run {names[0]}: a payload is encrypted with key 'k1'")
