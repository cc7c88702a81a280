"""What is wrong with the runs of a task queue, and which of it may be repaired without asking a person.

A repair is safe where the run itself can no longer be harmed by it. Whatever may have had an effect is only named.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from contracts.failures import Escalation
from contracts.reconcile import Finding, Place, Problem, ReconcileReport, Repair, Standing, StoreMark
from contracts.run.state import RunState, RunStatus
from contracts.tool import ToolKind
from decisions.text.formatting import cut

ORPHAN_GRACE = timedelta(minutes=1)  # a parent may be asking its children to stop just now
CLAIM_MARGIN = timedelta(minutes=5)  # beyond the time by which the effect has ended
PATIENCE = timedelta(hours=24)  # for a person's answer
TOOL_MARGIN = timedelta(minutes=5)  # beyond a tool's own timeout, which the run should have kept
UNATTENDED_AFTER = timedelta(minutes=10)  # a worker that is being replaced is back by then
GONE_FOR = timedelta(hours=1)  # between the first look that misses a run and the one that clears its store
MOST_NAMED = 20  # findings of one problem

MEND = "roll the workers back, or mend their code, and it goes on by itself"
_CUT_SHORT = frozenset({Standing.failed, Standing.cancelled, Standing.terminated, Standing.timed_out})
_VIOLATIONS = frozenset({Escalation.step_never_issued, Escalation.wrong_tool})
_CLAIM = re.compile(r"(?:([0-9a-f]+)-)?step-(\d+)(?:-(\d+))?\.claim")


def wedged(run_id: str, reported: Sequence[str]) -> Finding:
    why = f" ({cut(', '.join(reported), 200)})" if reported else ""
    return Finding(
        problem=Problem.wedged,
        run_id=run_id,
        found=f"its workflow tasks fail{why}",
        advice=MEND,
    )


@dataclass(frozen=True)
class Parent:
    workflow_id: str
    standing: Standing
    closed_at: datetime | None = None


def orphaned(run_id: str, parent: Parent, now: datetime, *, is_wedged: bool = False) -> Finding | None:
    """An open run whose parent was cut short is stopped like it. One that its parent left behind is a person's."""
    if parent.standing is Standing.open or (parent.closed_at and now < parent.closed_at + ORPHAN_GRACE):
        return None
    stops = parent.standing in _CUT_SHORT and not is_wedged
    return Finding(
        problem=Problem.orphaned,
        run_id=run_id,
        found=f"its parent {parent.workflow_id} is {parent.standing}",
        advice="the reconciler asks it to stop" if stops else f"if nobody needs it: perdure cancel {run_id}",
        repair=Repair.cancel if stops else None,
    )


def unattended(run_id: str, task_queue: str) -> Finding:
    return Finding(
        problem=Problem.unattended,
        run_id=run_id,
        found=f"nobody works on its task queue {task_queue}",
        advice=f"start a worker with PERDURE_TASK_QUEUE={task_queue}, or cancel it",
    )


@dataclass(frozen=True, order=True)
class Page:
    """A page of the ledger: one call, in one generation. `of` tells runs apart that had one id."""

    step: int
    generation: int
    of: str = ""

    @property
    def name(self) -> str:
        stem = f"{self.of}-step-{self.step:05}" if self.of else f"step-{self.step:05}"
        return stem + (f"-{self.generation}" if self.generation > 1 else "")


def loose(names: Iterable[str]) -> list[Page]:
    """The claims of a ledger that have no result. A later generation shows that a person settled the one before it."""
    there = set(names)
    matches = [found for name in there if (found := _CLAIM.fullmatch(name))]
    claims = [Page(int(found[2]), int(found[3] or 1), found[1] or "") for found in matches]
    latest = {(page.step, page.of): page for page in sorted(claims)}
    return [page for _, page in sorted(latest.items()) if f"{page.name}.result" not in there]


@dataclass(frozen=True)
class Claimed:
    """A claim without a result, and the run that looks after it: the one that made it, or that resumes it.

    `until` and `tool` are empty where the claim cannot be read, `state` where the run does not tell it.
    """

    page: Page
    tool: str
    until: datetime | None
    keeper: str
    standing: Standing
    asks: bool  # the run waits for a person
    at_work: bool  # an activity of the call, or one that may be, is pending
    state: RunState | None


def is_fresh(until: datetime | None, now: datetime) -> bool:
    """The effect may be under way."""
    return until is not None and now < until + CLAIM_MARGIN


