"""A lane: one run at a time, in order, each request ending once (B8)."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.run import status
from perdure.activities.temporal import MAX_SUBMITS_IN_FLIGHT, submit_to_lane
from perdure.client.details import read_details
from perdure.client.errors import RejectedError
from perdure.contracts.conversation import SubmitRequest, Submitted
from perdure.contracts.tool import Effect
from perdure.decisions import ids
from perdure.decisions.run.transcript import SHOW_JOURNAL
from perdure.terminal.report import print_run
from perdure.testkit.model_server import Reply, calls, says
from perdure.testkit.tools import ScriptedTool
from tests.waiting import PATIENCE
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.lane import (
    echo,
    lane_of,
    new_id,
    query_view,
    run_of,
    say,
    turn_ends,
    until_idle,
    wait_for_question,
    wait_for_run,
)
from tests.workflows.runs import count_upserts, expect_cancelled, failure_of, rejection_of, result_of
from tests.workflows.script import texts, tool_results
from tests.workflows.tools import HeldTool

ASK = calls(("ask_human", {"question": "which one?"}))


class Gate(HeldTool):
    """A tool whose calls name the request that they are for."""

    def __init__(self) -> None:
        super().__init__("wait", Effect.keyed, "waited")

    @property
    def started_for(self) -> list[str]:
        return [str(arguments["for"]) for arguments in self.calls]

    def has_started(self, turns: int = 1) -> bool:
        return len(self.calls) >= turns


@asynccontextmanager
async def waiting_turn(
    world: MakeWorld, goal: str, **options: Any
) -> AsyncIterator[tuple[World, str, Gate, Submitted]]:
    """A conversation whose first turn waits at a gate."""
    chat, gate = new_id(), Gate()
    async with world(waits_then_echoes, gate.tool, **options) as it:
        first = await say(it, chat, goal)
        await it.until(gate.has_started)
        yield it, chat, gate, first


def waits_then_echoes(body: dict[str, Any]) -> Reply:
    """Each turn waits at the gate once, then answers."""
    last = body["messages"][-1]["content"]
    if last[-1]["type"] == "text" and not any(block["type"] == "tool_result" for block in last):
        return calls(("wait", {"for": last[-1]["text"]}))
    said = [b["text"] for b in last if b["type"] == "text"]
    return says(f"done: {' / '.join(said) or 'alone'}")


async def test_turns_follow_each_other_and_each_has_the_earlier_messages(world: MakeWorld) -> None:
    chat = new_id()
    async with world(echo) as it:
        first = await say(it, chat, "my name is Ada", agent="default")
        second = await say(it, chat, "who am I?")
        view = await until_idle(it, chat, 2)
        assert view.agent == "default"  # the one that was named last
        assert [await count_upserts(run_of(it, turn)) for turn in (first, second)] == [1, 1]  # at the end
        last = it.model.requests[-1]
        state = await run_of(it, second).query("state")
    assert (first.position, second.duplicate) == (0, False)
    assert turn_ends(view) == [("my name is Ada", "completed"), ("who am I?", "completed")]
    assert texts(last) == ["my name is Ada", "you said: my name is Ada", "who am I?"]
    assert [turn.said for turn in view.recent] == ["you said: my name is Ada", "you said: who am I?"]
    assert (state["turns"], state["goal"]) == (1, "who am I?")


async def test_one_run_at_a_time_and_the_others_wait_in_order(world: MakeWorld) -> None:
    chat, gate = new_id(), Gate()
    async with world(waits_then_echoes, gate.tool) as it:
        submitted = [await say(it, chat, f"request {n}") for n in range(4)]
        await it.until(gate.has_started)
        view = await query_view(it, chat)
        assert [each.asked for each in view.waiting] == ["request 1", "request 2", "request 3"]
        gate.go_on.set()
        await until_idle(it, chat, 4)
    assert [each.position for each in submitted] == [0, 1, 2, 3]
    assert gate.started_for == ["request 0", "request 1", "request 2", "request 3"]


async def plainly_submitted(it: World, chat: str, request_id: str, **fields: Any) -> Any:
    """As a client says it that has nothing of ours, and the client itself."""
    client = await Client.connect(it.client.service_client.config.target_host)
    start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
        "Conversation",
        {},
        id=f"conversation:{chat}",
        task_queue=it.queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    body = {"request_id": request_id, "goal": request_id, **fields}
    submitted = await client.execute_update_with_start_workflow("submit", body, start_workflow_operation=start)
    it.started += [f"conversation:{chat}", f"run:{submitted['run_id']}"]
    return client, submitted


async def wait_for_turn(client: Client, conversation: str, run_id: str) -> Any:
    """As docs/conversations.md has it."""
    lane = client.get_workflow_handle(f"conversation:{conversation}")
    while True:
        view = await lane.query("lane")
        if any(
            turn["run_id"] == run_id and turn["end"] in ("dropped", "steered", "answered") for turn in view["recent"]
        ):
            return None
        try:
            return await client.get_workflow_handle(f"run:{run_id}").result()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        await asyncio.sleep(0.05)


async def test_the_run_of_a_request_that_begins_now_is_there_when_it_is_accepted(world: MakeWorld) -> None:
    async with world(echo) as it:

        async def there(chat: str) -> None:
            for request_id in ("first", "second"):
                client, submitted = await plainly_submitted(it, chat, request_id)
                await client.get_workflow_handle(f"run:{submitted['run_id']}").describe()
                await until_idle(it, chat, 1 if request_id == "first" else 2)

        await asyncio.gather(*(there(new_id()) for _ in range(6)))


async def test_a_queued_request_has_its_position_and_its_end_can_be_awaited(world: MakeWorld) -> None:
    chat, gate = new_id(), Gate()
    async with world(waits_then_echoes, gate.tool) as it:
        await plainly_submitted(it, chat, "first")
        client, second = await plainly_submitted(it, chat, "second")
        _, third = await plainly_submitted(it, chat, "third")
        it.started.remove(f"run:{third['run_id']}")
        assert (second["position"], third["position"]) == (1, 2)
        with pytest.raises(RPCError):
            await client.get_workflow_handle(f"run:{second['run_id']}").describe()
        await it.until(lambda: gate.has_started(1))
        waits = [asyncio.create_task(wait_for_turn(client, chat, each["run_id"])) for each in (second, third)]
        await lane_of(it, chat).signal("drop", {"request_id": "third"})
        gate.go_on.set()
        event, nothing = await asyncio.wait_for(asyncio.gather(*waits), 30)
    assert (event["type"], nothing) == ("agent.completed", None)


async def test_a_submit_does_not_hang_where_the_run_cannot_be_started(world: MakeWorld) -> None:
    """Another one has its id already: the lane watches that one."""
    chat = new_id()
    async with world(echo) as it:
        taken = await it.start(run_id=ids.turn_run_id(chat, "first"))
        await taken.result()
        async with asyncio.timeout(PATIENCE):
            _, submitted = await plainly_submitted(it, chat, "first")
        assert submitted == {"run_id": taken.id.removeprefix("run:"), "position": 0, "duplicate": False}
        await until_idle(it, chat, 1)


async def test_other_conversations_are_not_held_up(world: MakeWorld) -> None:
    slow, quick, gate = new_id(), new_id(), Gate()
    script = lambda body: waits_then_echoes(body) if "slow" in texts(body)[0] else echo(body)  # noqa: E731
    async with world(script, gate.tool) as it:
        await say(it, slow, "slow")
        await it.until(lambda: gate.started_for == ["slow"])
        await say(it, quick, "quick")
        assert turn_ends(await until_idle(it, quick, 1)) == [("quick", "completed")]
        gate.go_on.set()
        await until_idle(it, slow, 1)


async def test_submits_to_one_lane_are_sent_a_few_at_a_time(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes ten updates of a workflow in flight, and with more it drops some that it had taken."""
    chat, other = new_id(), new_id()
    under_way: Counter[str] = Counter()
    most: Counter[str] = Counter()
    execute = Client.execute_update_with_start_workflow

    async def counted(self: Client, *args: Any, **kwargs: Any) -> Any:
        lane = str(kwargs["start_workflow_operation"]._start_workflow_input.id)
        under_way[lane] += 1
        most[lane] = max(most[lane], under_way[lane])
        try:
            return await execute(self, *args, **kwargs)
        finally:
            under_way[lane] -= 1

    monkeypatch.setattr(Client, "execute_update_with_start_workflow", counted)
    async with world(echo) as it:
        spoken = [say(it, lane, f"word {n}") for n in range(12) for lane in (chat, other)]
        await asyncio.gather(*spoken)
        await until_idle(it, chat, 12)
        await until_idle(it, other, 12)
    assert set(most.values()) == {MAX_SUBMITS_IN_FLIGHT}
    assert len(most) == 2


