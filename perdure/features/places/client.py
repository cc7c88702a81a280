"""The places of a task queue, for people."""

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.decisions.text.formatting import truncate
from perdure.features.places.keeper import read_places
from perdure.features.places.rules import format_taken
from perdure.registry import Check
from perdure.settings import Settings

MAX_SHOWN = 5  # keys in a line


async def check_places(client: Client, settings: Settings) -> list[Check]:
    """Say how many places are taken and how many wait, if any are. That all are taken is no fault."""
    try:
        state = await read_places(client, settings.task_queue)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []
        return [Check("places", ok=False, found=f"not checked: {truncate(error.message)}")]
    except WorkflowQueryFailedError as error:
        return [Check("places", ok=False, found=f"their workflow does not answer: {truncate(str(error))}")]
    lines = [
        f"{format_taken(key, len(state.held.get(key, {})), most)}, {len(state.waiting.get(key, {}))} wait"
        for key, most in sorted(state.most.items(), key=lambda item: -len(state.waiting.get(item[0], {})))
    ]
    more = [f"{len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
    return [Check("places", ok=True, found="; ".join([*lines[:MAX_SHOWN], *more]))] if lines else []