def unowned(run_id: str, claim: Claimed, now: datetime) -> Finding | None:
    """A claim whose result nobody waits for, and which nobody will be asked about."""
    if is_fresh(claim.until, now) or (claim.state is not None and _has_outcome(claim.state, claim.page.step)):
        return None
    if claim.standing is Standing.open and (claim.asks or claim.at_work):
        return None
    run = f"run {claim.keeper}" if claim.keeper != run_id else "the run"
    settled = "is open and does not see to it" if claim.standing is Standing.open else f"is {claim.standing}"
    return Finding(
        problem=Problem.claim,
        run_id=run_id,
        found=f"{claim.tool or 'a call'} (step {claim.page.step}) may have happened: its claim has no result, "
        f"and {run} {settled}",
        advice=f"look whether it happened, then remove ledger/{claim.page.name}.claim from the run's store",
    )


def _has_outcome(state: RunState, step: int) -> bool:
    """History knows what became of the step. A halt answers what it interrupts, without knowing."""
    if state.status is RunStatus.cancelled or (state.ending is not None and state.ending.reason in _VIOLATIONS):
        return False
    is_open = any(p.step == step for p in state.pending) or any(
        c.step == step and c.outcome is None for c in state.calls
    )
    return step <= state.step and not is_open


def overdue(state: RunState, now: datetime) -> Finding | None:
    """A wait that has taken too long: for a person, or for a result that the run should have given up on."""
    if state.question is not None:
        waited = now - state.question.asked_at
        if waited < PATIENCE:
            return None
        return Finding(
            problem=Problem.overdue,
            run_id=state.run_id,
            found=f"waits for a person for {_hours(waited)}: {cut(state.question.text, 80)}",
            advice=f"perdure answer {state.run_id}",
        )
    timeouts = {route.name: route.timeout for route in state.tools if route.kind is ToolKind.signal}
    for each in state.pending:
        timeout = timeouts.get(each.tool)
        if each.outside and timeout is not None and now >= each.since + timeout + TOOL_MARGIN:
            return Finding(
                problem=Problem.overdue,
                run_id=state.run_id,
                found=f"waits for {each.tool} (step {each.step}) for {_hours(now - each.since)}, past its timeout",
                advice=f"send its result, or perdure cancel {state.run_id}",
            )
    return None


def _hours(time: timedelta) -> str:
    return (
        f"{time / timedelta(hours=1):.0f} h" if time >= timedelta(hours=1) else f"{time / timedelta(minutes=1):.0f} min"
    )


class Sweep(StrEnum):
    """What to do with a store whose run the server does not know."""

    leave = "leave"  # nothing tells that it belongs here
    note = "note"  # missing for the first time
    wait = "wait"
    name = "name"  # a call in it may have happened
    clear = "clear"


def swept(seen: StoreMark | None, here: Place, now: datetime, *, claims: int, has_heir: bool) -> Sweep:
    """Only what was seen here with its run, and has been without it for long, is cleared.

    So neither a run that is just being started, nor a server that lost its state, nor another server's runs in the same
    folder cost a store. `has_heir`: an open run resumes this one, and looks calls up in its ledger.
    """
    if seen is None or seen.place != here:
        return Sweep.leave
    if seen.gone_since is None:
        return Sweep.note
    if now < seen.gone_since + GONE_FOR or has_heir:
        return Sweep.wait
    return Sweep.name if claims else Sweep.clear


def left(run_id: str, claims: Sequence[Page] = ()) -> Finding:
    """The run is gone from the server, its store is not."""
    if not claims:
        return Finding(
            problem=Problem.left_store,
            run_id=run_id,
            found="the server knows the run no longer, its store is still there",
            advice="the reconciler removes the store; the run's files stay",
            repair=Repair.clear,
        )
    steps = ", ".join(f"step {page.step}" for page in claims[:5])
    return Finding(
        problem=Problem.claim,
        run_id=run_id,
        found=f"a call may have happened ({steps}): its claim has no result, and the server knows the run no longer",
        advice="look whether it happened, then remove the ledger from the run's store",
    )


def named(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The first ones of each problem."""
    counts: Counter[Problem] = Counter()
    kept = []
    for finding in findings:
        counts[finding.problem] += 1
        if counts[finding.problem] <= MOST_NAMED:
            kept.append(finding)
    return tuple(kept)


def told(report: ReconcileReport) -> str:
    """The report as Markdown."""
    if not report.findings:
        return f"All is well. Looked into {report.stores} stores."
    lines = [
        f"- **{each.problem}** `{each.run_id}`: {each.found}; {'done: ' if each.repaired else ''}{each.advice}"
        for each in report.findings
    ]
    return "\n".join(lines)
