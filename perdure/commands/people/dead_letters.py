"""`perdure list --dead` and `perdure redeliver`: events that began nothing, and notices and answers that were refused.

They are failed workflows, so the server has them until the namespace's retention ends.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.markup import escape
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from contracts.people.inbound import InboundRequest
from contracts.people.notice import NoticeRequest
from decisions.text.formatting import truncate
from perdure.client.errors import RejectedError, convert_rpc_errors
from perdure.session import Needs, open_session
from perdure.terminal.command import async_command, console, format_examples
from settings import load_settings

_INPUTS: dict[str, type[Any]] = {"Inbound": InboundRequest, "Notify": NoticeRequest}
MAX_LISTED = 1000
ALL = "all"


@dataclass(frozen=True)
class FailedDelivery:
    """A failed delivery: its workflow, the time of the failure, and the reason."""

    id: str
    kind: str
    failed_at: str
    reason: str


async def print_dead_letters(*, as_json: bool) -> int:
    """List the dead letters, the latest first."""
    async with open_session(load_settings(), Needs.nothing) as session:
        letters = [await _describe(session.client, execution) async for execution in _iterate_dead(session.client)]
    for letter in letters:
        if as_json:
            click.echo(json.dumps(asdict(letter)))
        else:
            console.print(f"{escape(letter.id)}  [dim]{letter.failed_at}[/]\n  {escape(letter.reason)}", soft_wrap=True)
    if not (letters or as_json):
        console.print("no dead letters: every event began its work, and every notice was delivered")
    return 0


@click.command("redeliver", epilog=format_examples("redeliver start:issues:1f0c…", "redeliver all"))
@click.argument("which", metavar="ID|all")
@async_command()
async def redeliver_command(which: str) -> int:
    """Deliver dead letters again, after their cause is corrected.

    List them with `perdure list --dead`.
    """
    async with open_session(load_settings(), Needs.nothing) as session:
        dead = [execution async for execution in _iterate_dead(session.client)]
        chosen = [execution for execution in dead if which in (ALL, execution.id)]
        if not chosen and which != ALL:
            raise RejectedError(f"there is no dead letter {which}: perdure list --dead lists them")
        for execution in chosen:
            await _redeliver(session.client, execution)
            console.print(f"delivering {escape(execution.id)}", soft_wrap=True)
    if not chosen:
        console.print("no dead letters")
    return 0


async def _iterate_dead(client: Client) -> AsyncIterator[WorkflowExecution]:
    """Yield the failed deliveries whose id has not been delivered since."""
    seen = set[str]()
    with convert_rpc_errors("the dead letters"):
        async for execution in client.list_workflows("WorkflowType IN ('Inbound', 'Notify')"):
            if execution.id in seen:
                continue
            seen.add(execution.id)
            if execution.status is WorkflowExecutionStatus.FAILED:
                yield execution
            if len(seen) == MAX_LISTED:
                return


async def _describe(client: Client, execution: WorkflowExecution) -> FailedDelivery:
    failed_at = f"{execution.close_time:%Y-%m-%d %H:%M:%S}" if execution.close_time else ""
    try:
        await client.get_workflow_handle(execution.id, run_id=execution.run_id).result()
        reason = ""
    except WorkflowFailureError as error:
        reason = truncate(str(error.cause), 400)
    return FailedDelivery(execution.id, execution.workflow_type, failed_at, reason)


async def _redeliver(client: Client, execution: WorkflowExecution) -> None:
    handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            started = event.workflow_execution_started_event_attributes
            break
    else:
        raise RejectedError(f"the history of {execution.id} is gone: it is past the namespace's retention")
    kind = _INPUTS[execution.workflow_type]
    request = (await client.data_converter.decode(started.input.payloads, [kind]))[0]
    try:
        await client.start_workflow(
            execution.workflow_type,
            request,
            id=execution.id,
            task_queue=execution.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
        )
    except WorkflowAlreadyStartedError:
        raise RejectedError(f"{execution.id} is being delivered again already") from None
