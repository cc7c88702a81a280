"""The run journal: what the agent writes into it, and its rendering (B11)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from perdure.contracts.failures import ToolFault
from perdure.contracts.run.journal import Journal
from perdure.contracts.run.transcript import Part, PartKind
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.decisions.run.transcript import join_text_blocks
from perdure.decisions.text.visible_text import cut_text, escape_headings
from perdure.decisions.tools import (
    APPEND_JOURNAL,
    GET_JOURNAL,
    GO_ON,
    LIST_SECTIONS,
    REFRAME,
    TEXT_SECTIONS,
    UPDATE_JOURNAL,
    unwrap_use,
)

JOURNAL_EXCERPT = 600  # characters of an objective, finding or plan that the run records itself
MAX_JOURNAL_TEXT = 4000  # characters of a section, or of an entry
MAX_JOURNAL_ENTRIES = 100  # of a list
MAX_JOURNAL_BYTES = 64 * 1024  # of the whole journal: the model reads it after each summary, and a run carries it along
DIGEST = 500  # characters


READ = f"(This is the whole journal. It changes only by what you write into it. {GO_ON})"


def run_journal_tool(journal: Journal, tool: str, arguments: Mapping[str, Any]) -> tuple[Journal, ToolOutcome]:
    """Run one of the three journal tools."""
    if tool == GET_JOURNAL:
        return journal, ToolOutcome(result=f"{render_journal(journal)}\n{READ}")
    if tool == UPDATE_JOURNAL:
        return _update_sections(journal, arguments)
    if tool == APPEND_JOURNAL:
        return _append_entry(journal, arguments)
    raise AssertionError(f"{tool} is not a journal tool")


def _update_sections(journal: Journal, arguments: Mapping[str, Any]) -> tuple[Journal, ToolOutcome]:
    """Replace sections. A list replaces the whole list, so that a resolved blocker can be removed."""
    changes: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in TEXT_SECTIONS and isinstance(value, str):
            changes[name] = value.strip()[:MAX_JOURNAL_TEXT]
        elif name in LIST_SECTIONS and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            changes[name] = tuple(entry.strip()[:MAX_JOURNAL_TEXT] for entry in value if entry.strip())[
                -MAX_JOURNAL_ENTRIES:
            ]
        else:
            return journal, _reject_section(name)
    if not changes:
        return journal, error_outcome(ToolFault.invalid_arguments, f"give one section at least: {_list_sections()}")
    changed = journal.evolve(**changes)
    if changed == journal:
        return journal, ToolOutcome(result=f"journal: nothing changed, it says this already. {GO_ON}")
    if _json_size(changed) > max(MAX_JOURNAL_BYTES, _json_size(journal)):
        return journal, error_outcome(
            ToolFault.too_large, f"the journal may have {MAX_JOURNAL_BYTES:,} bytes: make it shorter"
        )
    return changed, ToolOutcome(result=f"journal: {', '.join(changes)} updated")


def _replace_section(journal: Journal, section: str, value: Any) -> Journal:
    changes = {section: value}
    return journal.evolve(**changes)


def _append_entry(journal: Journal, arguments: Mapping[str, Any]) -> tuple[Journal, ToolOutcome]:
    """Append an entry. The oldest entries of a full section make room; other sections stay unchanged."""
    section, entry = arguments.get("section"), arguments.get("entry")
    if section not in LIST_SECTIONS:
        return journal, _reject_section(str(section))
    if not isinstance(entry, str) or not entry.strip():
        return journal, error_outcome(ToolFault.invalid_arguments, "`entry` is required: one sentence")
    before = getattr(journal, section)
    entries = (*before, entry.strip()[:MAX_JOURNAL_TEXT])[-MAX_JOURNAL_ENTRIES:]
    changed = _replace_section(journal, section, entries)
    while _json_size(changed) > MAX_JOURNAL_BYTES and len(entries) > 1:
        entries = entries[1:]
        changed = _replace_section(journal, section, entries)
    if _json_size(changed) > max(MAX_JOURNAL_BYTES, _json_size(journal)):
        full = f"the journal is full ({MAX_JOURNAL_BYTES:,} bytes): replace other sections by shorter ones first"
        return journal, error_outcome(ToolFault.too_large, full)
    dropped = len(before) + 1 - len(entries)
    left_out = f"; the oldest {'one was' if dropped == 1 else f'{dropped} were'} dropped" if dropped else ""
    again = f"; it had this entry already. {GO_ON}" if entries[-1] in before and not dropped else ""
    return changed, ToolOutcome(result=f"journal: {section} now has {len(entries)}{left_out}{again}")


def _json_size(journal: Journal) -> int:
    return len(to_json(journal))


def _reject_section(name: str) -> ToolOutcome:
    return error_outcome(ToolFault.invalid_arguments, f"{name[:100]!r} does not fit: {_list_sections()}")


def _list_sections() -> str:
    return f"texts are {', '.join(TEXT_SECTIONS)}; lists of texts are {', '.join(LIST_SECTIONS)}"


def is_written(journal: Journal) -> bool:
    """Return whether the agent has written anything. Objective and artifacts are filled in by the run."""
    return any(getattr(journal, name) for name in Journal.model_fields if name not in ("objective", "artifacts"))


def forward_journal(journal: Journal) -> Journal | None:
    """Return the journal for a conversation's next turn, without the objective, if anything is written."""
    return journal.evolve(objective="") if is_written(journal) else None


