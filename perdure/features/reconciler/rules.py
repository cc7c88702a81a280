"""Problems of the runs on a task queue, and which of them are repaired without asking a person.

A repair is safe if it can no longer harm the run. A call that may have had an effect is only reported.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from perdure.contracts.failures import Escalation
from perdure.contracts.run.state import RunState, RunStatus, WorkflowStatus
from perdure.contracts.tool import ToolKind
from perdure.decisions.text.formatting import MEND_ADVICE, format_duration, truncate
from perdure.features.reconciler.contract import Finding, FindingKind, Place, ReconcileReport, Repair, StoreMark

ORPHAN_GRACE = timedelta(minutes=1)  # a parent may be asking its children to stop just now
CLAIM_MARGIN = timedelta(minutes=5)  # after the time by which the effect has ended
PERSON_PATIENCE = timedelta(hours=24)  # for a person's answer
TOOL_MARGIN = timedelta(minutes=5)  # after a tool's own timeout, which the run should have enforced
UNATTENDED_AFTER = timedelta(minutes=10)  # a worker that is being replaced is back by then
GONE_FOR = timedelta(hours=1)  # from the first check that misses a run to the one that clears its store
UPLOADS_KEPT = timedelta(days=30)  # from the last upload of a file; each run copies what it uses
MAX_FINDINGS = 20  # findings of one problem

# Workflows that never end. They move to the current build when they are woken; a run stays on its build until it ends.
MOVING_TYPES = (
    "Conversation",
    "FollowUp",
    "EventTopic",
    "ModelBatches",
    "SharedCalls",
    "Pauses",
    "ProjectQuestion",
    "Budgets",
    "Places",
)

_CUT_SHORT = (WorkflowStatus.failed, WorkflowStatus.cancelled, WorkflowStatus.terminated, WorkflowStatus.timed_out)
_VIOLATIONS = (Escalation.step_never_issued, Escalation.wrong_tool)
_CLAIM = re.compile(r"(?:([0-9a-f]+)-)?step-(\d+)(?:-(\d+))?(?:-a(\d+))?\.claim")


def wedged_finding(run_id: str, reported: Sequence[str]) -> Finding:
    causes = f" ({truncate(', '.join(reported), 200)})" if reported else ""
    return Finding(
        problem=FindingKind.wedged, run_id=run_id, found=f"its workflow tasks fail{causes}", advice=MEND_ADVICE
    )


@dataclass(frozen=True)
class Parent:
    workflow_id: str
    standing: WorkflowStatus
    closed_at: datetime | None = None


def orphaned_finding(run_id: str, parent: Parent, now: datetime, *, is_wedged: bool = False) -> Finding | None:
    """Report an open run whose parent has closed. If the parent was cut short, the run is stopped as well."""
    if parent.standing is WorkflowStatus.open or (parent.closed_at and now < parent.closed_at + ORPHAN_GRACE):
        return None
    stops = parent.standing in _CUT_SHORT and not is_wedged
    return Finding(
        problem=FindingKind.orphaned,
        run_id=run_id,
        found=f"its parent {parent.workflow_id} is {parent.standing}",
        advice="the reconciler asks it to stop" if stops else f"if it is not needed: perdure cancel {run_id}",
        repair=Repair.cancel if stops else None,
    )


def unattended_finding(run_id: str, task_queue: str) -> Finding:
    return Finding(
        problem=FindingKind.unattended,
        run_id=run_id,
        found=f"no worker polls its task queue {task_queue}",
        advice=f"start a worker with PERDURE_TASK_QUEUE={task_queue}, or cancel it",
    )


@dataclass(frozen=True, order=True)
class LedgerKey:
    """A ledger entry: one call, in one generation. `of` distinguishes runs that had the same id.

    `rounds` is how often the call was made again with answers for its server.
    """

    step: int
    generation: int
    of: str = ""
    rounds: int = 0

    @property
    def name(self) -> str:
        stem = f"{self.of}-step-{self.step:05}" if self.of else f"step-{self.step:05}"
        again = f"-{self.generation}" if self.generation > 1 else ""
        return stem + again + (f"-a{self.rounds}" if self.rounds else "")


def unsettled_claims(names: Iterable[str]) -> list[LedgerKey]:
    """Return a ledger's claims without a result. A later generation shows that a person settled the earlier one."""
    existing = set(names)
    matches = [match for name in existing if (match := _CLAIM.fullmatch(name))]
    claims = [LedgerKey(int(match[2]), int(match[3] or 1), match[1] or "", int(match[4] or 0)) for match in matches]
    latest = {(page.step, page.of): page for page in sorted(claims)}
    return [page for _, page in sorted(latest.items()) if f"{page.name}.result" not in existing]


@dataclass(frozen=True)
class OpenClaim:
    """A claim without a result, and the run that is responsible for it: the one that made it, or that resumes it.

    `until` and `tool` are empty if the claim cannot be read; `state` is None if the run does not report it.
    """

    page: LedgerKey
    tool: str
    until: datetime | None
    keeper: str
    standing: WorkflowStatus
    asks: bool  # the run waits for a person
    at_work: bool  # an activity of the call, or one that may be, is pending
    state: RunState | None