async def test_a_request_that_comes_again_is_the_same_request(world: MakeWorld) -> None:
    chat = new_id()
    async with world(echo) as it:
        first = await say(it, chat, "once", "r1")
        again = await say(it, chat, "once", "r1")
        await until_idle(it, chat, 1)
        late = await say(it, chat, "once", "r1")
        body = {"request_id": "r1", "goal": "once"}
        for _ in range(3):
            await lane_of(it, chat).signal("request", body)
        view = await until_idle(it, chat, 1)
    assert [each.duplicate for each in (first, again, late)] == [False, True, True]
    assert first.run_id == again.run_id == late.run_id
    assert (view.accepted, len(view.recent)) == (1, 1)


async def test_the_same_id_with_another_body_is_refused(world: MakeWorld) -> None:
    chat = new_id()
    async with world(echo) as it:
        await say(it, chat, "pay Ada", "r1")
        with pytest.raises(RejectedError, match="request id 'r1' was used with another body"):
            await say(it, chat, "pay Bob", "r1")
        await lane_of(it, chat).signal("request", {"request_id": "r1", "goal": "pay Eve"})
        view = await until_idle(it, chat, 1)
    assert (view.accepted, view.refused) == (1, 1)
    assert "was used with another body" in view.notices[-1]


async def test_a_busy_lane_rejects_a_request_that_will_not_wait(world: MakeWorld) -> None:
    chat, gate = new_id(), Gate()
    async with world(waits_then_echoes, gate.tool) as it:
        await say(it, chat, "long", when_busy="reject")
        with pytest.raises(RejectedError, match="the lane is busy; try again in 5 s"):
            await say(it, chat, "short", when_busy="reject")
        gate.go_on.set()
        await until_idle(it, chat, 1)


