"""The run journal: working memory that a person can read (B11)."""

from perdure.contracts.models import FrozenModel


class Journal(FrozenModel):
    """The eight sections of the journal."""

    objective: str = ""
    current_state: str = ""
    verified_findings: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()
    handoff_next_action: str = ""
