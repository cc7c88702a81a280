"""`perdure policy explain`: the verdict on a call of a run, from its history."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from activities.policy import read_stored_policy
from activities.storage.store import Store
from contracts.people.policy import PolicyVerdict
from contracts.run.export import ExportedCall, ExportedExecution
from decisions.policy.rules import Policy, matches_globs
from decisions.text.formatting import call_line
from perdure.client.errors import RejectedError
from perdure.client.history import HistoryReader
from perdure.client.records.run_facts import collect_facts
from perdure.client.run_list import find_run
from perdure.session import Needs, open_session
from perdure.terminal.command import async_command, console, format_examples, run_argument
from settings import load_settings


@click.command("explain", epilog=format_examples("policy explain RUN 3"))
@run_argument
@click.argument("step", required=False)
@async_command()
async def explain_policy_command(run_id: str, step: str | None) -> int:
    """Explain the verdict on the call of a step.

    STEP is its number, or the id of the tool use if it was denied. Without STEP all verdicts of the run are listed.
    """
    from perdure.process.project import display_project

    settings = load_settings()
    async with open_session(settings, Needs.nothing) as session, display_project(settings) as project:
        run = await find_run(session.client, run_id)
        executions = await HistoryReader(session.client).read_executions(run)
        verdicts, calls = collect_verdicts(executions), collect_facts(executions).calls
        if step is None:
            for line in list_verdicts(verdicts, calls):
                click.echo(line)
            return 0
        call = next((call for call in calls.values() if step in (str(call.step), call.tool_use_id)), None)
        if call is None or call.tool_use_id not in verdicts:
            raise RejectedError(
                f"run {run.run_id} has no verdict on {step}; list them: perdure policy explain {run_id}"
            )
        verdict = verdicts[call.tool_use_id]
        policy = await find_policy(project.stores.of(run.run_id), project.policy, verdict.policy)
    for line in explain_verdict(call, verdict, policy):
        console.print(settings.secrets.redact(line), soft_wrap=True, markup=False, highlight=False)
    return 0


def collect_verdicts(executions: Iterable[ExportedExecution]) -> dict[str, PolicyVerdict]:
    """Return the recorded verdicts by the id of the tool use; a later one replaces an earlier one."""
    verdicts: dict[str, PolicyVerdict] = {}
    for execution in executions:
        for event in execution.events:
            for result in event.get("result") or () if event["type"] == "activity_task_completed" else ():
                reply = result.get("reply") or result if isinstance(result, dict) else {}
                found: dict[str, Any] = reply.get("verdicts") or {}
                verdicts |= {name: PolicyVerdict.model_validate(row) for name, row in found.items()}
    return verdicts


def list_verdicts(verdicts: Mapping[str, PolicyVerdict], calls: Mapping[str, ExportedCall]) -> Iterator[str]:
    """Yield a line for each verdict, with its step or the id of its tool use."""
    for name, verdict in verdicts.items():
        call = calls.get(name)
        place = f"step {call.step}" if call and call.step else name
        yield f"{place}  {call.tool if call else ''}  {verdict.verdict}  {verdict.rule or '-'}"


async def find_policy(store: Store, current: Policy | None, ref: str) -> Policy | None:
    """Return the policy of this hash: the project's, or the one in the run's store. None if it is not here."""
    if current is not None and current.ref == ref:
        return current
    try:
        return await read_stored_policy(store, ref)
    except (OSError, ValueError):
        return None


def explain_verdict(call: ExportedCall, verdict: PolicyVerdict, policy: Policy | None) -> list[str]:
    rule = f"rule {verdict.rule!r}" if verdict.rule else "no rule holds: the tool's own approval counts"
    lines = [
        f"step {call.step}   {call_line(call.tool, call.arguments)}",
        f"verdict  {verdict.verdict}: {rule}{'; it loosens the tool' if verdict.loosens else ''}",
        f"policy   {verdict.policy}",
    ]
    if verdict.reason:
        lines.append(f"reason   {verdict.reason}")
    if verdict.terms:
        lines.append(f"terms    {verdict.terms.model_dump_json(exclude_defaults=True)}")
    if verdict.facts:
        lines.append(f"facts    {json.dumps(verdict.facts, ensure_ascii=False)}")
    if policy is None:
        return [*lines, "its text is neither in this project nor in the run's store"]
    for compiled in policy.rules:
        if compiled.rule.name == verdict.rule:
            break
        when = compiled.when.text if compiled.when else ""
        is_about = matches_globs(compiled.rule.tools, call.tool) and when
        lines.append(f"before   {compiled.rule.name}: {f'`when` is false: {when}' if is_about else 'for other calls'}")
    return lines