async def test_steering_joins_the_running_turn_at_its_next_model_call(world: MakeWorld) -> None:
    async with waiting_turn(world, "look") as (it, chat, gate, first):
        steered = await say(it, chat, "in the cellar too", when_busy="steer")
        gate.go_on.set()
        view = await until_idle(it, chat, 2)
        event = await run_of(it, first).result()
    assert (steered.run_id, steered.position) == (first.run_id, 0)
    assert event["payload"]["outcome"] == "done: in the cellar too"
    assert turn_ends(view) == [("in the cellar too", "steered"), ("look", "completed")]


async def test_a_steer_while_the_outcome_is_written_is_answered_too(world: MakeWorld) -> None:
    """The model call that would have ended the run is under way when the message comes."""
    chat, hold = new_id(), HeldTool("hold", Effect.keyed)
    script = [calls(("hold", {}), ("finish", {"outcome": "early"})), says("late")]
    async with world(script, hold.tool) as it:
        first = await say(it, chat, "go")
        await hold.started.wait()
        await say(it, chat, "one thing more", when_busy="steer")

        async def is_said() -> bool:
            events = run_of(it, first).fetch_history_events()
            return "steer" in [e.workflow_execution_signaled_event_attributes.signal_name async for e in events]

        await it.until(is_said)
        hold.go_on.set()
        event = await run_of(it, first).result()
        await until_idle(it, chat, 2)
    assert event["payload"]["outcome"] == "late"


async def test_a_steer_that_comes_too_late_is_a_turn_of_its_own(world: MakeWorld) -> None:
    chat = new_id()
    async with world([ASK, says("first"), says("second")]) as it:
        first = await say(it, chat, "ask me")
        await wait_for_question(it, first)
        await run_of(it, first).terminate("gone")
        await say(it, chat, "still there?", when_busy="steer")
        view = await until_idle(it, chat, 2)
    assert [end for _, end in turn_ends(view)] == ["cancelled", "completed"]


