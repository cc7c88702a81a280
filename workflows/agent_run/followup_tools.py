"""The `workflow_*` tools: an agent's call becomes the source's commands, which one activity brings to the follow-up."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError

from activities.followup.followup import FollowUps
from contracts.run.state import Call
from contracts.tool import ToolOutcome
from decisions.followup.tools import commanded
from decisions.text import formatting
from workflows.agent_run.context import LiveRun
from workflows.encryption import readable
from workflows.failures import Fate, fate, told
from workflows.policies import FILES, WAIT_FOR_END


async def follow_up(run: LiveRun, call: Call) -> ToolOutcome:
    """Made again it asks for the same, so it is tried until it comes through."""
    commands = commanded(run.state, call)
    if isinstance(commands, ToolOutcome):
        return commands
    run.halt.check()
    run.in_flight(call)
    made = readable(
        run.halt,
        lambda: workflow.execute_activity_method(
            FollowUps.command_follow_up,
            commands,
            cancellation_type=WAIT_FOR_END,
            summary=formatting.call_summary(call),
            **FILES,
        ),
    )
    try:
        outcome: ToolOutcome = await run.halt.stoppable(made)
    except ActivityError as error:
        if fate(error) is Fate.cancelled:
            raise asyncio.CancelledError from None
        outcome = told(error, call.effect)
    run.landed(call)
    if commands.create is not None and outcome.status == "ok":
        run.update(follow_ups=run.state.follow_ups + 1)
    return outcome
