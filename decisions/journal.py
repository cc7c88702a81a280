"""The journal as Markdown (`memory.md`)."""

from contracts.journal import Journal


def render(journal: Journal) -> str:
    """Every section that holds something, in the journal's order."""
    sections: list[str] = []
    for name in Journal.model_fields:
        value = getattr(journal, name)
        if value:
            body = value if isinstance(value, str) else "\n".join(f"- {entry}" for entry in value)
            sections.append(f"## {name.replace('_', ' ').capitalize()}\n\n{body}\n")
    return "# Run journal\n\n" + "\n".join(sections)
