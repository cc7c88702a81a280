"""`perdure policy accept`: take the project's present policy for one open run."""

from datetime import timedelta

import click
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from contracts.run.signals import Decision, HumanInput
from decisions.policy.rules import Policy
from perdure.answer_keys import AnswerKeys, MissingKeyError
from perdure.client.door import stamp_sender
from perdure.client.errors import RejectedError, TemporalUnavailableError
from perdure.client.run_list import find_run
from perdure.client.runs import query_run_state
from perdure.session import Needs, open_session
from perdure.terminal.command import async_command, console, format_examples, run_argument
from settings import load_settings
from settings.policy import POLICY_FILE, read_policy

ACCEPT_TIMEOUT = timedelta(seconds=20)


@click.command("accept", epilog=format_examples("policy accept RUN"))
@run_argument
@click.option("--by", help="Name of the person who accepts it.")
@async_command()
async def accept_policy_command(run_id: str, by: str | None) -> int:
    """Accept the project's policy for a run, even if it is looser.

    It then counts in place of the policy that the run began with.
    """
    settings = load_settings()
    policy = read_policy(settings.folder / POLICY_FILE)
    async with open_session(settings, Needs.answers) as session:
        await accept_policy(session.client, run_id, policy, settings.answer_keys, by)
    console.print(f"accepted: run {run_id} follows policy {policy.ref}", soft_wrap=True, markup=False)
    return 0


async def accept_policy(client: Client, run_id: str, policy: Policy, keys: AnswerKeys, by: str | None = None) -> None:
    """Raises RunNotFoundError, RejectedError with the run's reason, and TemporalUnavailableError without a worker."""
    run = await find_run(client, run_id)
    view = await query_run_state(client, run.run_id) if run.is_open else None
    if not run.is_open:
        raise RejectedError(f"run {run.run_id} has ended")
    if view is None:
        raise TemporalUnavailableError(f"no worker answers for run {run.run_id} now: perdure worker")
    body = stamp_sender(HumanInput(question_id=f"policy:{policy.ref}", decision=Decision.approve, by=by))
    try:
        signed = keys.sign_for(view.run_id, view.execution, view.answer_keys, body)
        handle = client.get_workflow_handle(run.execution.id)
        answer = signed.model_dump(mode="json", exclude_none=True)
        await handle.execute_update("accept_policy", answer, rpc_timeout=ACCEPT_TIMEOUT)
    except MissingKeyError as missing:
        raise RejectedError(str(missing)) from None
    except WorkflowUpdateFailedError as error:
        raise RejectedError(error.cause.message if isinstance(error.cause, ApplicationError) else str(error)) from None
