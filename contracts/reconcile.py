"""What the reconciler is asked, what it finds, and the mark by which it knows a store again."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from contracts.models import Value


class Problem(StrEnum):
    """What the reconciler looks for."""

    wedged = "wedged"  # the run's workflow tasks fail: it cannot go on
    orphaned = "orphaned"  # the run is open, and its parent has closed
    unattended = "unattended"  # nobody works on the run's task queue
    claim = "claim"  # a call may have happened, and nobody will be asked
    overdue = "overdue"  # an answer or a result is awaited for too long
    left_store = "left_store"  # the run is gone from the server, its store is not


class Repair(StrEnum):
    """What the reconciler does by itself. Everything else is named, and left to a person."""

    cancel = "cancel"  # the orphan is asked to stop
    clear = "clear"  # the store of a run that is gone is removed


class Finding(Value):
    """`found` and `advice` are for people, a clause each. `repair` is what helps, `repaired` that it was done."""

    problem: Problem
    run_id: str
    found: str
    advice: str
    repair: Repair | None = None
    repaired: bool = False


class ReconcileRequest(Value):
    """`after`: the folder of the store that the look before came to last, where it did not come to the end.

    It stands in that look's report under the same name.
    """

    after: str = ""


class ReconcileReport(Value):
    """Every finding is counted; of each problem the first ones are named.

    `stores` were looked at, `unjudged` of them could not be: they were never seen with their run here, or their name
    does not tell the run. `unasked` runs should have told their state, and did not, or there were too many.
    """

    found: dict[Problem, int] = Field(default_factory=dict)
    repaired: dict[Repair, int] = Field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    stores: int = 0
    unjudged: int = 0
    unasked: int = 0
    after: str = ""


class Standing(StrEnum):
    """How a workflow stands with the server."""

    open = "open"
    completed = "completed"
    failed = "failed"
    cancelled = "cancelled"
    terminated = "terminated"
    timed_out = "timed out"
    gone = "gone"


class Place(Value):
    """Where runs live: a namespace, by the id that no other has or will have, and a task queue of it."""

    namespace: str
    task_queue: str


class StoreMark(Value):
    """The mark in a run's store: its run was seen in `place`. `gone_since`: and was missing from this time on."""

    place: Place
    gone_since: datetime | None = None
