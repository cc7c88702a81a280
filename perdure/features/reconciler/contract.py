"""The reconciler's request, report and findings, and its mark in a run's store."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from perdure.contracts.models import FrozenModel, omit_default
from perdure.features.notices.contract import NoticeRequest


class FindingKind(StrEnum):
    """The kind of a finding."""

    wedged = "wedged"  # the run's workflow tasks fail, so it cannot continue
    orphaned = "orphaned"  # the run is open, but its parent has closed
    unattended = "unattended"  # no worker polls the run's task queue
    claim = "claim"  # a call may have taken effect, and no person will be asked
    overdue = "overdue"  # the run has waited too long for an answer or a result
    left_store = "left_store"  # the run is gone from the server, but its store remains


class Repair(StrEnum):
    """A repair that the reconciler makes by itself. A person decides on everything else."""

    cancel = "cancel"  # cancel the orphan
    clear = "clear"  # remove the store of a run that is gone


class Finding(FrozenModel):
    """A problem of a run. `found` and `advice` are clauses for people. `repaired`: the `repair` was made."""

    problem: FindingKind
    run_id: str
    found: str
    advice: str
    repair: Repair | None = None
    repaired: bool = False


class CutOffWindow(FrozenModel):
    """The close times in which a pass looks for runs that Temporal ended: after `since`, and up to `before` or now.

    `upto` is set if the passes before this one have not finished a window: the next window begins there.
    """

    since: datetime
    before: datetime | None = None
    upto: datetime | None = None


class ReconcileRequest(FrozenModel):
    """The input of a pass, from the report of the previous one, if that stopped early.

    `after` is its last store folder. `older` has the lists of runs that were too long, each with the start time before
    which the next pass continues. `cut_off` is set if runs have notices.
    """

    after: str = ""
    older: dict[str, datetime] = Field(default_factory=dict)
    cut_off: CutOffWindow | None = omit_default(None)


class ReconcileReport(FrozenModel):
    """The result of a pass. All findings are counted; `findings` lists the first of each kind.

    `stores` counts the checked stores. `unjudged` of them have no known run: they carry no mark from this server, or
    their name does not identify a run. `unasked` counts the runs that did not report their state, or were too many.
    `outdated` counts the workflows to move off builds that are not current: a pass with repairs has woken them.
    """

    found: dict[FindingKind, int] = Field(default_factory=dict)
    repaired: dict[Repair, int] = Field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    stores: int = 0
    unjudged: int = 0
    unasked: int = 0
    outdated: int = 0
    after: str = ""
    older: dict[str, datetime] = Field(default_factory=dict)
    notices: tuple[NoticeRequest, ...] = omit_default(())  # of runs that are stuck, or that Temporal ended
    cut_off: CutOffWindow | None = omit_default(None)  # for the next pass


class Place(FrozenModel):
    """The place of runs: a namespace, by its unique id, and a task queue."""

    namespace: str
    task_queue: str


class StoreMark(FrozenModel):
    """The mark in a run's store: the run was seen in `place`. `gone_since` is set while the run is missing."""

    place: Place
    gone_since: datetime | None = None
