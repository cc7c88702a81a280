"""A call of `pause`, as a run makes it: a timer, which a cancel of the run ends."""

from pydantic import ValidationError
from temporalio import workflow

from pause.activities import PauseLimits
from pause.rules import PauseArguments
from perdure.contracts.failures import ToolFault
from perdure.contracts.run.state import Call
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.workflows.agent_run.context import RunContext


async def run_pause(run: RunContext, call: Call) -> ToolOutcome:
    """Wait for the duration, or for the longest pause that the project allows."""
    try:
        asked = PauseArguments.model_validate(call.arguments)
    except ValidationError as error:
        return error_outcome(ToolFault.invalid_arguments, error.errors()[0]["msg"])
    seconds: float = await run.execute(
        PauseLimits.limit_pause, asked.duration.total_seconds(), f"limit of the pause · step {call.step}"
    )
    await run.cancellation.cancellable(workflow.sleep(seconds, summary=asked.reason or f"pause · step {call.step}"))
    return ToolOutcome(result=f"{seconds:g} seconds have passed")