def add_artifacts(journal: Journal, artifacts: Sequence[str]) -> Journal:
    """Add artifacts that a tool has written to those that the agent noted."""
    new = tuple(path for path in dict.fromkeys(artifacts) if path not in journal.artifacts)
    artifacts_now = (*journal.artifacts, *new)[-MAX_JOURNAL_ENTRIES:]
    return journal.evolve(artifacts=artifacts_now) if new else journal


def frame_journal(journal: Journal, goal: str, text: str) -> Journal:
    """Set the objective from the model's first reply: its frame, or else the goal."""
    return journal.evolve(objective=(parse_framing(text).frame or goal)[:JOURNAL_EXCERPT])


def reframe_journal(journal: Journal, frame: str) -> Journal:
    return journal.evolve(objective=frame[:JOURNAL_EXCERPT] or journal.objective)


def rebuild_journal(parts: Sequence[Part], goal: str) -> Journal:
    """Rebuild the journal as it was after these parts of the conversation, for a run that is forked from there."""
    outcomes = {p.content[0]["tool_use_id"]: p.content[0] for p in parts if p.kind is PartKind.result}
    done = {use for use, outcome in outcomes.items() if not outcome.get("is_error")}
    journal, is_first = Journal(), True
    for part in parts:
        if part.kind is PartKind.goal:  # in a conversation, one each turn, and its first reply frames it
            journal, is_first = journal.evolve(objective=""), True
        if part.kind is not PartKind.reply:
            continue
        if is_first and (text := join_text_blocks(part.content)):
            journal = frame_journal(journal, goal, text)
        is_first = False
        uses = [use for use in map(unwrap_use, part.content) if use.get("type") == "tool_use" and use.get("id") in done]
        for use in (use for use in uses if use["name"] in (UPDATE_JOURNAL, APPEND_JOURNAL)):
            journal, _ = run_journal_tool(journal, use["name"], use["input"])
        for use in (use for use in uses if use["name"] == REFRAME):
            frame = use["input"].get("frame")
            journal = reframe_journal(journal, frame if isinstance(frame, str) else "")
    return journal


def fill_journal(journal: Journal, goal: str, finding: str) -> Journal:
    """Fill sections that the agent left empty with what the run knows."""
    return journal.evolve(objective=journal.objective or goal, current_state=journal.current_state or finding)


def render_journal(journal: Journal) -> str:
    """Render as Markdown (`memory.md`): every section with content, in the journal's order.

    Headings inside a text are escaped, so that it cannot open a section.
    """
    sections: list[str] = []
    for name in Journal.model_fields:
        value = getattr(journal, name)
        if value:
            body = value if isinstance(value, str) else "\n".join(f"- {entry}" for entry in value)
            sections.append(f"## {name.replace('_', ' ').capitalize()}\n\n{escape_headings(body)}\n")
    return "# Run journal\n\n" + "\n".join(sections)


def digest_journal(journal: Journal) -> str:
    """Render at most 500 characters: objective, state, first blocker, next action, and the latest findings that fit."""
    lines = [
        _digest_line("Objective", journal.objective, 140),
        _digest_line("State", journal.current_state, 120),
        _digest_line("Blocker", next(iter(journal.blockers), ""), 70),
        _digest_line("Next", journal.handoff_next_action, 70),
    ]
    text = "\n".join(line for line in lines if line)
    for finding in reversed(journal.verified_findings):
        line = _digest_line("Finding", finding, 90)
        if len(text) + 1 + len(line) > DIGEST:
            break
        text = f"{text}\n{line}" if text else line
    return text


def _digest_line(name: str, text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return f"{name}: {cut_text(flat, limit)}" if flat else ""


@dataclass(frozen=True)
class Framing:
    frame: str  # the task, and what done looks like; empty if the model gave none
    plan: str


def parse_framing(text: str) -> Framing:
    """Find "Frame: …" and "Plan: …" in any markup. Without a plan of that name, the whole text is the plan."""
    # A line's leading marks never match across its end: tried from each of many lines, that would take forever.
    frame = re.search(r"^[^\w\n]*frame\W+(.+)$", text, re.IGNORECASE | re.MULTILINE)
    plan = re.search(r"^[^\w\n]*plan\b\W*(.+)", text, re.IGNORECASE | re.MULTILINE | re.DOTALL)
    return Framing(frame[1].strip() if frame else "", (plan[1] if plan else text).strip())