async def test_an_interrupting_request_comes_next_and_the_turn_is_cancelled(world: MakeWorld) -> None:
    chat = new_id()
    script = lambda body: ASK if texts(body)[-1] == "long" else echo(body)  # noqa: E731
    async with world(script) as it:
        first = await say(it, chat, "long")
        await wait_for_question(it, first)
        await say(it, chat, "patient")
        hasty = await say(it, chat, "stop, do this", when_busy="interrupt")
        view = await until_idle(it, chat, 3)
        described = await run_of(it, first).describe()
    assert hasty.position == 1
    assert described.status is WorkflowExecutionStatus.CANCELED
    assert [asked for asked, _ in turn_ends(view)] == ["long", "stop, do this", "patient"]
    assert [end for _, end in turn_ends(view)] == ["cancelled", "completed", "completed"]


async def test_a_message_that_is_addressed_to_the_question_answers_it(world: MakeWorld) -> None:
    chat = new_id()
    async with world([ASK, says("the red one it is"), says("next"), says("last")]) as it:
        first = await say(it, chat, "choose")
        question = await wait_for_question(it, first)
        queued = await say(it, chat, "by the way")
        wrong = await say(it, chat, "to nobody", question_id="q77")
        answered = await say(it, chat, "the red one", question_id=question["id"])
        event = await run_of(it, first).result()
        view = await until_idle(it, chat, 4)
    assert event["payload"]["outcome"] == "the red one it is"
    assert (queued.position, wrong.position, answered.position) == (1, 0, 0)
    assert answered.run_id == first.run_id
    assert sorted(turn_ends(view)) == sorted(
        [("the red one", "answered"), ("choose", "completed"), ("by the way", "completed"), ("to nobody", "completed")]
    )


async def test_answers_and_cancels_sent_to_the_lane_reach_the_turn(world: MakeWorld) -> None:
    chat = new_id()
    script = lambda body: says(texts(body)[-1]) if len(body["messages"]) == 3 else ASK  # noqa: E731
    async with world(script) as it:
        first = await say(it, chat, "first")
        await wait_for_question(it, first)
        await lane_of(it, chat).signal("human_input", {"text": "blue"})
        await asyncio.wait_for(run_of(it, first).result(), 20)
        for name in ("cancel", "cancel_turn"):
            submitted = await say(it, chat, f"to {name}")
            await wait_for_question(it, submitted)
            await lane_of(it, chat).signal(name, {"reason": "enough"})
            with pytest.raises(WorkflowFailureError):
                await asyncio.wait_for(run_of(it, submitted).result(), 20)
        view = await until_idle(it, chat, 3)
    assert [end for _, end in turn_ends(view)] == ["completed", "cancelled", "cancelled"]


async def test_a_request_can_be_taken_back_while_it_waits(world: MakeWorld) -> None:
    chat, gate = new_id(), Gate()
    async with world(waits_then_echoes, gate.tool) as it:
        await say(it, chat, "runs", "a")
        await say(it, chat, "waits", "b")
        await lane_of(it, chat).signal("drop", {"request_id": "b", "by": "eva"})
        await lane_of(it, chat).signal("drop", {"request_id": "nobody's"})
        gate.go_on.set()
        view = await until_idle(it, chat, 2)
        again = await say(it, chat, "waits", "b")
        it.started.remove(f"run:{again.run_id}")
        it.started.remove(f"run:{again.run_id}")
    assert turn_ends(view) == [("waits", "dropped"), ("runs", "completed")]
    assert again.duplicate
    assert view.notices == ("drop: no request nobody's waits",)
    assert gate.started_for == ["runs"]


