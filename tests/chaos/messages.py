"""What is sent to a run: signals many times over, and messages to runs that have ended."""

import asyncio
from collections.abc import Collection

from temporalio.service import RPCError, RPCStatusCode

from perdure.client.errors import RejectedError, RunNotFoundError
from perdure.client.runs import request_cancel, submit_answer
from perdure.contracts.run.signals import CancelRequest, HumanInput
from perdure.decisions.ids import request_key
from tests.chaos.auditor import audit
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.environment import PATIENCE, Environment, retry_until_accepted
from tests.chaos.task import Task, Use

AT_A_TIME = 16  # runs; each is asked again and again what it waits for


async def say(it: Environment, run: str, step: int) -> None:
    """Sends a step's result, until the server has it. A run that has ended needs none."""
    result = {"run_id": run, "step": step, "tool": "hear", "status": "ok", "result": f"{run}/{step} heard"}
    event = {"type": "agentic.tool_result", "payload": result}

    async def sent() -> None:
        try:
            await it.handles[run].signal("tool_result", event)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    await retry_until_accepted(sent)


async def until_issued(it: Environment, run: str, steps: Collection[int]) -> None:
    """Until the tools outside have the requests. A query may tell of a step before its task is on record."""
    async with asyncio.timeout(PATIENCE):
        while not all(it.tools.requests[request_key(run, step)] for step in steps):  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.1)


async def converse(it: Environment, run: str) -> None:
    for step, tool in it.tasks[run].tools.items():
        if tool == "hear":
            await until_issued(it, run, [step])
            await say(it, run, step)


async def signals(context: ScenarioContext, *, runs: int, kills: int) -> Row:
    """R7: eight results a run, each sent three times and shuffled, while workers die and runs rotate."""
    turn: tuple[Use, ...] = (("hear", {}),) * 4
    async with context.environment(context.short_history) as it, it.person():
        workers, at_once = it.start_workers("r7", 2), asyncio.Semaphore(AT_A_TIME)

        async def start_and_signal(run: str) -> None:
            async with at_once:
                await it.start(Task(run, (turn, turn), pause=0.1), "r7")
                await shuffled(run)

        async def shuffled(run: str) -> None:
            first, second = [1, 2, 3, 4], [5, 6, 7, 8]
            await until_issued(it, run, first)
            early, late = first * 2, first + second * 3  # the third of each comes when its turn is over
            it.random.shuffle(early)
            it.random.shuffle(late)
            for step in early:
                await say(it, run, step)
            await until_issued(it, run, second)
            for step in late:
                await say(it, run, step)

        async with asyncio.TaskGroup() as senders:
            for number in range(runs):
                senders.create_task(start_and_signal(f"r7-{number}"))
            await workers.kill_some(kills, 1, 2)
        late = await it.all_ended()
        found = await audit(it, late=late)
        return row(it, found, f"{runs * 8} signals x 3; {found.rotations} rotations")


async def closed_runs(context: ScenarioContext) -> Row:
    """R8: whoever speaks to a run that has ended, or never was, hears so."""
    async with context.environment() as it:
        it.start_workers("r8", 1)
        await it.start(Task("r8", ((("charge", {}),),)), "r8")
        late = await it.all_ended()
        found = await audit(it, late=late)
        said = HumanInput(text="yes")
        for what, call, expected in (
            ("an answer to a closed run", submit_answer(it.client, "r8", said), RejectedError),
            ("a cancel of a closed run", request_cancel(it.client, "r8", CancelRequest()), RejectedError),
            ("an answer to no run", submit_answer(it.client, "nobody", said), RunNotFoundError),
            ("a cancel of no run", request_cancel(it.client, "nobody", CancelRequest()), RunNotFoundError),
            ("a result for a closed run", it.handles["r8"].signal("tool_result", {}), RPCError),
        ):
            try:
                await call
            except expected:
                continue
            except Exception as error:  # noqa: BLE001 - any other one is what is being looked for
                found.wrong(f"{what}: {error!r}")
            else:
                found.wrong(f"{what} met silence")
        return row(it, found, "5 messages, each with its answer")
