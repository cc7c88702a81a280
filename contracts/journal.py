"""The run journal: working memory that a person can read (B11)."""

from contracts.value import Value, sparse


class Journal(Value):
    """The eight sections."""

    objective: str = sparse("")
    current_state: str = sparse("")
    verified_findings: tuple[str, ...] = sparse(())
    decisions: tuple[str, ...] = sparse(())
    artifacts: tuple[str, ...] = sparse(())
    open_questions: tuple[str, ...] = sparse(())
    blockers: tuple[str, ...] = sparse(())
    handoff_next_action: str = sparse("")