def is_fresh(until: datetime | None, now: datetime) -> bool:
    """Return whether the effect may still be under way."""
    return until is not None and now < until + CLAIM_MARGIN


def unowned_finding(run_id: str, claim: OpenClaim, now: datetime) -> Finding | None:
    """Report a claim whose result no run awaits, and which no person will be asked about."""
    if is_fresh(claim.until, now) or (claim.state is not None and _has_outcome(claim.state, claim.page.step)):
        return None
    if claim.standing is WorkflowStatus.open and (claim.asks or claim.at_work):
        return None
    run = f"run {claim.keeper}" if claim.keeper != run_id else "the run"
    settled = "is open and does not handle it" if claim.standing is WorkflowStatus.open else f"is {claim.standing}"
    return Finding(
        problem=FindingKind.claim,
        run_id=run_id,
        found=f"{claim.tool or 'a call'} (step {claim.page.step}) may have happened: its claim has no result, "
        f"and {run} {settled}",
        advice=f"check whether it happened, then remove ledger/{claim.page.name}.claim from the run's store",
    )


def _has_outcome(state: RunState, step: int) -> bool:
    """Return whether history knows the step's outcome. A halt settles interrupted calls without knowing it."""
    if state.status is RunStatus.cancelled or (state.ending is not None and state.ending.reason in _VIOLATIONS):
        return False
    open_steps = {p.step for p in state.pending} | {c.step for c in state.calls if c.outcome is None}
    return step <= state.step and step not in open_steps


def overdue_finding(state: RunState, now: datetime) -> Finding | None:
    """Report a wait that has taken too long: for a person, or for a result past its timeout."""
    if state.question is not None:
        waited = now - state.question.asked_at
        if waited < PERSON_PATIENCE:
            return None
        time = format_duration(waited.total_seconds())
        return Finding(
            problem=FindingKind.overdue,
            run_id=state.run_id,
            found=f"has waited {time} for a person: {truncate(state.question.text, 80)}",
            advice=f"perdure answer {state.run_id}",
        )
    timeouts = {route.name: route.timeout for route in state.tools if route.kind is ToolKind.signal}
    for pending in state.pending:
        timeout = timeouts.get(pending.tool)
        if pending.outside and timeout is not None and now >= pending.since + timeout + TOOL_MARGIN:
            late = format_duration((now - pending.since).total_seconds())
            return Finding(
                problem=FindingKind.overdue,
                run_id=state.run_id,
                found=f"waits for {pending.tool} (step {pending.step}) past its timeout: {late}",
                advice=f"send its result, or perdure cancel {state.run_id}",
            )
    return None


class Sweep(StrEnum):
    """The action on a store whose run the server does not know."""

    leave = "leave"  # it may belong to another server
    note = "note"  # missing for the first time
    wait = "wait"
    name = "name"  # report: a call in it may have happened
    clear = "clear"


def decide_sweep(seen: StoreMark | None, here: Place, now: datetime, *, claims: int, has_heir: bool) -> Sweep:
    """Decide about a store. Only one that was seen here with its run, and has been without it for long, is cleared.

    So a run that is just starting, a server that lost its state, and another server's runs in the same folder never
    cost a store. `has_heir`: an open run resumes this one, and looks calls up in its ledger.
    """
    if seen is None or seen.place != here:
        return Sweep.leave
    if seen.gone_since is None:
        return Sweep.note
    if now < seen.gone_since + GONE_FOR or has_heir:
        return Sweep.wait
    return Sweep.name if claims else Sweep.clear


def left_store_finding(run_id: str, claims: Sequence[LedgerKey] = ()) -> Finding:
    """Report a store whose run the server no longer has."""
    if not claims:
        return Finding(
            problem=FindingKind.left_store,
            run_id=run_id,
            found="the server no longer has the run, but its store still exists",
            advice="the reconciler removes the store; the run's files stay",
            repair=Repair.clear,
        )
    steps = ", ".join(f"step {page.step}" for page in claims[:5])
    return Finding(
        problem=FindingKind.claim,
        run_id=run_id,
        found=f"a call may have happened ({steps}): its claim has no result, and the server no longer has the run",
        advice="check whether it happened, then remove the ledger from the run's store",
    )


def limit_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    counts: Counter[FindingKind] = Counter()
    reported = []
    for finding in findings:
        counts[finding.problem] += 1
        if counts[finding.problem] <= MAX_FINDINGS:
            reported.append(finding)
    return tuple(reported)


def render_report(report: ReconcileReport) -> str:
    if not report.findings:
        return f"No problems found. Checked {report.stores} stores."
    return "\n".join(
        f"- **{item.problem}** `{item.run_id}`: {item.found}; {'done: ' if item.repaired else ''}{item.advice}"
        for item in report.findings
    )
