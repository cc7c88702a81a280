"""The calls of the tools `workflow_*`, as a run makes them: commands to a follow-up."""

import asyncio

from temporalio.exceptions import ActivityError

from perdure.contracts.run.state import Call
from perdure.contracts.tool import ToolOutcome
from perdure.decisions.run.recovery import FailureKind
from perdure.decisions.text import formatting
from perdure.features.follow_ups.activities import FollowUps
from perdure.features.follow_ups.rules.tools import build_follow_up_commands
from perdure.workflows.agent_run.context import RunContext
from perdure.workflows.execution import classify_failure, to_tool_outcome


async def run_followup_tool(run: RunContext, call: Call) -> ToolOutcome:
    """Deliver the call's commands; a repeat asks for the same, so this is retried until it succeeds."""
    commands = build_follow_up_commands(run.state, call)
    if isinstance(commands, ToolOutcome):
        return commands
    run.cancellation.raise_if_cancelled()
    run.mark_in_flight(call)
    try:
        outcome = await run.execute(FollowUps.command_follow_up, commands, formatting.call_summary(call))
    except ActivityError as error:
        if classify_failure(error) is FailureKind.cancelled:
            raise asyncio.CancelledError from None
        outcome = to_tool_outcome(error, call.effect)
    run.clear_in_flight(call)
    if commands.create is not None and outcome.status == "ok":
        run.state = run.state.evolve(follow_ups=run.state.follow_ups + 1)
    return outcome
