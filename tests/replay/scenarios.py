"""What a run can go through, one entry for each way. Their histories are recorded by `record`, and replayed for ever.

To add one: an entry in `SCENARIOS`, then `make histories`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from perdure.activities.effects.ledger import LedgerEntry
from perdure.activities.providers.prices import Price
from perdure.activities.run.status import read_snapshot
from perdure.activities.storage.store import LocalStore
from perdure.activities.tools.interface import PreflightTool
from perdure.client.runs import fork_run, resume_run, wait_for_run_end
from perdure.contracts.agent import Agent
from perdure.contracts.failures import ToolFault
from perdure.contracts.model_settings import BatchSettings
from perdure.contracts.people import NoticeKind
from perdure.contracts.tool import Approval, Effect, ToolError, ToolKind, ToolOutcome
from perdure.decisions.policy.rules import parse_policy
from perdure.decisions.tool_requests import nonce_of
from perdure.features.follow_ups.activities import signal_event
from perdure.features.follow_ups.contract import Event
from perdure.testkit.message_batches import ScriptedBatches
from perdure.testkit.model_server import Reply, Script, ScriptedAnswer, calls, fails, says, slow
from perdure.testkit.tools import ScriptedTool
from tests.replay import lane_plays, mail_plays
from tests.replay.people_plays import begins_announced, begins_event, begins_notice, begins_shared_calls
from tests.replay.queue_plays import WEIGH, elsewhere, lost_at_first, unattended, weighs, weighs_much, weighs_once
from tests.workflows.conftest import Run, World
from tests.workflows.lane import say
from tests.workflows.script import forced_tool, is_summary

Play = Callable[[World, Run], Awaitable[None]]
Tool = Callable[[], ScriptedTool]

REPLIES = "discord.wait_for_reply"
ASKING = "[[rule]]\nwhen = 'true'\nthen = 'ask'"  # a policy
GOAL = {"type": "agentic.start", "payload": {"goal": "do it"}}
TYPED = {**GOAL, "payload": {"goal": "do it", "output_schema": {"type": "object", "required": ["total"]}}}
RESULT = calls(("finish", {"outcome": "counted", "result": {"total": 3}}))
CHECKED = [Agent(name="default", tools=(), accept="tests.workflows.checks:has_good_outcome")]
FINISH = calls(("finish", {"outcome": "done", "artifacts": ["artifacts/a.md"]}))
LOOK = calls(("look", {"at": "x"}), text="Frame: see.\nPlan: look.")
VOTE = calls(("vote", {}))
ASK = calls(("ask_human", {"question": "Which one?", "options": ["a", "b"]}))
CHARGE = calls(("charge", {"eur": 5}))
WORK = calls(("work", {}), ("work", {}))


async def nothing(it: World, run: Run) -> None:
    """The run needs nobody."""


@dataclass(frozen=True)
class Scenario:
    """`script` and `tools` make the world, `play` is what people and tools outside do, `ends` how it must end.

    `begins` starts a run that needs more than `args`: one that goes on from another run.
    """

    name: str
    ends: str
    script: Script
    tools: tuple[Tool, ...] = ()
    play: Play = nothing
    args: tuple[Any, ...] = (GOAL,)
    options: Mapping[str, Any] = field(default_factory=dict)  # of the start
    limits: Mapping[str, Any] = field(default_factory=dict)
    type: str = "AgentRun"
    begins: Callable[[World], Awaitable[Run]] | None = None
    rotates: bool = False  # on the server where a history is soon long


look = partial(ScriptedTool, "look")
search = partial(ScriptedTool, "search", lambda *_: "no results")
save = partial(ScriptedTool, "save", effect=Effect.keyed)
vote = partial(ScriptedTool, "vote", kind=ToolKind.signal, effect=Effect.once)
vote_again = partial(ScriptedTool, "vote", kind=ToolKind.signal, effect=Effect.keyed)
late_vote = partial(ScriptedTool, "vote", kind=ToolKind.signal, timeout=timedelta(seconds=0.3))
guarded = partial(ScriptedTool, "charge", lambda *_: "charged", effect=Effect.once, approval=Approval.always)


class Redefined(ScriptedTool, PreflightTool):
    """A tool whose server has another definition of it than the accepted one."""

    async def check_preflight(self, effect: Effect, accepts: str | None, timeout: timedelta) -> ToolOutcome | None:
        if accepts == "another":
            return None
        error = ToolError(kind=ToolFault.changed, message="charge is defined otherwise now", definition="another")
        return ToolOutcome(status="error", error=error)


redefined = partial(Redefined, "charge", lambda *_: "charged", effect=Effect.once, kind=ToolKind.mcp)


def flaky() -> ScriptedTool:
    """Works at the second attempt."""
    attempts = count(1)

    def behave(arguments: Any, context: Any) -> str:
        if next(attempts) == 1:
            raise ConnectionError("down")
        return "up"

    return ScriptedTool("look", behave)


def lost_once() -> ScriptedTool:
    """An effect whose first call is interrupted by the end of its worker."""

    def behave(arguments: Any, context: Any) -> str:
        if context.idempotency_key.endswith(":request"):
            raise ApplicationError("worker is shutting down", type="WorkerShutdown")
        return "charged"

    return ScriptedTool("charge", behave, effect=Effect.once)


def lost_after_its_record() -> ScriptedTool:
    """An effect whose worker is lost when the ledger has its result, and the run has not."""

    def behave(arguments: Any, context: Any) -> str:
        store = LocalStore(context.workspace)
        execution = store.names("ledger")[0].partition("-")[0]  # of the claim
        page = LedgerEntry(store, context.idempotency_key, context.step, execution=execution)
        page.record(ToolOutcome(result="charged"))
        raise ApplicationError("worker is shutting down", type="WorkerShutdown")

    return ScriptedTool("charge", behave, effect=Effect.once)


def failing(effect: Effect) -> ScriptedTool:
    def behave(arguments: Any, context: Any) -> str:
        raise ApplicationError("no such customer", type="tool_error", non_retryable=True)

    return ScriptedTool("charge", behave, effect=effect)


def working(effect: Effect) -> ScriptedTool:
    """Takes its time: until it is stopped, or for as long as a cancel needs to arrive."""

    async def behave(arguments: Any, context: Any) -> str:
        await asyncio.sleep(60 if effect is Effect.read else 1)
        return "worked"

    return ScriptedTool("work", behave, effect=effect)


def endless(effect: Effect) -> ScriptedTool:
    """Never returns: its own timeout ends an effect, and Temporal's a read."""

    async def behave(arguments: Any, context: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    return ScriptedTool("charge", behave, effect=effect, timeout=timedelta(seconds=0.1))


def large(size: int) -> ScriptedTool:
    return ScriptedTool("look", lambda *_: "x" * size)


def pages(size: int) -> ScriptedTool:
    """Each is another one."""
    return ScriptedTool("look", lambda arguments, _: f"{arguments['n']}: " + "lorem ipsum " * (size // 12))


def answers(*bodies: dict[str, Any]) -> Play:
    """Each question is answered by the update."""

    async def play(it: World, run: Run) -> None:
        for number, body in enumerate(bodies, 1):
            await it.until_state(run, question=True, status="waiting_on_human")
            await run.execute_update("answer", {"question_id": f"q{number}", **body})

    return play


async def accepts_a_policy(it: World, run: Run) -> None:
    """Accept a policy in a project that has none when the run begins."""
    await it.until_state(run, question=True)
    policy = parse_policy(ASKING)
    object.__setattr__(it.project, "policy", policy)
    await run.execute_update("accept_policy", {"question_id": f"policy:{policy.ref}", "decision": "approve"})
    await run.execute_update("answer", {"question_id": "q1", "decision": "deny"})


async def answers_by_signal(it: World, run: Run) -> None:
    await it.until_state(run, question=True)
    await run.signal("human_input", {"text": "b", "by": "eva"})


def sends(*results: dict[str, Any], step: int = 1, tool: str = "vote") -> Play:
    """Results from outside, one for each time that the step is awaited."""

    async def play(it: World, run: Run) -> None:
        for attempt, result in enumerate(results, 1):

            async def awaited(attempt: int = attempt) -> bool:
                state = await it.state(run)
                pending = state["status"] == "waiting_on_tool" and state["pending"]
                return bool(pending) and pending[0]["attempt"] == attempt

            await it.until(awaited)
            await it.send_result(run, step, tool, **result)

    return play


def stops(door: str, **once: Any) -> Play:
    """A cancel by signal or with Temporal's own, once the state has these values."""

    async def play(it: World, run: Run) -> None:
        await it.until_state(run, **once)
        await (run.cancel() if door == "native" else run.signal("cancel", {"reason": "enough", "by": "eva"}))

    return play


async def stops_a_model_call(it: World, run: Run) -> None:
    await it.until(lambda: len(it.model.requests) == 1)
    await run.cancel()


async def stops_a_summary(it: World, run: Run) -> None:
    await it.until(lambda: any(is_summary(request) for request in it.model.requests))
    await run.signal("cancel", {"reason": "enough"})


async def delivers(it: World, run: Run) -> None:
    """A result that brings back the nonce of its request, as the gateway takes it."""
    await it.until_pending(run, 1)
    state = (await read_snapshot(run)).state
    payload = {"run_id": run.id.removeprefix("run:"), "step": 1, "tool": "vote", "status": "ok", "result": "yes"}
    event = {"type": "agentic.tool_result", "payload": payload, "nonce": nonce_of(state, state.calls[0])}
    await run.execute_update("deliver_result", event)


async def bothers(it: World, run: Run) -> None:
    """Signals that mean nothing, and an answer that does not fit, before the one that does."""
    await it.until_pending(run, 1)
    await run.signal("tool_result", {"payload": 5})
    await run.signal("cancel", args=[{}, {}])
    await run.signal("human_input", {"text": "nobody asked"})
    await run.signal("no_such_signal", {"a": 1})
    await it.send_result(run, 9, "other", run_id="somebody-else")
    await it.send_result(run, 1, "vote")
    await it.until_pending(run, 2)
    await it.send_result(run, 1, "vote", result="late")
    await it.send_result(run, 2, "vote")


async def votes_and_answers(it: World, run: Run) -> None:
    """Alternately, over the rotations in between."""
    for step in range(1, ROUNDS + 1):
        if step % 2:
            await it.until_pending(run, step)
            await it.send_result(run, step, "vote")
        else:
            await it.until_state(run, question=True, step=step)
            await run.signal("human_input", {"text": "b"})


async def moves_and_is_approved(it: World, run: Run) -> None:
    """So much comes while a person is waited for that the wait goes on in another execution."""
    await it.until_state(run, question=True)
    while (await run.describe()).run_id == run.first_execution_run_id:
        await run.signal("no_such_signal")
    await it.until_state(run, question=True)
    await run.signal("human_input", {"decision": "approve"})


async def moves_and_gets_its_result(it: World, run: Run) -> None:
    """The same while a result is awaited from outside."""
    await it.until_pending(run, 1)
    while (await run.describe()).run_id == run.first_execution_run_id:
        await run.signal("no_such_signal")
    await it.send_result(run, 1, "vote")


async def ended_run(it: World) -> Run:
    run = await it.start_raw(GOAL)
    await wait_for_run_end(it.client, run.id)
    return run


async def resumes(it: World) -> Run:
    return await resume_run(it.client, it.queue, (await ended_run(it)).id)


async def resumes_edited(it: World) -> Run:
    """The agent has another prompt by the time its run is resumed."""
    run = await ended_run(it)
    agents = it.project.agents
    assert isinstance(agents, dict)
    agents["default"] = agents["default"].evolve(prompt="Be brief.")
    return await resume_run(it.client, it.queue, run.id)


async def forks(it: World) -> Run:
    return await fork_run(it.client, it.queue, (await ended_run(it)).id, 1, "look closer")


LEDGER = Path("full") / ".store" / "ledger"  # of the run "full"


async def begins_with_a_broken_ledger(it: World) -> Run:
    """A file lies where the ledger's folder should be."""
    path = it.project.workspaces / LEDGER
    path.parent.mkdir(parents=True)
    path.touch()
    return await it.start(run_id="full")


async def mends_the_ledger(it: World, run: Run) -> None:
    await it.until_event(run, EventType.EVENT_TYPE_TIMER_STARTED)
    (it.project.workspaces / LEDGER).unlink()


BUSY = {"status": "error", "result": None, "error": {"kind": "busy", "message": "later", "retryable": True}}
GIVEN_UP = {"status": "error", "result": None, "error": {"kind": "lost", "message": "no", "retryable": False}}
# About 12 events a step, and a history is long after 120: the number of executions does not hang on a few events.
ROUNDS = 16
RATE_LIMIT, OUTAGE = fails(429, retry_after=0.02), fails(529, retry_after=0.02)
TOO_LONG = fails(400, message="prompt is too long: 250000 tokens > 200000 maximum")
CUT_OFF = says("half", stop_reason="max_tokens")
REFRAME = calls(("reframe", {"frame": "another view"}))

JOURNAL = calls(("update_run_journal", {"current_state": "begun"}), ("get_run_journal", {}))
SMALL = {"window": 20_000, "max_steps": 50}
SOON_OVER = {"soft_limit": "1ms", "hard_limit": "1h"}
ATTIC = "look in the attic"


def circling(body: dict[str, Any]) -> ScriptedAnswer:
    """Searches the same for ever, until it gets another instruction."""
    if forced_tool(body) == "reframe":
        return REFRAME
    if forced_tool(body) == "ask_human":
        return ASK
    return FINISH if ATTIC in str(body["messages"]) else calls(("search", {"q": "x"}))


def unforced(body: dict[str, Any]) -> ScriptedAnswer:
    """Of a provider that forces nothing."""
    return FINISH if "keep going" in str(body["messages"]) else calls(("search", {"q": "x"}))


def reading(summary: Reply) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    """Reads sixteen pages, or until it gets another instruction."""

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if is_summary(body):
            return summary
        if forced_tool(body) == "ask_human":
            return ASK
        number = next(numbers)
        return FINISH if number > 16 or ATTIC in str(body["messages"]) else calls(("look", {"n": number}))

    numbers = count(1)
    return script


REPLY = {
    "platform": "discord",
    "channelId": "dm-b",
    "messageId": "r",
    "userId": "B",
    "text": "Friday",
    "ts": 1_700_000_000_000,
}


def reply_to(message: str, **fields: Any) -> dict[str, Any]:
    raw = {"discord": {"replyToMessageId": message}}
    return {"type": "evt.adapter.message.created", "data": {**REPLY, "raw": raw, **fields}}


def task(workflow_id: str, kind: str, task_id: str = "t1", **given: Any) -> dict[str, Any]:
    data = {"workflowId": workflow_id, "taskId": task_id, "kind": kind, "description": "d", "input": given}
    return {"type": "cmd.workflow.task.create", "data": data}


def follows(kind: str = "", run_id: str | None = None, **given: Any) -> Callable[[World], Awaitable[Run]]:
    """A follow-up with its first task, if any; where that waits for a reply, to the message that it is named for."""

    async def begin(it: World) -> Run:
        name = uuid4().hex[:12]
        target = {"session_id": name, "request_client": "discord"}
        definition = {"origin": target, "resumeTarget": target, "summary": "Lunch with B.", "completion": "all"}
        data = {"workflowId": name, "definition": definition, "runId": run_id}
        about = {"channelId": "dm-b", "messageId": name} if kind == REPLIES else {}
        run: Run = await it.client.start_workflow(
            "FollowUp",
            {"type": "cmd.workflow.create", "headers": target, "data": data},
            id=f"wf:{name}",
            task_queue=it.queue,
            start_signal="task_create" if kind else None,
            start_signal_args=[task(name, kind, **about, **given)] if kind else [],
        )
        it.started.append(run.id)
        return run

    return begin


LEAD = Agent(name="default", tools=(), peers=("writer",))
WRITER = Agent(name="writer", prompt="I am the writer.", tools=())
PEERS = {"agents": (LEAD, WRITER)}
A, B = ({"id": name, "agent": "writer", "instructions": f"Do {name}."} for name in "ab")
DELEGATE = calls(("delegate", {"subtasks": [A, {**B, "depends_on": ["a"]}]}))
CIRCLE = calls(("delegate", {"subtasks": [{**A, "depends_on": ["b"]}, {**B, "depends_on": ["a"]}]}))
BESIDE = calls(("delegate", {"subtasks": [A, B]}))
ANY = calls(("delegate", {"subtasks": [A, B], "join": "any"}))
SOON = calls(("delegate", {"subtasks": [{**A, "timeout": "200ms"}]}))
OUTSIDE = {
    "agents": (
        Agent(name="default", tools=(), peers=("outsider",)),
        Agent(name="outsider", tools=(), mailbox=True),
    )
}
ASKED = [{**each, "agent": "outsider"} for each in (A, {**B, "timeout": "200ms"})]
BEGUN = {
    "type": "agentic.delegate",
    "run_id": "found",
    "agent": "default",
    "step": 1,
    "depth": 0,
    "max_depth": 3,
    "budget": {"steps": 5},
    "subtasks": [A],
}


def leading(
    delegates: Reply, *, a: ScriptedAnswer = FINISH, b: ScriptedAnswer = FINISH
) -> Callable[[dict[str, Any]], ScriptedAnswer]:
    """The lead delegates once, and the writer answers `a` or `b`."""

    def script(body: dict[str, Any]) -> ScriptedAnswer:
        if "I am the writer" in str(body["system"]):
            return a if "Do a" in str(body["messages"]) else b
        return FINISH if len(body["messages"]) > 1 else delegates

    return script


def begins_with(name: str) -> Callable[[World], Awaitable[Run]]:
    """A run that delegates; what is recorded is the workflow below it that is called so."""

    async def begin(it: World) -> Run:
        run = await it.start_raw(GOAL)
        below: Run = it.client.get_workflow_handle(f"{run.id}{name}")

        async def is_there() -> bool:
            return (await it.client.count_workflows(f"WorkflowId = '{below.id}'")).count > 0

        await it.until(is_there)
        return below

    return begin


async def is_blocked(it: World, run: Run) -> None:
    async def waits() -> bool:
        state = await it.state(run)
        return bool(state["tasks"]) and all(each["state"] == "blocked" for each in state["tasks"])

    await it.until(waits)


async def replies_and_answers(it: World, run: Run) -> None:
    """After bad signals, and with one task more."""
    name = run.id.removeprefix("wf:")
    await is_blocked(it, run)
    await run.signal("task_resolved", {"no": "such field"})
    await run.signal("no_such_signal", {})
    await run.execute_update("create_task", task(name, "prompt", "t2", text="Go?"))
    await run.execute_update("create_task", task(name, "prompt", "t3", text="When?"))
    await is_blocked(it, run)
    await run.signal("human_input", {"text": "noon", "question_id": "t3"})
    for _ in range(2):
        await signal_event(it.client, it.queue, Event.model_validate(reply_to(name)))
    await run.execute_update("answer", {"text": "yes"})


async def a_follow_up_of_an_open_run(it: World) -> Run:
    run = await it.start()
    await it.until_state(run, question=True)
    return await follows("prompt", run.id.removeprefix("run:"), text="Go?")(it)


async def its_run_ends(it: World, run: Run) -> None:
    await run.execute_update("answer", {"text": "yes"})
    turn = it.client.get_workflow_handle(f"run:{(await it.state(run))['runs'][0]}")
    await is_watched(it, turn)
    await turn.execute_update("answer", {"text": "a"})


async def ends_watched(it: World, run: Run) -> None:
    """By a follow-up, and by a workflow that is gone."""
    await it.until_state(run, question=True)
    await run.signal("watch_end", {"no": "such field"})
    await run.signal("watch_end", {"workflow_id": "nobody"})
    await follows("prompt", run.id.removeprefix("run:"), text="Go?")(it)
    await is_watched(it, run, 2)
    await run.execute_update("answer", {"text": "a"})


async def is_watched(it: World, run: Run, watchers: int = 1) -> None:
    async def has_them() -> bool:
        return len((await read_snapshot(run)).state.watchers) == watchers

    await it.until(has_them)


def gives_up(door: str) -> Play:
    async def play(it: World, run: Run) -> None:
        await is_blocked(it, run)
        await (run.cancel() if door == "native" else run.signal("cancel"))

    return play


async def sends_a_message_beside(it: World, run: Run) -> None:
    """The clock of its first task runs on meanwhile."""
    await run.signal("task_create", task(run.id.removeprefix("wf:"), "notify", "t2", channelId="c", text="x"))


async def bothers_a_follow_up(it: World, run: Run) -> None:
    """Until its history is long; then the reply."""
    name = run.id.removeprefix("wf:")
    await is_blocked(it, run)
    for number in range(60):
        await run.signal("task_resolved", {"taskId": "t1", "event": reply_to("another", messageId=f"r{number}")})
        await it.state(run)
    await signal_event(it.client, it.queue, Event.model_validate(reply_to(name)))


async def is_resumed_under_a_used_id(it: World, run: Run) -> None:
    await say(it, run.id.removeprefix("wf:"), "something else", f"{run.id}:1")
    await run.signal("task_resolved", {"taskId": "t1", "result": "yes"})


async def topic_of_a_follow_up(it: World) -> Run:
    """The topic that meets a follow-up."""
    run = await follows(REPLIES)(it)
    await is_blocked(it, run)
    return it.client.get_workflow_handle(f"topic:discord:dm-b:{run.id.removeprefix('wf:')}")


async def meets(it: World, run: Run) -> None:
    message = run.id.rpartition(":")[2]
    await run.signal("no_such_signal")
    await signal_event(it.client, it.queue, Event.model_validate(reply_to(message)))
    await it.client.get_workflow_handle(f"wf:{message}").result()
    await run.cancel()  # or it would wait for another event, a day long


async def topic_without_a_subscriber(it: World) -> Run:
    """The one who waits has gone, and the time to live has passed: the first event ends it."""
    key = uuid4().hex[:12]
    left = {"subscriber": f"wf:{key}", "taskId": "t1"}
    event = Event.model_validate(reply_to("m")).model_dump(mode="json", exclude_none=True)
    topic = {"type": "topic.continue", "key": key, "ends_at": 1, "subscriptions": [left], "events": [event]}
    run: Run = await it.client.start_workflow("EventTopic", topic, id=f"topic:{key}", task_queue=it.queue)
    return run


async def finds_its_delegation(it: World) -> Run:
    await it.client.start_workflow("Delegation", BEGUN, id="run:found/delegation:1", task_queue=it.queue)
    return await it.start(run_id="found")


async def waits_for_a_writer(it: World, run: Run) -> None:
    await it.until(lambda: any("I am the writer" in str(request["system"]) for request in it.model.requests))


async def stops_while_delegating(it: World, run: Run) -> None:
    await waits_for_a_writer(it, run)
    await run.signal("cancel", {"reason": "enough"})


async def stops_a_delegation(it: World, run: Run) -> None:
    await waits_for_a_writer(it, run)
    await run.cancel()


# What the scenarios of one kind have in common.
lane = partial(
    Scenario, ends="cancelled", script=lane_plays.asks_or_says, type="Conversation", begins=lane_plays.a_lane
)
turn = partial(Scenario, ends="completed", script=lane_plays.asks_or_says)
follow_up = partial(Scenario, script=[], type="FollowUp", begins=follows(REPLIES))
topic = partial(Scenario, script=[], type="EventTopic")
delegation = partial(Scenario, type="Delegation", begins=begins_with("/delegation:1"), limits=PEERS)


async def a_pool(it: World) -> Run:
    """The pool whose only run has ended."""
    run = await it.start()
    with suppress(WorkflowFailureError):
        await run.result()
    return it.pool


async def a_pool_that_is_left(it: World) -> Run:
    run = await it.start()
    await it.until_state(run, batched_at=True)
    await is_stopped(it, run)
    return it.pool


async def a_busy_pool(it: World) -> Run:
    """It continues as new with its batches open."""
    executions: set[str] = set()
    while len(executions) < 2:
        await it.start()
        await it.until(lambda: len(it.model.batches.batches) == len(it.started))
        executions.add((await it.pool.describe()).run_id)
    it.model.batches.end_batches()
    return it.pool


async def is_stopped_in_a_batch(it: World, run: Run) -> None:
    await it.until_state(run, batched_at=True)
    await is_stopped(it, run)


async def is_stopped(it: World, run: Run) -> None:
    await run.signal("cancel", {"reason": "enough"})
    await wait_for_run_end(it.client, run.id)


AT_ONCE = {"pooling": BatchSettings(size=1)}
LATER = {"pooling": BatchSettings(wait=timedelta(hours=1))}
PACED = {**GOAL, "payload": {"goal": "do it", "pace": "batch"}}

SCENARIOS = (
    # in batches
    Scenario("batched", "completed", [LOOK, FINISH], (look,), limits=AT_ONCE),
    Scenario("batched-refused", "failed ModelRefused", [fails(400)], limits=AT_ONCE),
    Scenario("batched-without-batches", "failed ModelRefused", [FINISH], args=(PACED,)),
    Scenario("batched-cancelled", "cancelled", [FINISH], play=is_stopped_in_a_batch, limits=LATER),
    Scenario("pool", "over", [FINISH], begins=a_pool, limits=AT_ONCE, type="ModelBatches"),
    Scenario("pool-left", "over", [FINISH], begins=a_pool_that_is_left, limits=LATER, type="ModelBatches"),
    Scenario(
        "pool-refused",
        "over",
        [FINISH],
        begins=a_pool,
        limits={**AT_ONCE, "batches": ScriptedBatches(max_requests=0)},
        type="ModelBatches",
    ),
    Scenario(
        "pool-rotated",
        "over",
        [FINISH],
        begins=a_busy_pool,
        limits={**AT_ONCE, "batches": ScriptedBatches(seconds=None)},
        type="ModelBatches",
        rotates=True,
    ),
    # completed
    Scenario("finished", "completed", [LOOK, FINISH], (look,)),
    Scenario("finished-in-plain-text", "completed", [says("It is 4.")]),
    Scenario("many-steps", "completed", [LOOK, calls(("save", {"n": 1})), LOOK, REFRAME, FINISH], (look, save)),
    Scenario(
        "reads-fused",
        "completed",
        [LOOK, calls(("look", {"n": 1}), ("look", {"n": 2})), FINISH],
        (look,),
        limits={"fuses": True},
    ),
    Scenario("reads-in-parallel", "completed", [calls(*[("look", {"n": n}) for n in range(4)]), FINISH], (look,)),
    Scenario(
        "reads-and-effects-in-one-turn",
        "completed",
        [calls(("look", {}), ("look", {}), ("save", {}), ("save", {}), ("look", {})), FINISH],
        (look, save),
    ),
    Scenario("large-arguments", "completed", [calls(("look", {"text": "x" * 20_000})), FINISH], (look,)),
    Scenario("large-result", "completed", [LOOK, FINISH], (partial(large, 100_000),)),
    Scenario("tool-retried", "completed", [LOOK, FINISH], (flaky,)),
    Scenario("tool-failed", "completed", [CHARGE, FINISH], (partial(failing, Effect.keyed),)),
    Scenario("effect-failed", "completed", [CHARGE, FINISH], (partial(failing, Effect.once),)),
    Scenario("unknown-tool", "completed", [calls(("no_such_tool", {})), FINISH]),
    Scenario("empty-reply", "completed", lambda body: FINISH if "empty" in str(body["messages"]) else says("")),
    Scenario("model-retried", "completed", [fails(529, retry_after=0.02, then=LOOK), FINISH], (look,)),
    # escalated
    Scenario("escalated", "escalated asked", [calls(("escalate", {"reason": "not my trade"}))]),
    Scenario("steps-used-up", "escalated step_budget", lambda _: LOOK, (look,), limits={"max_steps": 2}),
    Scenario("turns-used-up", "escalated turn_budget", lambda _: LOOK, (look,), limits={"max_turns": 2}),
    Scenario("reframes-used-up", "escalated reframe_budget", lambda _: REFRAME, limits={"max_reframes": 1}),
    Scenario("step-never-issued", "escalated step_never_issued", [VOTE], (vote,), sends({}, step=2)),
    Scenario("wrong-tool", "escalated wrong_tool", [VOTE], (vote,), sends({}, tool="fetch")),
    Scenario("tokens-used-up", "escalated token_budget", lambda _: LOOK, (look,), limits={"budget_tokens": 1}),
    Scenario(
        "money-used-up",
        "escalated money_budget",
        lambda _: LOOK,
        (look,),
        limits={"budget_usd": 1e-9, "prices": {"scripted": Price(input=1, output=1, cache_read=1, cache_write=1)}},
    ),
    Scenario("context-too-long", "escalated context", [TOO_LONG], play=answers({"decision": "continue"})),
    Scenario("no-valid-result", "escalated result_invalid", lambda _: says("Done."), args=(TYPED,)),
    Scenario("not-accepted", "escalated not_accepted", lambda _: says("Done."), limits={"agents": CHECKED}),
    Scenario("accepted", "completed", [says("Done."), says("A good one.")], limits={"agents": CHECKED}),
    Scenario("typed-result", "completed", [FINISH, RESULT], args=(TYPED,)),
    Scenario("model-declined", "escalated model_declined", [says("I will not.", stop_reason="refusal")]),
    # failed
    Scenario("invalid-input", "failed InvalidInput", [], args=({"type": "agentic.start"},)),
    Scenario("no-input", "failed InvalidInput", [], args=()),
    Scenario("unknown-agent", "failed UnknownAgent", [], args=({**GOAL, "payload": {"goal": "x", "agent": "nobody"}},)),
    Scenario("unknown-workflow-type", "failed UnknownWorkflowType", [], type="AgentRum"),
    Scenario("model-refused", "failed ModelRefused", [LOOK, fails(401)], (look,)),
    Scenario("model-refused-at-once", "failed ModelRefused", [fails(401)]),
    Scenario("rate-limited", "failed RateLimited", [RATE_LIMIT]),
    Scenario("model-unavailable", "failed ModelUnavailable", [LOOK, OUTAGE], (look,)),
    Scenario(
        "out-of-time",
        "timed_out HardLimit",
        [WORK, FINISH],
        (partial(working, Effect.keyed),),
        limits={"soft_limit": "1ms", "hard_limit": "2ms"},
    ),
    Scenario(
        "turn-without-end",
        "failed TurnLimit",
        [slow(says("word " * 400), 60)],
        limits={"turn_timeout": "1s", "turn_limit": "2s"},
    ),
    Scenario("model-unusable", "failed ModelUnusable", lambda _: CUT_OFF),
    # cancelled
    Scenario("cancelled-while-asking", "cancelled", [ASK], play=stops("signal", question=True)),
    Scenario("cancelled-natively-while-asking", "cancelled", [ASK], play=stops("native", question=True)),
    Scenario("cancelled-before-approval", "cancelled", [CHARGE], (guarded,), stops("signal", question=True)),
    Scenario("cancelled-in-doubt", "cancelled", [CHARGE], (lost_once,), stops("signal", question=True)),
    Scenario("cancelled-while-voting", "cancelled", [VOTE], (vote,), stops("native", status="waiting_on_tool")),
    Scenario("cancelled-during-a-read", "cancelled", [WORK], (partial(working, Effect.read),), stops("signal", step=2)),
    Scenario(
        "cancelled-during-an-effect", "cancelled", [WORK], (partial(working, Effect.once),), stops("signal", step=2)
    ),
    Scenario(
        "cancelled-natively-during-an-effect",
        "cancelled",
        [WORK],
        (partial(working, Effect.keyed),),
        stops("native", step=2),
    ),
    Scenario("cancelled-during-a-model-call", "cancelled", [slow(says("long"), 60)], play=stops_a_model_call),
    Scenario("cancelled-with-the-start", "cancelled", [LOOK], (look,), options={"start_signal": "cancel"}),
    Scenario(
        "cancelled-while-summarising",
        "cancelled",
        reading(slow(says("long"), 60)),
        (partial(pages, 4_000),),
        stops_a_summary,
        limits=SMALL,
    ),
    Scenario("stopped-in-circles", "cancelled", circling, (search,), answers({"decision": "stop"})),
    # ladders and limits
    Scenario("in-circles", "completed", circling, (search,), answers({"text": "look in the attic"})),
    Scenario("in-circles-unforced", "completed", unforced, (search,), answers({"decision": "continue"})),
    Scenario("compacted", "completed", reading(says("So far: lorem.")), (partial(pages, 4_000),), limits=SMALL),
    Scenario(
        "pruned-and-asked",
        "completed",
        reading(says("So far: lorem.")),
        (partial(pages, 20_000),),
        answers({"text": "look in the attic"}),
        limits=SMALL,
    ),
    Scenario("out-of-time-partly", "completed", [LOOK, says("Half of it.")], (partial(large, 10),), limits=SOON_OVER),
    Scenario("journaled", "completed", [JOURNAL, LOOK, FINISH], (look,)),
    Scenario(
        "approval-expired", "completed", [CHARGE, FINISH], (partial(guarded, approval_timeout=timedelta(seconds=0.2)),)
    ),
    # people
    Scenario("answered-by-signal", "completed", [ASK, FINISH], play=answers_by_signal),
    Scenario("answered-by-update", "completed", [ASK, FINISH], play=answers({"text": "b", "by": "eva"})),
    Scenario(
        "approved",
        "completed",
        [CHARGE, CHARGE, FINISH],
        (guarded,),
        answers({"decision": "approve"}, {"decision": "approve"}),
    ),
    Scenario(
        "approved-for-the-run", "completed", [CHARGE, CHARGE, FINISH], (guarded,), answers({"decision": "approve_tool"})
    ),
    Scenario(
        "changed-while-approved",
        "completed",
        [CHARGE, FINISH],
        (guarded,),
        answers({"decision": "approve", "arguments": {"eur": 3}}),
    ),
    Scenario("policy-accepted", "completed", [CHARGE, FINISH], (guarded,), accepts_a_policy),
    Scenario(
        "redefined-tool", "completed", [CHARGE, CHARGE, FINISH], (redefined,), answers({"decision": "approve_tool"})
    ),
    Scenario("redefined-tool-denied", "completed", [CHARGE, FINISH], (redefined,), answers({"decision": "deny"})),
    Scenario("denied", "completed", [CHARGE, FINISH], (guarded,), answers({"decision": "deny", "text": "too dear"})),
    Scenario("in-doubt-run-again", "completed", [CHARGE, FINISH], (lost_once,), answers({"decision": "run_again"})),
    Scenario(
        "in-doubt-use-result",
        "completed",
        [CHARGE, FINISH],
        (lost_once,),
        answers({"decision": "use_result", "text": "receipt 7"}),
    ),
    Scenario("in-doubt-give-up", "completed", [CHARGE, FINISH], (lost_once,), answers({"decision": "give_up"})),
    Scenario("effect-out-of-time", "completed", [CHARGE, FINISH], (partial(endless, Effect.once),)),
    Scenario("read-out-of-time", "completed", [CHARGE, FINISH], (partial(endless, Effect.read),)),
    Scenario("lost-after-its-record", "completed", [CHARGE, FINISH], (lost_after_its_record,)),
    Scenario(
        "ledger-broken-for-a-while",
        "completed",
        [CHARGE, FINISH],
        (partial(ScriptedTool, "charge", effect=Effect.once),),
        mends_the_ledger,
        begins=begins_with_a_broken_ledger,
    ),
    # beside the runs
    Scenario("reconciled", "reported", [], args=({"after": ""},), type="Reconcile"),
    # conversations
    lane("lane", play=lane_plays.everything_is_said_to_it),
    lane("lane-rotated", play=lane_plays.it_rotates, rotates=True),
    lane(
        "lane-rotated-signalled", play=lane_plays.it_rotates, rotates=True
    ),  # of the end of the turn that it rotated with
    turn("turn", begins=lane_plays.a_turn, play=lane_plays.it_is_steered),
    turn("turn-reads-later", begins=lane_plays.a_turn_that_cannot_read, play=lane_plays.it_can_read_again),
    lane("lane-closes", ends="over", begins=lane_plays.a_closing_lane, play=lane_plays.a_choice_is_made),
    turn("turn-chooses", begins=lane_plays.a_turn_that_chooses, play=lane_plays.its_choice_is_made),
    # peers outside
    delegation(
        "delegation-outside",
        "done",
        [calls(("delegate", {"subtasks": ASKED, "join": "any"})), FINISH],
        play=mail_plays.a_peer_outside_replies,
        limits=OUTSIDE,
    ),
    # follow-ups, and the topics where they meet events
    Scenario(
        "waits-for-a-reply",
        "completed",
        [calls(("workflow_wait_for_reply", {"description": "B", "channelId": "c", "messageId": "m"})), FINISH],
        limits={"follow_ups": ()},
    ),
    follow_up("follow-up-resumed", "completed", begins=follows(REPLIES, "nobody"), play=replies_and_answers),
    follow_up(
        "follow-up-of-an-open-run",
        "completed",
        script=[ASK, says("done"), says("done")],
        begins=a_follow_up_of_an_open_run,
        play=its_run_ends,
    ),
    Scenario("watched", "completed", [ASK, says("done")], play=ends_watched),
    follow_up("follow-up-timed-out", "completed", begins=follows(REPLIES, timeoutMs=50)),
    follow_up("follow-up-notified", "completed", begins=follows("notify", channelId="c", text="x")),
    follow_up("follow-up-sends-beside", "completed", begins=follows("wait", delayMs=2000), play=sends_a_message_beside),
    follow_up("follow-up-without-tasks", "failed NoTasks", begins=follows("", "nobody")),
    follow_up("follow-up-refused", "failed Refused", script=[says("done")], play=is_resumed_under_a_used_id),
    follow_up("follow-up-cancelled", "cancelled", play=gives_up("signal")),
    follow_up("follow-up-cancelled-natively", "cancelled", play=gives_up("native")),
    follow_up("follow-up-rotated", "completed", play=bothers_a_follow_up, rotates=True),
    topic("topic-met", "cancelled", begins=topic_of_a_follow_up, play=meets),
    topic("topic-over", "over", begins=topic_without_a_subscriber),
    # delegated
    Scenario("delegated", "completed", leading(DELEGATE), limits=PEERS),
    Scenario("delegated-to-a-stranger", "completed", leading(calls(("delegate", {"subtasks": [A]})))),
    Scenario("delegated-in-a-circle", "completed", leading(CIRCLE), limits=PEERS),
    Scenario("delegation-found", "completed", leading(SOON), begins=finds_its_delegation, limits=PEERS),
    Scenario(
        "cancelled-while-delegating",
        "cancelled",
        leading(BESIDE, a=slow(says("late"), 60)),
        play=stops_while_delegating,
        limits=PEERS,
    ),
    Scenario("subtask", "completed", leading(DELEGATE), begins=begins_with(".1-b"), limits=PEERS),
    delegation("joined", "done", leading(DELEGATE)),
    delegation("joined-any", "done", leading(ANY, a=slow(says("late"), 60))),
    delegation("subtask-failed", "failed", leading(BESIDE, a=slow(says("late"), 60), b=fails(401))),
    delegation("subtask-timed-out", "failed", leading(SOON, a=slow(says("late"), 60))),
    delegation("delegation-cancelled", "cancelled", leading(BESIDE, a=slow(says("late"), 60)), play=stops_a_delegation),
    # from other runs
    Scenario("resumed", "completed", [LOOK, fails(401, then=FINISH)], (look,), begins=resumes),
    Scenario("forked", "completed", [LOOK, FINISH], (look,), begins=forks),
    Scenario(
        "not-resumable", "failed NotResumable", [], args=({"type": "agentic.resume", "payload": {"run_id": "nobody"}},)
    ),
    *[
        Scenario(
            f"definition-changed-{decision.replace('_', '-')}",
            "cancelled" if decision == "stop" else "completed",
            [LOOK, fails(401, then=FINISH)],
            (look,),
            answers({"decision": decision}),
            begins=resumes_edited,
        )
        for decision in ("use_new", "keep_old", "stop")
    ],
    # results from outside
    Scenario("voted", "completed", [VOTE, FINISH], (vote,), sends({"result": {"votes": 3}})),
    Scenario("voted-over-http", "completed", [VOTE, FINISH], (vote,), delivers),
    Scenario("voted-again", "completed", [VOTE, FINISH], (vote_again,), sends(BUSY, {"result": "now"})),
    Scenario("vote-failed", "completed", [VOTE, FINISH], (vote,), sends(GIVEN_UP)),
    Scenario("vote-never-came", "completed", [VOTE, FINISH], (late_vote,)),
    Scenario("bothered", "completed", [VOTE, VOTE, FINISH], (vote,), bothers),
    # calls of another worker
    Scenario("queued", "completed", [WEIGH, FINISH], (weighs,), elsewhere("scales", lambda _: {"grams": 12})),
    Scenario(
        "queued-large",
        "completed",
        [WEIGH, FINISH],
        (weighs_much,),
        elsewhere("large scales", lambda _: "12 g " * 20_000),
    ),
    Scenario("queued-for-nobody", "completed", [WEIGH, FINISH], (unattended,)),
    Scenario(
        "queued-and-settled",
        "completed",
        [WEIGH, FINISH],
        (weighs_once,),
        elsewhere("single scales", lost_at_first, {"decision": "run_again"}),
    ),
    # people
    Scenario("announced", "completed", [ASK, FINISH], play=answers({"text": "b"}), begins=begins_announced),
    Scenario("notice", "over", [FINISH], type="Notify", begins=begins_notice(NoticeKind.waiting)),
    Scenario("notice-to-no-channel", "cancelled", [FINISH], type="Notify", begins=begins_notice(NoticeKind.ended, "x")),
    Scenario("event-begins-a-run", "over", [FINISH], type="Inbound", begins=begins_event("run")),
    Scenario("event-begins-a-turn", "over", [FINISH], type="Inbound", begins=begins_event("turn")),
    Scenario("event-begins-nothing", "cancelled", [FINISH], type="Inbound", begins=begins_event("unusable")),
    Scenario("shared-calls", "cancelled", [], type="SharedCalls", begins=begins_shared_calls),
    # rotated
    Scenario(
        "rotated",
        "completed",
        [*[calls(("look", {"n": n}), text=f"turn {n}") for n in range(ROUNDS)], FINISH],
        (look,),
        limits={"max_steps": ROUNDS},
        rotates=True,
    ),
    Scenario(
        "rotated-while-people-and-tools-speak",
        "completed",
        [*[calls((("vote", "ask_human")[n % 2], {"question": f"Which one, {n}?"})) for n in range(ROUNDS)], FINISH],
        (vote,),
        votes_and_answers,
        limits={"max_steps": ROUNDS},
        rotates=True,
    ),
    Scenario(
        "moved-while-a-person-is-awaited",
        "completed",
        [CHARGE, FINISH],
        (guarded,),
        moves_and_is_approved,
        rotates=True,
    ),
    Scenario(
        "moved-while-a-result-is-awaited",
        "completed",
        [calls(("vote", {"n": 1})), FINISH],
        (vote,),
        moves_and_gets_its_result,
        rotates=True,
    ),
)
