"""What people and tools do to a run, in the scenarios."""

from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType

from perdure.activities.run.status import read_snapshot
from perdure.client.runs import fork_run, resume_run, wait_for_run_end
from perdure.decisions.policy.rules import parse_policy
from perdure.decisions.tool_requests import nonce_of
from tests.replay.scenario import GOAL, Play
from tests.workflows.conftest import Run, World
from tests.workflows.script import is_summary

BUSY = {"status": "error", "result": None, "error": {"kind": "busy", "message": "later", "retryable": True}}
GIVEN_UP = {"status": "error", "result": None, "error": {"kind": "lost", "message": "no", "retryable": False}}
# About 12 events a step, and a history is long after 120: the number of executions does not hang on a few events.
ROUNDS = 16
ASKING = "[[rule]]\nwhen = 'true'\nthen = 'ask'"  # a policy


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