async def test_a_run_that_cannot_begin_does_not_block_the_lane(
    world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    chat = new_id()
    async with world(echo) as it:
        await say(it, chat, "to nobody", agent="nobody")
        await say(it, chat, "to somebody", agent="default")
        view = await until_idle(it, chat, 2)
        last = it.model.requests[-1]
    assert turn_ends(view) == [("to nobody", "failed"), ("to somebody", "completed")]
    assert "there is no agent 'nobody'" in view.recent[0].said
    logged = [vars(r)["event"] for r in caplog.records if r.msg.startswith("agent_run.dispatch_next_failed")]
    assert [event["why"][:21] for event in logged] == ["there is no agent 'no"]
    assert texts(last) == [
        "[An earlier turn ended without an answer: UnknownAgent. The user's message of that turn was left out.]",
        "to somebody",
    ]


def asks_with_much_in_hand(body: dict[str, Any]) -> Reply:
    """More than one answer of a query takes."""
    last = texts(body)[-1]
    looks = [("look", {"n": n}) for n in range(40)]
    return calls(*looks, ("ask_human", {"question": "which?"})) if last == "look" else says(f"you said: {last}")


large = partial(ScriptedTool, "look", lambda arguments, _: f"{arguments['n']}:" + "x" * 60_000)


async def test_large_results_of_a_terminated_turn_are_not_lost(world: MakeWorld) -> None:
    chat = new_id()
    async with world(asks_with_much_in_hand, large(), window=10_000_000, max_steps=50) as it:
        submitted = await say(it, chat, "look")
        await wait_for_question(it, submitted)
        await run_of(it, submitted).terminate("by an operator")
        await say(it, chat, "and now?")
        await until_idle(it, chat, 2)
        seen = [block["content"] for block in it.model.requests[-1]["messages"][2]["content"][:40]]
    assert [content.partition(":")[0] for content in seen] == [str(n) for n in range(40)]


async def test_a_restarted_lane_waits_for_an_open_turn_of_any_size(world: MakeWorld) -> None:
    chat = new_id()
    async with world(asks_with_much_in_hand, large(), window=10_000_000, max_steps=50) as it:
        first = await wait_for_run(it, await say(it, chat, "look"))
        await it.until_state(first, question=True)
        await lane_of(it, chat).terminate("by an operator")
        await say(it, chat, "and now?")
        await it.until(partial(_looks_back, it, chat))
        assert len(it.model.requests) == 1
        await first.signal("cancel")
        view = await until_idle(it, chat, 1)
    assert turn_ends(view) == [("look", "cancelled"), ("and now?", "completed")]


async def _looks_back(it: World, chat: str) -> bool:
    """Whether the new lane has found the turn of the old one."""
    view = await query_view(it, chat)
    return view.active is not None and len(view.waiting) == 1


async def test_the_messages_of_a_terminated_turn_are_not_lost(world: MakeWorld) -> None:
    chat = new_id()
    script = [calls(("look", {"at": "the sea"}), text="I look"), ASK, says("it was calm")]
    async with world(script, ScriptedTool("look", lambda *_: "calm")) as it:
        first = await say(it, chat, "how is the sea?")
        await wait_for_question(it, first)
        await run_of(it, first).terminate("by an operator")
        await say(it, chat, "well?")
        view = await until_idle(it, chat, 2)
        last = it.model.requests[-1]
    assert turn_ends(view) == [("how is the sea?", "cancelled"), ("well?", "completed")]
    note = "[An earlier turn ended without an answer: Terminated. What it did stands above.]"
    assert texts(last) == ["how is the sea?", "I look", note, "well?"]
    results = tool_results(last)
    assert results[0] == "calm"
    assert results[1].startswith("in_doubt")


async def test_a_restarted_lane_remembers_the_conversation(world: MakeWorld) -> None:
    chat = new_id()
    async with world(echo) as it:
        await say(it, chat, "remember me")
        await until_idle(it, chat, 1)
        await lane_of(it, chat).terminate("by an operator")
        await say(it, chat, "do you?")
        await until_idle(it, chat, 1)
        last = it.model.requests[-1]
    assert texts(last) == ["remember me", "you said: remember me", "do you?"]


async def test_the_journal_goes_from_turn_to_turn_and_the_counters_do_not(world: MakeWorld) -> None:
    chat = new_id()
    note = calls(("update_run_journal", {"current_state": "two of three are counted"}))
    script = [note, says("so far"), says("(its journal)"), says("and on"), says("at last")]
    async with world(script) as it:
        for text in ("count", "go on", "more"):
            last = await say(it, chat, text)
            await asyncio.wait_for((await wait_for_run(it, last)).result(), 20)
        journal = await run_of(it, last).query("journal")
        state = await run_of(it, last).query("state")
        second, third = it.model.requests[-2:]
    assert journal["current_state"] == "two of three are counted"
    assert (state["turns"], state["step"], state["reframes"]) == (1, 0, 0)
    assert texts(second).count(SHOW_JOURNAL) == texts(third).count(SHOW_JOURNAL) == 1  # not again where nothing is new
    assert "State: two of three are counted" in second["system"][-1]["text"]


async def test_files_go_from_turn_to_turn(world: MakeWorld, tmp_path: Path) -> None:
    chat = new_id()

    async def write(arguments: Any, context: Any) -> str:
        context.workspace.write("artifacts/note.txt", arguments["text"].encode())
        return "written"

    script = [calls(("write", {"text": "one"})), says("kept"), calls(("write", {"text": "two"})), says("changed")]
    async with world(script, ScriptedTool("write", write, effect=Effect.keyed)) as it:
        first, second = await say(it, chat, "write it"), await say(it, chat, "change it")
        third = await say(it, chat, "and?")
        await until_idle(it, chat, 3)
    notes = [(tmp_path / each.run_id / "artifacts/note.txt").read_text() for each in (first, second, third)]
    assert notes == ["one", "two", "two"]


async def test_a_large_result_keeps_its_path_in_later_turns(world: MakeWorld, tmp_path: Path) -> None:
    chat, pages = new_id(), iter(["a" * 70_000, "b" * 70_000])
    script = [calls(("look", {})), says("read"), calls(("look", {})), says("read, too")]
    async with world(script, ScriptedTool("look", lambda *_: next(pages))) as it:
        await say(it, chat, "read the one")
        turn = await say(it, chat, "and the other")
        await until_idle(it, chat, 2)
        paths = [json.loads(text)["artifact_path"] for text in tool_results(it.model.requests[-1])]
    assert len(set(paths)) == 2
    assert [(tmp_path / turn.run_id / path).read_text()[0] for path in paths] == ["a", "b"]


async def test_system_messages_join_the_system_prompt_for_their_turn_only(world: MakeWorld) -> None:
    chat = new_id()
    messages = [{"role": "system", "content": "B has replied"}, {"role": "user", "content": "the reply: yes"}]
    async with world(echo) as it:
        request = {"request_id": "wf:1:1", "messages": messages, "request_client": "discord", "raw": {"workflow": 1}}
        await say(it, chat, "hello")
        await lane_of(it, chat).signal("request", request)
        await until_idle(it, chat, 2)
        await say(it, chat, "thanks")
        await until_idle(it, chat, 3)
        first, second, third = it.model.requests
    assert [block["text"] for block in second["system"]][-1] == "B has replied"
    assert texts(second)[-1] == "the reply: yes"
    assert len(first["system"]) == len(third["system"]) == 1


async def test_a_cancelled_lane_stops_its_turn_and_drops_its_queue(world: MakeWorld) -> None:
    chat = new_id()
    async with world(lambda _: ASK) as it:
        first = await say(it, chat, "first")
        await wait_for_question(it, first)
        second = await say(it, chat, "second")
        it.started.remove(f"run:{second.run_id}")  # it never begins
        lane = lane_of(it, chat)
        await lane.cancel()
        await expect_cancelled(lane)
        view = await query_view(it, chat)
        await expect_cancelled(run_of(it, first))
    assert [end for _, end in turn_ends(view)] == ["cancelled", "dropped"]


BAD = [(), ({}, {}), ("text",), (None,), ([],), ({"request_id": "x"},), ({"request_id": "x", "goal": " "},)]


async def test_nothing_that_is_sent_to_a_lane_wedges_it(world: MakeWorld) -> None:
    chat = new_id()
    async with world(echo) as it:
        await say(it, chat, "hello")
        await until_idle(it, chat, 1)
        lane = lane_of(it, chat)
        for name in ("request", "drop", "cancel_turn", "cancel", "human_input", "steered", "nonsense"):
            for args in BAD:
                await lane.signal(name, args=args)
        for args in BAD:
            assert (await rejection_of(lane, "submit", *args)).type == "InvalidInput"
        await say(it, chat, "still there?")
        view = await until_idle(it, chat, 2)
        assert await it.failed_tasks(lane) == 0
    assert view.refused == 7 * len(BAD) - 1  # a run may tell of any request that it took it


@pytest.mark.parametrize(
    ("workflow_id", "args"),
    [
        *((None, args) for args in (({"conversation_id": "another"},), ({"id": 1},), ("text",), (1, 2))),
        *((workflow_id, ()) for workflow_id in ("conversation:" + "x" * 201, "conversation:", "another")),
    ],
)
async def test_a_lane_with_a_bad_input_or_id_ends_with_a_typed_failure(
    world: MakeWorld, workflow_id: str | None, args: tuple[Any, ...]
) -> None:
    async with world(echo) as it:
        lane = await it.start_raw(*args, workflow_type="Conversation", id=workflow_id or f"conversation:{new_id()}")
        assert (await failure_of(lane)).type == "InvalidInput"
        it.started.clear()


async def test_a_turn_costs_as_much_history_in_a_long_conversation_as_in_a_short_one(world: MakeWorld) -> None:
    chat = new_id()
    async with world(echo) as it:
        runs = [run_of(it, await say(it, chat, f"number {n:02}")) for n in range(24)]
        await until_idle(it, chat, 24)
        sizes = [len(await it.raw_history(run)) for run in runs]
        last = it.model.requests[-1]
    assert len(texts(last)) == 47
    assert sizes[-1] < 1.03 * sizes[2]


async def test_a_lane_rotates_with_a_turn_open_and_loses_nothing(
    world: MakeWorld, short_history_client: Client
) -> None:
    async with waiting_turn(world, "request 0", server=short_history_client) as (it, chat, gate, first):
        for n in range(1, 30):
            await say(it, chat, f"request {n}")
        assert (await say(it, chat, "again", "x")).duplicate is False
        assert (await say(it, chat, "again", "x")).duplicate is True
        gate.go_on.set()
        for turns in range(1, 32):  # each in its own time: thirty turns are seconds of work
            await it.until(partial(gate.has_started, turns))
        view = await until_idle(it, chat, 31)
        executions = await it.executions(lane_of(it, chat))
        last = it.model.requests[-1]
    assert gate.started_for == [*(f"request {n}" for n in range(30)), "again"]
    assert view.accepted == 31
    assert {end for _, end in turn_ends(view)} == {"completed"}
    assert len(executions) > 3
    assert first.position == 0
    assert len([text for text in texts(last) if text.startswith("request")]) == 30


def waits_then_escalates(body: dict[str, Any]) -> Reply:
    waited = any(block["type"] == "tool_result" for block in body["messages"][-1]["content"])
    return calls(("escalate", {"reason": "the shop is shut"})) if waited else calls(("wait", {"for": "it"}))


@pytest.mark.parametrize(
    ("is_terminated", "end", "said"),
    [(False, "escalated", "asked: the shop is shut"), (True, "cancelled", "somebody terminated it in Temporal")],
)
async def test_a_lane_that_rotated_records_the_end_of_its_turn_as_any_lane_does(
    world: MakeWorld,
    short_history_client: Client,
    is_terminated: bool,
    end: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_terminated:  # such a run signals nothing, and is found by the rare look
        monkeypatch.setattr(status, "SIGNALLED_PAUSE", timedelta(seconds=1))
    chat, gate = new_id(), Gate()
    async with world(waits_then_escalates, gate.tool, server=short_history_client) as it:
        submitted = await say(it, chat, "buy it")
        await it.until(gate.has_started)
        first = (await lane_of(it, chat).describe()).run_id

        async def has_rotated() -> bool:
            await lane_of(it, chat).signal("drop", {"request_id": "nobody's"})
            return bool((await lane_of(it, chat).describe()).run_id != first)

        await it.until(has_rotated)
        if is_terminated:
            await run_of(it, submitted).terminate("by hand")
        gate.go_on.set()
        view = await until_idle(it, chat, 1)
    assert [(turn.end, turn.said[: len(said)]) for turn in view.recent] == [(end, said)]


async def test_a_full_lane_refuses_with_a_hint(world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.decisions.lane.MAX_QUEUED", 2)
    async with waiting_turn(world, "runs") as (it, chat, gate, _):
        for text in ("one", "two"):
            await say(it, chat, text, text)
        with pytest.raises(RejectedError, match=r"the lane is full: .* try again in 5 s"):
            await say(it, chat, "three")
        assert (await say(it, chat, "two", "two")).duplicate
        await lane_of(it, chat).signal("request", {"request_id": "four", "goal": "four"})
        gate.go_on.set()
        view = await until_idle(it, chat, 3)
    assert (view.accepted, view.refused, len(view.recent)) == (3, 1, 3)


def test_a_request_needs_words_and_takes_them_once() -> None:
    for body in ({}, {"goal": "a", "messages": [{"role": "user", "content": "b"}]}, {"goal": "a", "extra": 1}):
        with pytest.raises(ValueError):
            SubmitRequest.model_validate({"request_id": "r", **body})


async def test_a_lane_that_closes_ends_with_its_last_request_and_the_next_opens_another(world: MakeWorld) -> None:
    chat = new_id()
    async with world(echo) as it:
        for goal in ("first", "second"):
            request = SubmitRequest(request_id=goal, goal=goal)
            taken = await submit_to_lane(it.client, it.queue, chat, request, closes=True, shares_as="plan")
            it.started.append(ids.conversation_workflow_id(chat))
            event = await asyncio.wait_for((await wait_for_run(it, taken)).result(), 20)
            assert event["payload"]["outcome"] == f"you said: {goal}"
            await asyncio.wait_for(lane_of(it, chat).result(), 20)
        view = await query_view(it, chat)
    assert [turn.request_id for turn in view.recent] == ["second"]


async def test_a_request_that_a_closing_lane_refuses_leaves_no_lane_open(world: MakeWorld) -> None:
    chat = new_id()
    async with world(echo) as it:
        body = SubmitRequest.model_construct(request_id="bad", goal="")
        with pytest.raises(WorkflowUpdateFailedError):
            await submit_to_lane(it.client, it.queue, chat, body, closes=True)
        await asyncio.wait_for(lane_of(it, chat).result(), 20)


async def test_the_work_begins_once_a_person_has_made_each_choice(world: MakeWorld) -> None:
    chat = new_id()
    choices = [{"name": "sales", "options": ["a.csv", "b.csv"]}, {"name": "rates", "options": ["1.csv", "2.csv"]}]
    async with world(echo) as it:
        taken = await say(it, chat, "sum it up", choices=choices)
        run = await wait_for_run(it, taken)
        first = (await it.until_state(run, status="waiting_on_human", question=True))["question"]
        assert not it.model.requests
        shown = StringIO()
        print_run(Console(file=shown, width=120), await read_details(it.client, taken.run_id), Path("/nowhere"))
        assert "one of: a.csv, b.csv" in shown.getvalue()
        with pytest.raises(WorkflowUpdateFailedError):
            await run.execute_update("answer", {"text": "c.csv"})
        await run.execute_update("answer", {"text": "b.csv", "question_id": first["id"]})

        async def asks_next() -> bool:
            question = (await it.state(run))["question"]
            return bool(question) and question["id"] != first["id"]

        await it.until(asks_next)
        await run.execute_update("answer", {"text": "1.csv"})
        await result_of(run)
        await it.replay()
    assert (first["kind"], first["options"]) == ("choice", ["a.csv", "b.csv"])
    assert texts(it.model.requests[0])[-2:] == [
        "A person was asked which one sales is. The answer: b.csv",
        "A person was asked which one rates is. The answer: 1.csv",
    ]


async def test_a_cancel_before_a_choice_is_made_ends_the_turn_without_a_model_call(world: MakeWorld) -> None:
    chat = new_id()
    async with world(echo) as it:
        taken = await say(it, chat, "sum it up", choices=[{"name": "sales", "options": ["a.csv", "b.csv"]}])
        run = await wait_for_run(it, taken)
        await it.until_state(run, question=True)
        await run.signal("cancel")
        await expect_cancelled(run)
        await until_idle(it, chat, 1)
    assert not it.model.requests
