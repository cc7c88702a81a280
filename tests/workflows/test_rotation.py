"""Continue-as-new in mid-run, workers with an empty cache, and how often a byte lies in history: once."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count, pairwise
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.converter import PayloadCodec

from perdure.activities.storage.store import LocalStores
from perdure.client.records.export import Exporter
from perdure.client.run_events import WaitEnded, WaitStarted
from perdure.client.watch import Watch
from perdure.contracts.tool import Approval, Effect, ToolKind
from perdure.decisions.ids import run_id_of_workflow
from perdure.testkit.model_server import Reply, calls
from perdure.testkit.tools import ScriptedTool
from tests.conftest import SHORT_HISTORY
from tests.workflows.conftest import MakeWorld, Run, World, connect_like
from tests.workflows.runs import cancel_run, expect_cancelled
from tests.workflows.script import FINISH, tool_results


def steps(number: int, tool: str = "look", **arguments: Any) -> list[Reply]:
    return [calls((tool, {"n": n, **arguments}), text=f"turn {n}") for n in range(number)] + [FINISH]


async def test_a_run_that_rotates_loses_nothing(world: MakeWorld, short_history_client: Client) -> None:
    look = ScriptedTool("look", lambda arguments, _: f"result {arguments['n']}")
    async with world(steps(40), look, server=short_history_client, max_steps=40) as it:
        run = await it.start()
        event = await run.result()
        requests = it.model.requests
        assert len(await it.executions(run)) >= 4
        state = await it.state(run)
    assert (event["type"], event["payload"]["steps_taken"]) == ("agent.completed", 40)
    assert [arguments["n"] for arguments, _ in look.calls] == list(range(40))
    assert state["completed_steps"] == list(range(1, 41))
    assert len(requests) == 41
    assert tool_results(requests[-1]) == [f"result {n}" for n in range(40)]


async def test_each_request_begins_with_the_one_before_it(world: MakeWorld, short_history_client: Client) -> None:
    look = ScriptedTool("look", lambda arguments, _: {"n": arguments["n"], "half": 0.5})
    async with world(steps(25), look, server=short_history_client, max_steps=25) as it:
        await (await it.start()).result()
        requests = it.model.requests
    for earlier, later in pairwise(requests):
        # The mark for the provider's cache moves on; nothing else of what was sent may change.
        for request in (earlier, later):
            for message in request["messages"]:
                for block in message["content"]:
                    block.pop("cache_control", None)
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
        assert (later["system"], later["tools"]) == (earlier["system"], earlier["tools"])


async def test_results_and_answers_sent_around_a_rotation_are_not_lost(
    world: MakeWorld, short_history_client: Client
) -> None:
    uses = [calls(("vote" if n % 2 else "ask_human", {"question": f"{n}?"})) for n in range(24)]
    vote = ScriptedTool("vote", kind=ToolKind.signal)
    async with world([*uses, FINISH], vote, server=short_history_client, max_steps=24) as it:
        run = await it.start()
        for n in range(24):
            if n % 2:
                # Sent as early as it can be accepted, often in the task that follows a rotation; and once too often.
                await it.until_pending(run, n + 1)
                await it.send_result(run, n + 1, "vote", result=f"voted {n}")
                if n % 8 == 7:
                    await it.send_result(run, n + 1, "vote", result="twice")
            else:
                await it.until_state(run, question=True, step=n + 1)
                await run.signal("human_input", {"text": f"answer {n}"})
                if n % 8 == 6:
                    await run.signal("human_input", {"text": "twice"})
        await run.result()
        assert len(await it.executions(run)) >= 3
        last = tool_results(it.model.requests[-1])
    assert last == [f"voted {n}" if n % 2 else f"answer {n}" for n in range(24)]


def has_requests(it: World, more_than: int) -> bool:
    return len(it.model.requests) > more_than


async def test_a_cancel_during_rotations_ends_canceled(world: MakeWorld, short_history_client: Client) -> None:
    numbers = count()

    def script(body: dict[str, Any]) -> Reply:
        return calls(("look", {"n": next(numbers)}))

    async with world(script, ScriptedTool("look"), server=short_history_client, max_steps=1000) as it:
        runs = [await it.start() for _ in range(4)]
        for number, run in enumerate(runs):
            await it.until(partial(has_requests, it, 20 * (number + 1)))
            await cancel_run(run, "signal" if number % 2 else "native")
        for run in runs:
            await expect_cancelled(run)


async def test_a_worker_with_an_empty_cache_fetches_what_it_misses(world: MakeWorld) -> None:
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def look(arguments: Any, context: Any) -> str:
        if arguments["n"] == 5:
            at_work.set()
            await go_on.wait()
        return f"result {arguments['n']}"

    async with world(steps(10), ScriptedTool("look", look), works=False) as it:
        async with it.worker():
            run = await it.start()
            await at_work.wait()
            asyncio.get_running_loop().call_later(0.1, go_on.set)
        async with it.worker():
            await run.result()
        assert tool_results(it.model.requests[-1]) == [f"result {n}" for n in range(10)]


async def test_a_worker_with_an_empty_cache_reads_closed_segments_from_the_store(
    world: MakeWorld, short_history_client: Client
) -> None:
    script = [*steps(20)[:-1], calls(("ask_human", {"question": "Go on?"})), FINISH]
    look = ScriptedTool("look", lambda arguments, _: f"result {arguments['n']}")
    async with world(script, look, server=short_history_client, works=False, max_steps=21) as it:
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
        async with it.worker():
            await run.signal("human_input", {"text": "yes"})
            await run.result()
        assert tool_results(it.model.requests[-1]) == [*(f"result {n}" for n in range(20)), "yes"]


async def test_two_workers_share_a_run(world: MakeWorld) -> None:
    look = ScriptedTool("look", lambda arguments, _: f"result {arguments['n']}")
    async with world(steps(15), look) as it, it.worker(await it.another_client()):
        await (await it.start()).result()
        assert tool_results(it.model.requests[-1]) == [f"result {n}" for n in range(15)]


def marked(prefix: str, n: int) -> str:
    """A large text; its mark stands behind what a summary may show of it."""
    return "x" * 20_000 + f"<{prefix}-{n}>"


async def test_each_large_result_and_argument_lies_in_history_once(world: MakeWorld) -> None:
    look = ScriptedTool("look", lambda arguments, _: marked("result", arguments["n"]))
    save = ScriptedTool("save", lambda arguments, _: len(arguments["content"]), effect=Effect.keyed)
    uses = [calls(("look", {"n": n}), ("save", {"content": marked("argument", n)})) for n in range(6)]
    async with world([*uses, FINISH], look, save) as it:
        run = await it.run_to_end()
        history = await it.raw_history(run)
        last = it.model.requests[-1]
    assert [arguments["content"] for arguments, _ in save.calls] == [marked("argument", n) for n in range(6)]
    for n in range(6):
        assert history.count(f"<result-{n}>".encode()) == 1
        assert history.count(f"<argument-{n}>".encode()) == 1
        assert any(marked("result", n) in text for text in tool_results(last))


async def test_large_bytes_lie_in_history_once_also_across_rotations_and_retries(
    world: MakeWorld, short_history_client: Client
) -> None:
    seen: set[int] = set()

    def flaky(arguments: Any, _: Any) -> str:
        if arguments["n"] % 7 == 3 and arguments["n"] not in seen:
            seen.add(arguments["n"])
            raise ConnectionError("once")
        return marked("result", arguments["n"])

    look = ScriptedTool("look", flaky)
    async with world(steps(24), look, server=short_history_client, max_steps=24) as it:
        run = await it.run_to_end()
        assert len(await it.executions(run)) >= 3
        history = await it.raw_history(run)
    assert [history.count(f"<result-{n}>".encode()) for n in range(24)] == [1] * 24


async def test_history_grows_by_the_same_bytes_and_events_at_every_step(world: MakeWorld) -> None:
    look = ScriptedTool("look", lambda arguments, _: f"{arguments['n']:04}" + "y" * 2044)
    sizes = {}
    for number in (5, 15, 25):
        async with world(steps(number), look, max_steps=number) as it:
            run = await it.run_to_end()
            events = [event async for event in run.fetch_history_events()]
            sizes[number] = (len(await it.raw_history(run)), len(events))
    first, second = (tuple((b - a) / 10 for a, b in zip(sizes[n], sizes[n + 10], strict=True)) for n in (5, 15))
    assert second[0] == pytest.approx(first[0], rel=0.03)
    assert second[0] < 2048 * 3  # bytes a step
    assert second[1] <= 12.5  # events a step


async def test_a_parked_run_leaves_the_worker_without_a_trace_of_trouble(
    world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with world([calls(("ask_human", {"question": "Which?"})), FINISH], works=False) as it:
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
        async with it.worker():
            assert (await it.state(run))["question"]["text"] == "Which?"
            await run.signal("human_input", {"text": "a"})
            await run.result()
    assert [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}] == []


async def flood(it: World, run: Run, rotations: int) -> None:
    """Signals that mean nothing, until the run has gone on in so many other executions."""
    seen = {run.first_execution_run_id}
    while len(seen) <= rotations:
        await asyncio.gather(*(run.signal("noise", {"n": n}) for n in range(10)))
        seen.add((await run.describe()).run_id)
    assert await it.state(run)


WAITS = {
    "question": calls(("ask_human", {"question": "Pay it?"})),
    "approval": calls(("charge", {"cents": 5})),
    "outside": calls(("vote", {"on": "it"})),
}


async def until_it_waits(it: World, run: Run, waits: str) -> None:
    await (it.until_pending(run, 1) if waits == "outside" else it.until_state(run, question=True))


vote = partial(ScriptedTool, "vote", kind=ToolKind.signal, effect=Effect.once)


@pytest.mark.parametrize("waits", WAITS)
async def test_a_run_that_waits_goes_on_waiting_however_many_signals_come(
    waits: str, world: MakeWorld, short_history_client: Client
) -> None:
    charge = ScriptedTool("charge", lambda *_: "charged", effect=Effect.once, approval=Approval.always)
    votes = vote()
    async with world([WAITS[waits], FINISH], charge, votes, server=short_history_client, works=False) as it:
        async with it.worker():
            run = await it.start()
            await until_it_waits(it, run, waits)
            before = await it.state(run)
            await flood(it, run, 3)
            after = await it.state(run)
            assert [after[key] for key in ("question", "status", "pending")] == [
                before[key] for key in ("question", "status", "pending")
            ]
            assert charge.calls == []
        async with it.worker():  # with nothing in its memory
            match waits:
                case "question":
                    await run.signal("human_input", {"text": "yes", "question_id": before["question"]["id"]})
                case "approval":
                    await run.signal("human_input", {"decision": "approve"})
                case _:
                    for result in ("yes", "twice"):
                        await it.send_result(run, 1, "vote", result=result)
            await run.result()
            assert tool_results(it.model.requests[-1]) == ["charged" if waits == "approval" else "yes"]
            made = [len(tool.calls) for tool in (charge, votes)]
            assert made == [waits == "approval", waits == "outside"]
        await it.replay()


async def test_a_result_before_the_approval_of_its_call_is_ignored(
    world: MakeWorld, short_history_client: Client
) -> None:
    votes = vote(approval=Approval.always)
    async with world([WAITS["outside"], FINISH], votes, server=short_history_client) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await it.send_result(run, 1, "vote", result="forged")
        await flood(it, run, 1)
        assert votes.calls == []
        await run.signal("human_input", {"decision": "approve"})
        await it.until_pending(run, 1)
        await it.until(lambda: len(votes.calls) == 1)
        await it.send_result(run, 1, "vote", result="yes")
        await run.result()
        assert tool_results(it.model.requests[-1]) == ["yes"]
        assert await it.failed_tasks(run) == 0


async def test_a_steer_to_a_waiting_run_survives_its_rotation(world: MakeWorld, short_history_client: Client) -> None:
    async with world([WAITS["question"], FINISH, FINISH], server=short_history_client) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.signal("steer", {"request_id": "r1", "text": "be quick"})
        await flood(it, run, 2)
        await run.signal("steer", {"request_id": "r1", "text": "be quick"})
        await run.signal("human_input", {"text": "yes"})
        await run.result()
        said = str(it.model.requests[-1]["messages"])
        ignored = (await it.state(run))["ignored"]
    assert said.count("be quick") == 1
    assert any("r1 was said before" in each for each in ignored)


async def test_watch_export_and_fork_cover_every_execution_of_a_wait(
    world: MakeWorld, short_history_client: Client
) -> None:
    charge = ScriptedTool("charge", lambda *_: "charged", effect=Effect.once, approval=Approval.always)
    async with world([WAITS["question"], WAITS["approval"], FINISH, FINISH], charge, server=short_history_client) as it:
        run = await it.start()
        for number, said in enumerate(({"text": "yes"}, {"decision": "approve", "by": "ann"}), 1):
            await it.until_state(run, question=True, step=number)
            await flood(it, run, 1)
            seen = [each async for each in Watch(it.client, run_id_of_workflow(run.id), follow=False).events()]
            assert isinstance([each for each in seen if isinstance(each, WaitStarted | WaitEnded)][-1], WaitStarted)
            await run.signal("human_input", said)
        await run.result()

        stores = LocalStores(it.project.workspaces)
        record = await Exporter(it.client, stores, stores, asks=True).export(run_id_of_workflow(run.id))
        assert (record.missing, record.transcript.complete) == ([], True)
        assert [(asked.id, len(asked.answers)) for asked in record.questions] == [("q1", 1), ("q2", 1)]
        assert [call.step for call in record.calls] == [1, 2, None]

        forked = await it.fork(run, 1)
        await it.until_state(forked, question=True)
        await forked.signal("human_input", {"decision": "deny", "text": "once is enough"})
        await forked.result()
        assert tool_results(it.model.requests[-1]) == ["yes", "denied: a person denied this call: once is enough"]
        assert len(charge.calls) == 1


async def test_a_turn_that_is_too_large_for_another_execution_stays_in_its_own(
    world: MakeWorld, short_history_client: Client
) -> None:
    looks = [("look", {"n": n}) for n in range(18)]
    script = [calls(*looks, ("ask_human", {"question": "Pay it?"})), FINISH]
    look = ScriptedTool("look", lambda *_: "x" * 60_000)
    async with world(script, look, server=short_history_client, window=10_000_000) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        for _ in range(SHORT_HISTORY):
            await run.signal("noise")
        assert (await run.describe()).run_id == run.first_execution_run_id
        await run.signal("human_input", {"text": "yes"})
        await run.result()
        assert tool_results(it.model.requests[-1])[-1] == "yes"


async def test_an_answer_that_comes_in_a_flood_is_taken(world: MakeWorld, short_history_client: Client) -> None:
    def pays(body: dict[str, Any]) -> Reply:
        return FINISH if tool_results(body) else WAITS["question"]

    async with world(pays, server=short_history_client) as it:
        runs = [await it.start() for _ in range(5)]
        for number, run in enumerate(runs):
            await it.until_state(run, question=True)
            while (await run.describe()).history_length < SHORT_HISTORY - 20:
                await run.signal("noise")
            flood = [run.signal("noise") for _ in range(20)]
            flood.insert(4 * number, run.signal("human_input", {"text": f"answer {number}"}))
            await asyncio.gather(*flood)
            await run.result()
        answers = [tool_results(request)[0] for request in it.model.requests if tool_results(request)]
        assert answers == [f"answer {number}" for number in range(5)]


async def wait_ends(it: World, run: Run) -> list[datetime]:
    """By when the wait ends, as the last timer of each execution has it, from the latest one on."""
    ends = []
    for execution in await it.executions(run):
        now, end = datetime.min.replace(tzinfo=UTC), None
        async for event in execution.fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
                now = event.event_time.ToDatetime(UTC)
            if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED:
                timeout = event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
                end = now + timeout
        if end is not None:
            ends.append(end)
    return ends


@pytest.mark.parametrize("waits", ["approval", "outside"])
async def test_a_wait_ends_when_it_would_have_without_the_flood(
    waits: str, world: MakeWorld, short_history_client: Client
) -> None:
    hour = timedelta(hours=1)
    charge = ScriptedTool("charge", effect=Effect.once, approval=Approval.always, approval_timeout=hour)
    async with world([WAITS[waits], FINISH], charge, vote(timeout=hour), server=short_history_client) as it:
        run = await it.start()
        await until_it_waits(it, run, waits)
        before = (await it.state(run))["question"]
        await flood(it, run, 2)
        assert (await it.state(run))["question"] == before

        async def has_moved() -> bool:
            return len(await wait_ends(it, run)) >= 3

        await it.until(has_moved)
        ends = await wait_ends(it, run)
        assert max(ends) - min(ends) < timedelta(milliseconds=5)
        await run.signal("cancel")


@pytest.mark.parametrize("waits", ["question", "outside"])
@pytest.mark.parametrize("by", ["signal", "Temporal"])
async def test_a_cancel_of_a_run_that_has_moved_while_it_waits(
    by: str, waits: str, world: MakeWorld, short_history_client: Client
) -> None:
    async with world([WAITS[waits]], vote(), server=short_history_client) as it:
        run = await it.start()
        await until_it_waits(it, run, waits)
        await flood(it, run, 1)
        noise = [run.signal("noise") for _ in range(60)]  # which may make it move just now
        noise.insert(50, run.signal("cancel") if by == "signal" else run.cancel())
        await asyncio.gather(*noise)
        await expect_cancelled(run)
        state = await it.state(run)
        assert (state["status"], state["question"], state["pending"]) == ("cancelled", None, [])
        (result,) = await it.results(run)
        assert ("may have happened" in result[1]) == (waits == "outside")


class Gate:
    def __init__(self, text: bytes) -> None:
        self.text, self.reached, self.opened = text, asyncio.Event(), asyncio.Event()


class Gates(PayloadCodec):
    """Stops a worker at each payload that has the text of a gate, until the test opens the gate."""

    def __init__(self, *gates: Gate) -> None:
        self.gates = gates

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        for gate in self.gates:
            if any(gate.text in payload.data for payload in payloads):
                gate.reached.set()
                await gate.opened.wait()
        return list(payloads)

    decode = encode


async def test_a_result_that_comes_as_the_run_continues_as_new_is_not_lost(
    world: MakeWorld, short_history_client: Client
) -> None:
    """If a query comes with the task that archives, a local activity's end would be in a task of its own. The server
    refuses to continue in it, because of the result. Replayed, it would continue before it had the result, and without.
    """
    let_go = asyncio.Event()

    async def look(*_: Any) -> str:
        await let_go.wait()
        return "seen"

    signal, answer, input_of_next = Gate(b"the last one"), Gate(b'"parts"'), Gate(b"agentic.continue")
    converter = replace(short_history_client.data_converter, payload_codec=Gates(signal, answer, input_of_next))
    gated = await connect_like(short_history_client, converter)
    tools = (ScriptedTool("look", look), ScriptedTool("vote", kind=ToolKind.signal, effect=Effect.read))
    script = [calls(("look", {}), ("vote", {})), FINISH]
    async with world(script, *tools, server=short_history_client, works=False) as it, it.worker(gated):
        run = await it.start()
        await it.until_pending(run, 2)
        while (await run.describe()).history_length < SHORT_HISTORY:
            await run.signal("human_input", {"text": "no question is open"})
        await run.signal("human_input", {"text": "the last one"})
        await signal.reached.wait()
        asking = asyncio.create_task(run.query("transcript"))
        let_go.set()
        await it.until(partial(has_no_activities, run))
        signal.opened.set()
        await answer.reached.wait()
        await asyncio.wait({asking}, timeout=0.3)  # a local activity would end in it; there is none to wait for
        answer.opened.set()
        await input_of_next.reached.wait()
        await it.send_result(run, 2, "vote", result="voted")
        input_of_next.opened.set()
        await asking
        await run.result()
        assert tool_results(it.model.requests[-1]) == ["seen", "voted"]


async def has_no_activities(run: Run) -> bool:
    return not (await run.describe()).raw_description.pending_activities
