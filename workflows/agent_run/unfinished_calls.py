"""The calls that a server does not finish at once, as a run follows them: tasks, and what servers ask people.

The id of a task is in history before it is first looked at. Looks are attempts of one activity, so one that finds
nothing new adds no event.
"""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio.exceptions import ActivityError

from perdure.contracts.bounds import Backoff
from perdure.contracts.failures import ToolFault
from perdure.contracts.run.signals import QuestionKind
from perdure.contracts.run.state import Call
from perdure.contracts.tool import Effect, ToolOutcome, Unfinished, error_outcome
from perdure.decisions.run import call_state
from perdure.decisions.text.formatting import call_line, truncate
from perdure.decisions.unfinished import MAX_ROUNDS, format_input, to_response
from perdure.workflows.activities import Activities
from perdure.workflows.agent_run.context import RunContext, call_request
from perdure.workflows.agent_run.waiting import ask_person, waiting_on_worker
from perdure.workflows.execution import HEARTBEAT, Policy, execute_activity, retrying, to_tool_outcome

# Looks, answers and cancels are repeatable requests, whose attempts set the delay of the next one.
ASKING_SERVER: Policy = {
    "start_to_close_timeout": timedelta(minutes=1),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": retrying(Backoff(1, 300)),
}


async def follow_call(run: RunContext, call: Call, left: Unfinished) -> ToolOutcome | Call | None:
    """Return the outcome of a call that its server has not finished; the call, if it is to be made again.

    None: only a person can tell whether it has happened.
    """
    run.state, call = call_state.record_unfinished(run.state, call, left)
    if left.task is None:
        return await _answer_call(run, call, left)
    run.mark_in_flight(call)
    with waiting_on_worker(run):
        outcome = await _follow_task(run, call)
    if outcome is None or outcome.unfinished is not None:
        return None
    run.clear_in_flight(call)
    return outcome


async def _answer_call(run: RunContext, call: Call, left: Unfinished) -> ToolOutcome | Call:
    """Ask people what the server asks, and return the call with their answers."""
    if left.rounds >= MAX_ROUNDS:
        reason = f"{left.server} has asked {MAX_ROUNDS} times, and asks again"
        return error_outcome(ToolFault.tool_error, f"{reason}; the call was not completed")
    answers = await _ask_people(run, call, left)
    declined = next((asked.url for asked in left.inputs if answers[asked.key]["action"] == "decline"), None)
    if left.way == "elsewhere" and declined is not None:
        return error_outcome(ToolFault.denied, f"a person declined to open {declined}; the call was not completed")
    known = left.answers if left.way == "open" else {}
    answered = left.evolve(inputs=(), answers={**known, **answers}, rounds=left.rounds + 1)
    run.state, call = call_state.record_unfinished(run.state, call, answered)
    return call


async def _follow_task(run: RunContext, call: Call) -> ToolOutcome | None:
    """Look at a task until it ends, and answer what it asks. A run that is cancelled cancels it.

    An outcome that still is unfinished has an error: only a person can tell.
    """
    try:
        while True:
            outcome = await run.execute(
                Activities.check_task, call_request(run, call), _summary(call, "look at"), ASKING_SERVER
            )
            left = outcome.unfinished
            if left is None:
                return outcome
            run.state, call = call_state.record_unfinished(run.state, call, left)
            if outcome.error is not None:
                return outcome
            answers = await _ask_people(run, call, left)
            sent = {key: {"action": "sent"} for key in left.answers}
            if any(answers[asked.key]["action"] == "decline" for asked in left.inputs if asked.refused):
                return await _cancel_task(run, call)
            answered = left.evolve(inputs=(), answers={**sent, **answers})
            run.state, call = call_state.record_unfinished(run.state, call, answered)
            await run.execute(Activities.update_task, call_request(run, call), _summary(call, "answer"), ASKING_SERVER)
    except asyncio.CancelledError:
        return await _cancel_task(run, call)
    except ActivityError as error:
        if run.cancellation.reason is not None:
            return await _cancel_task(run, call)
        return None if call.effect is Effect.once else to_tool_outcome(error, call.effect)


async def _cancel_task(run: RunContext, call: Call) -> ToolOutcome | None:
    """Cancel the task, and return how it ended. It may have come to its end all the same."""
    try:
        outcome: ToolOutcome = await execute_activity(
            run.cancellation,
            Activities.cancel_task,
            call_request(run, call),
            _summary(call, "cancel"),
            ASKING_SERVER,
        )
    except ActivityError:
        return None
    if outcome.unfinished is not None:
        run.state, _ = call_state.record_unfinished(run.state, call, outcome.unfinished)
    return outcome


def _summary(call: Call, verb: str) -> str:
    task = call.unfinished and call.unfinished.task
    return f"{verb} task {truncate(task.id, 40) if task else ''} of {call.tool} · step {call.step}"


async def _ask_people(run: RunContext, call: Call, left: Unfinished) -> dict[str, Any]:
    """Return the response to each input, as a person gives it."""
    responses = dict[str, Any]()
    for asked in left.inputs:
        text = format_input(asked, left, call_line(call.tool, call.arguments))
        answer = await ask_person(run, QuestionKind.input, text, about=call, form=asked.form)
        responses[asked.key] = to_response(asked, answer)
    return responses
