"""`perdure replay --policy`: what a policy would have decided about the calls of past runs. Nothing is called."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import click

from activities.policy import PolicyChecks, PolicyInForce
from activities.project import Project
from contracts.failures import ToolFault
from contracts.people.policy import PolicyContext, PolicyVerdict
from contracts.run.export import Export, ExportedCall
from contracts.run.transcript import PartKind
from contracts.sender import Sender
from decisions.policy.facts import tool_uses_of
from decisions.policy.rules import Policy
from decisions.text.formatting import call_line, truncate
from perdure.client.errors import RejectedError
from perdure.commands.policy.explain import collect_verdicts, find_policy
from perdure.terminal.command import console

NOT_RECORDED = "-"  # the run had no policy


@dataclass(frozen=True)
class ReplayedCall:
    """A call of a past run: what became of it, the verdict on it then, the same again, and the candidate's."""

    run_id: str
    step: int | None
    tool: str
    call: str
    observed: str
    verdict: str
    as_it_was: str
    candidate: str
    rule: str | None


async def replay_policy(
    record: Export, candidate: Policy, checks: PolicyChecks, project: Project
) -> list[ReplayedCall]:
    """Return the verdicts on each call of an exported run. Raises RejectedError if its conversation is not complete."""
    if not record.transcript.complete:
        raise RejectedError(f"run {record.run_id} cannot be replayed: it is open, or its conversation is not complete")
    recorded, calls = collect_verdicts(record.executions), {call.tool_use_id: call for call in record.calls}
    turns = {turn.turn: turn for turn in record.turns if not turn.failure}
    store, rows = project.stores.of(record.run_id), list[ReplayedCall]()
    for at, part in enumerate(record.transcript.parts):
        uses = tool_uses_of(part.content) if part.kind is PartKind.reply else []
        known = [use for use in uses if use.tool_use_id in calls]
        turn = turns.get(calls[known[0].tool_use_id].turn) if known else None
        if turn is None or turn.definition not in record.definitions:
            continue

        async def judge(policy: Policy | None) -> dict[str, PolicyVerdict]:
            if policy is None:
                return {}
            force = PolicyInForce((policy,), PolicyContext(policy=policy.ref, caller=_caller_of(record)))
            before, definition = record.transcript.parts[:at], record.definitions[turn.definition]  # noqa: B023
            return (await checks.judge_calls(force, known, before, definition, turn.ended_at)).verdicts  # noqa: B023

        refs = {recorded[use.tool_use_id].policy for use in known if use.tool_use_id in recorded}
        same = [await judge(await find_policy(store, project.policy, ref)) for ref in sorted(refs)]
        tried = await judge(candidate)
        rows += [_to_row(record.run_id, calls[use.tool_use_id], recorded, same, tried) for use in known]
    return rows


def _caller_of(record: Export) -> Sender | None:
    return next((arrival.sender for arrival in record.received if arrival.kind == "start"), None)


def _to_row(
    run_id: str,
    call: ExportedCall,
    recorded: Mapping[str, PolicyVerdict],
    same: Sequence[Mapping[str, PolicyVerdict]],
    tried: Mapping[str, PolicyVerdict],
) -> ReplayedCall:
    verdict, new = recorded.get(call.tool_use_id), tried.get(call.tool_use_id)
    found = (verdicts[call.tool_use_id] for verdicts in same if call.tool_use_id in verdicts)
    again = next((row for row in found if verdict and row.policy == verdict.policy), None)
    return ReplayedCall(
        run_id=run_id,
        step=call.step,
        tool=call.tool,
        call=truncate(call_line(call.tool, call.arguments), 100),
        observed=_describe_end(call),
        verdict=verdict.verdict if verdict else NOT_RECORDED,
        as_it_was=again.verdict if again else NOT_RECORDED,
        candidate=new.verdict if new else NOT_RECORDED,
        rule=new.rule if new else None,
    )


def _describe_end(call: ExportedCall) -> str:
    if any(attempt.approval for attempt in call.made):
        return "approved"
    if call.is_error and str(call.shown).startswith(str(ToolFault.denied)):
        return "denied"
    return "made" if call.made or not call.is_error else "not made"


def print_rows(rows: Sequence[ReplayedCall], runs: int, *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            click.echo(json.dumps(asdict(row)))
        return
    if rows:
        click.echo(f"{'call':<8} {'observed':<9} {'then':<6} {'again':<6} {'now':<6} rule")
    for row in rows:
        place = f"{row.run_id} step {row.step}" if runs > 1 else f"step {row.step}"
        verdicts = f"{row.observed:<9} {row.verdict:<6} {row.as_it_was:<6} {row.candidate:<6}"
        console.print(
            f"{place}  {verdicts}  {row.rule or ''}  {row.call}", soft_wrap=True, markup=False, highlight=False
        )
    counts = Counter(row.candidate for row in rows)
    asked, allowed, denied, reviewed = (counts[verdict] for verdict in ("ask", "allow", "deny", "review"))
    reviews = f", {reviewed} for a reviewer" if reviewed else ""
    counted = f"{runs} run{'' if runs == 1 else 's'}, {len(rows)} call{'' if len(rows) == 1 else 's'}"
    console.print(f"{counted}: {asked} asked, {allowed} allowed, {denied} denied{reviews}")
    if differing := count_unfaithful(rows):
        console.print(f"[yellow]{differing} verdicts differ from their record: the replay is not faithful there[/]")


def count_unfaithful(rows: Sequence[ReplayedCall]) -> int:
    """Return how many verdicts, evaluated again, differ from their record."""
    return sum(row.as_it_was not in (row.verdict, NOT_RECORDED) for row in rows)
