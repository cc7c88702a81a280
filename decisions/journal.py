"""The run journal: what the agent writes into it, and how it is read back to it (B11)."""

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.failures import ToolFault
from contracts.journal import Journal
from contracts.tool import ToolOutcome, failed
from contracts.transcript import Part, PartKind
from decisions.builtins import APPEND_JOURNAL, GET_JOURNAL, LIST_SECTIONS, TEXT_SECTIONS, UPDATE_JOURNAL

MOST_TEXT = 4000  # characters of a section, or of an entry
MOST_ENTRIES = 100  # of a list
MOST_BYTES = 60_000  # of all that the agent writes: the model is shown it whole, and a run carries it along
DIGEST = 500  # characters


def kept(journal: Journal, tool: str, arguments: Mapping[str, Any]) -> tuple[Journal, ToolOutcome]:
    """Carries out one of the three journal tools."""
    if tool == GET_JOURNAL:
        return journal, ToolOutcome(result=render(journal))
    if tool == UPDATE_JOURNAL:
        return _fitting(journal, *_updated(journal, arguments))
    if tool == APPEND_JOURNAL:
        return _fitting(journal, *_appended(journal, arguments))
    raise AssertionError(f"{tool} is no journal tool")


def _fitting(before: Journal, after: Journal, outcome: ToolOutcome) -> tuple[Journal, ToolOutcome]:
    """What is too large already may still become smaller."""
    size = _size(after)
    if size <= MOST_BYTES or size <= _size(before):
        return after, outcome
    full = (
        f"not written: the journal would have {size:,} bytes, and {MOST_BYTES:,} is the most; say old sections shorter"
    )
    return before, failed(ToolFault.invalid_arguments, full)


def _size(journal: Journal) -> int:
    """Without the artifacts, which the runtime notes as well."""
    return len(render(journal.model_copy(update={"artifacts": ()})).encode(errors="replace"))


def _updated(journal: Journal, arguments: Mapping[str, Any]) -> tuple[Journal, ToolOutcome]:
    """Texts are replaced; a list is replaced by a list, so that a blocker that is gone can be taken out."""
    changes: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in TEXT_SECTIONS and isinstance(value, str):
            changes[name] = value.strip()[:MOST_TEXT]
        elif name in LIST_SECTIONS and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            changes[name] = tuple(entry.strip()[:MOST_TEXT] for entry in value if entry.strip())[-MOST_ENTRIES:]
        else:
            return journal, _unfit(name)
    if not changes:
        return journal, _unfit("nothing")
    return journal.model_copy(update=changes), ToolOutcome(result=f"journal: {', '.join(changes)} updated")


def _appended(journal: Journal, arguments: Mapping[str, Any]) -> tuple[Journal, ToolOutcome]:
    """The oldest entry of a full section makes room."""
    section, entry = arguments.get("section"), arguments.get("entry")
    if section not in LIST_SECTIONS:
        return journal, _unfit(str(section))
    if not isinstance(entry, str) or not entry.strip():
        return journal, failed(ToolFault.invalid_arguments, "`entry` is required: one sentence")
    entries = (*getattr(journal, section), entry.strip()[:MOST_TEXT])
    changed = journal.model_copy(update={section: entries[-MOST_ENTRIES:]})
    left_out = "; the oldest one was dropped" if len(entries) > MOST_ENTRIES else ""
    count = min(len(entries), MOST_ENTRIES)
    return changed, ToolOutcome(result=f"journal: {section} now has {count}{left_out}")


def _unfit(what: str) -> ToolOutcome:
    texts, lists = ", ".join(TEXT_SECTIONS), ", ".join(LIST_SECTIONS)
    wrong = f"{what[:100]!r} does not fit: texts are {texts}; lists of texts are {lists}"
    return failed(ToolFault.invalid_arguments, wrong)


def with_artifacts(journal: Journal, artifacts: Sequence[str]) -> Journal:
    """Whatever a tool wrote down is noted, beside what the agent noted itself."""
    known = frozenset(journal.artifacts)  # there may be thousands, and this is asked after each call
    new = tuple(path for path in dict.fromkeys(artifacts) if path not in known)
    return journal.model_copy(update={"artifacts": (*journal.artifacts, *new)}) if new else journal


def refolded(parts: Sequence[Part], objective: str) -> Journal:
    """The journal as it was after these parts of the conversation: for a run that is forked from there."""
    outcomes = {p.content[0]["tool_use_id"]: p.content[0] for p in parts if p.kind is PartKind.result}
    journal = Journal(objective=objective)
    for part in parts:
        if part.kind is not PartKind.reply:
            continue
        for use in part.content:
            is_done = use.get("id") in outcomes and not outcomes[use["id"]].get("is_error")
            if use.get("type") == "tool_use" and is_done and use["name"] in (UPDATE_JOURNAL, APPEND_JOURNAL):
                journal, _ = kept(journal, use["name"], use["input"])
    return journal


def shown(journal: Journal, goal: str, finding: str) -> Journal:
    """With what the run knows by itself where the agent has written nothing."""
    texts = {"objective": journal.objective or goal, "current_state": journal.current_state or finding}
    return journal.model_copy(update=texts)


def render(journal: Journal) -> str:
    """As Markdown (`memory.md`): every section that holds something, in the journal's order."""
    sections: list[str] = []
    for name in Journal.model_fields:
        value = getattr(journal, name)
        if value:
            body = value if isinstance(value, str) else "\n".join(f"- {entry}" for entry in value)
            sections.append(f"## {name.replace('_', ' ').capitalize()}\n\n{body}\n")
    return "# Run journal\n\n" + "\n".join(sections)


def digest(journal: Journal) -> str:
    """At most 500 characters: objective, state, first blocker, next action, and the latest findings that fit."""
    lines = [
        _line("Objective", journal.objective, 140),
        _line("State", journal.current_state, 120),
        _line("Blocker", next(iter(journal.blockers), ""), 70),
        _line("Next", journal.handoff_next_action, 70),
    ]
    text = "\n".join(line for line in lines if line)
    for finding in reversed(journal.verified_findings):
        line = _line("Finding", finding, 90)
        if len(text) + 1 + len(line) > DIGEST:
            break
        text = f"{text}\n{line}" if text else line
    return text


def _line(name: str, text: str, most: int) -> str:
    flat = " ".join(text.split())
    return f"{name}: {flat if len(flat) <= most else flat[: most - 1] + '…'}" if flat else ""
