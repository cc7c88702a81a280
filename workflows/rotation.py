"""Continue-as-new: when it is due, and on which build the next execution of a workflow that never ends begins."""

from typing import Any, NoReturn

from temporalio import workflow


class Rotation:
    """The reasons to continue as new: the history is long, or another build has become current.

    Older code stayed on its build. So a move is a patch, one for each build that is left: an execution that was brought
    from older code replays as recorded, and can still move later. A predicate must not record a patch, hence `decide`.

    Example: a lane waits on build 1, and build 2 becomes current. `is_undecided` becomes true and ends the wait;
    `decide` records the patch `leave-build-1`. From then on `is_due` holds: the next execution begins on build 2.
    """

    def __init__(self) -> None:
        self._leaves: dict[str, bool] = {}  # decisions, by build

    @property
    def is_due(self) -> bool:
        return is_history_long() or self.leaves_build

    @property
    def leaves_build(self) -> bool:
        """True if another build is current, and `decide` has decided to move to it."""
        return _has_new_build() and self._leaves.get(_own_build(), False)

    @property
    def is_undecided(self) -> bool:
        """True if another build is current and `decide` has not been called: the loop that waits should go on."""
        return _has_new_build() and _own_build() not in self._leaves

    def decide(self) -> None:
        if self.is_undecided:
            self._leaves[_own_build()] = workflow.patched(f"leave-build-{_own_build()}")


def is_history_long() -> bool:
    """Return whether the server suggests continue-as-new."""
    return workflow.info().is_continue_as_new_suggested()


def continue_as_new(state: Any) -> NoReturn:
    """Continue in another execution, on the build that is current."""
    current = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
    workflow.continue_as_new(state, initial_versioning_behavior=current)


def _has_new_build() -> bool:
    return workflow.info().is_target_worker_deployment_version_changed()


def _own_build() -> str:
    version = workflow.info().get_current_deployment_version()
    return version.build_id if version else ""
