"""The reconciler: finds and repairs runs and stores that need attention.

contract    what it finds, and the report of a pass
rules       problems of runs, claims and stores, and which of them are repaired
schedule    its schedule, which workers create
workflow    `Reconcile`: a check of all runs of the task queue, every five minutes
activities  `reconcile`: the checks, and the repairs that are safe
"""

from perdure.registry import Feature

FEATURE = Feature(
    workflows=("perdure.features.reconciler.workflow:Reconcile",),
    activities=("perdure.features.reconciler.activities:Reconciler",),
    beside_worker="perdure.features.reconciler.schedule:maintain_schedule",
    figures="perdure.features.reconciler.schedule:count_findings",
    server_checks=(
        "perdure.features.reconciler.schedule:check_schedule",
        "perdure.features.reconciler.schedule:check_runs",
    ),
)
