"""`perdure replay --policy`: what a policy would have decided about the calls of past runs. Nothing is called."""

from collections.abc import Iterable, Mapping, Sequence

from perdure.activities.policy import PolicyChecks, PolicyInForce
from perdure.activities.project import Project
from perdure.client.errors import RejectedError
from perdure.commands.policy import collect_verdicts, find_policy
from perdure.contracts.failures import ToolFault
from perdure.contracts.people import Sender
from perdure.contracts.policy import CallsOfOthers, PolicyContext, PolicyVerdict
from perdure.contracts.run.export import Export, ExportedCall
from perdure.contracts.run.transcript import PartKind
from perdure.decisions.policy.facts import RequestedCalls, tool_uses_of
from perdure.decisions.policy.rules import Policy
from perdure.decisions.text.formatting import call_line, truncate
from perdure.features.proof.contract import NOT_RECORDED, ReplayedCall


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

        unmade = {use.tool_use_id for use in uses} - {use.tool_use_id for use in known}
        asked = RequestedCalls(part.content, unmade)

        async def judge(policy: Policy | None) -> dict[str, PolicyVerdict]:
            if policy is None:
                return {}
            force = PolicyInForce((policy,), PolicyContext(policy=policy.ref, caller=_caller_of(record)))
            before, definition = record.transcript.parts[:at], record.definitions[turn.definition]  # noqa: B023
            others = _recorded_others(recorded[use.tool_use_id] for use in known if use.tool_use_id in recorded)  # noqa: B023
            judged = await checks.judge_calls(force, asked, before, definition, turn.ended_at, others=others)  # noqa: B023
            return judged.verdicts

        refs = {recorded[use.tool_use_id].policy for use in known if use.tool_use_id in recorded}
        same = [await judge(await find_policy(store, project.policy, ref)) for ref in sorted(refs)]
        of_candidate = await judge(candidate)
        rows += [_to_row(record.run_id, calls[use.tool_use_id], recorded, same, of_candidate) for use in known]
    return rows


def _recorded_others(verdicts: Iterable[PolicyVerdict]) -> CallsOfOthers:
    """Return the counts of other runs of the request, as the verdicts of a reply recorded them."""
    return CallsOfOthers(counts=next((v.facts["others"] for v in verdicts if "others" in v.facts), {}))


def _caller_of(record: Export) -> Sender | None:
    return next((arrival.sender for arrival in record.received if arrival.kind == "start"), None)


def _to_row(
    run_id: str,
    call: ExportedCall,
    recorded: Mapping[str, PolicyVerdict],
    same: Sequence[Mapping[str, PolicyVerdict]],
    of_candidate: Mapping[str, PolicyVerdict],
) -> ReplayedCall:
    verdict, new = recorded.get(call.tool_use_id), of_candidate.get(call.tool_use_id)
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
