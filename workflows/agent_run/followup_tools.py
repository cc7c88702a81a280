"""The `workflow_*` tools: an agent's call becomes commands, which one activity delivers to the follow-up."""

import asyncio

from temporalio.exceptions import ActivityError

from activities.followup.followup import FollowUps
from contracts.run.state import Call
from contracts.tool import ToolOutcome
from decisions.followup.tools import commanded
from decisions.text import formatting
from workflows.agent_run.context import LiveRun
from workflows.failures import Fate, fate, told


async def follow_up(run: LiveRun, call: Call) -> ToolOutcome:
    """Deliver the call's commands; a repeat asks for the same, so this is retried until it succeeds."""
    commands = commanded(run.state, call)
    if isinstance(commands, ToolOutcome):
        return commands
    run.cancellation.check()
    run.in_flight(call)
    try:
        outcome = await run.execute(FollowUps.command_follow_up, commands, formatting.call_summary(call))
    except ActivityError as error:
        if fate(error) is Fate.cancelled:
            raise asyncio.CancelledError from None
        outcome = told(error, call.effect)
    run.landed(call)
    if commands.create is not None and outcome.status == "ok":
        run.update(follow_ups=run.state.follow_ups + 1)
    return outcome
