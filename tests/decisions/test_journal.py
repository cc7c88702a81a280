"""The run journal: written by three tools, read back whole or as a digest (B11)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.run.journal import Journal
from perdure.contracts.run.transcript import Part, PartKind
from perdure.decisions.run.journal import (
    DIGEST,
    MAX_JOURNAL_BYTES,
    MAX_JOURNAL_ENTRIES,
    READ,
    add_artifacts,
    digest_journal,
    fill_journal,
    rebuild_journal,
    render_journal,
    run_journal_tool,
)
from perdure.decisions.tools import LIST_SECTIONS, TEXT_SECTIONS

UPDATE, APPEND, GET = "update_run_journal", "append_run_journal_entry", "get_run_journal"


def test_the_sections_are_the_source_s_eight() -> None:
    assert sorted(Journal.model_fields) == sorted(TEXT_SECTIONS + LIST_SECTIONS)
    assert len(Journal.model_fields) == 8


def test_texts_are_replaced_and_lists_grow() -> None:
    journal, outcome = run_journal_tool(Journal(objective="a"), UPDATE, {"objective": " b ", "blockers": ["no key"]})
    assert (journal.objective, journal.blockers, outcome.status) == ("b", ("no key",), "ok")
    journal, _ = run_journal_tool(journal, APPEND, {"section": "blockers", "entry": "no time"})
    assert journal.blockers == ("no key", "no time")
    journal, _ = run_journal_tool(journal, UPDATE, {"blockers": []})
    assert journal.blockers == ()
    same, outcome = run_journal_tool(journal, GET, {})
    assert (same, outcome.result) == (journal, f"# Run journal\n\n## Objective\n\nb\n\n{READ}")


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        (UPDATE, {}, "give one section at least"),
        (UPDATE, {"objective": 5}, "'objective' does not fit"),
        (UPDATE, {"blockers": "one"}, "'blockers' does not fit"),
        (UPDATE, {"objective": "x", "mood": "good"}, "'mood' does not fit"),
        (APPEND, {"section": "objective", "entry": "x"}, "'objective' does not fit"),
        (APPEND, {"section": "decisions"}, "`entry` is required"),
        (APPEND, {"entry": "x"}, "'None' does not fit"),
    ],
)
def test_what_does_not_fit_changes_nothing_and_says_what_would(tool: str, arguments: Any, says: str) -> None:
    before = Journal(objective="a")
    after, outcome = run_journal_tool(before, tool, arguments)
    assert after == before
    assert outcome.error is not None
    assert says in outcome.error.message


def test_a_full_section_drops_its_oldest_entry_and_says_so() -> None:
    journal = Journal()
    for number in range(MAX_JOURNAL_ENTRIES + 1):
        journal, outcome = run_journal_tool(journal, APPEND, {"section": "decisions", "entry": f"e{number}"})
    assert (journal.decisions[0], len(journal.decisions)) == ("e1", MAX_JOURNAL_ENTRIES)
    assert "oldest one was dropped" in str(outcome.result)


def test_the_digest_tells_objective_state_first_blocker_next_action_and_the_latest_findings() -> None:
    journal = Journal(
        objective="ship it",
        current_state="half",
        blockers=("key", "time"),
        handoff_next_action="ask eva",
        verified_findings=("first", "second"),
    )
    expected = "Objective: ship it\nState: half\nBlocker: key\nNext: ask eva\nFinding: second\nFinding: first"
    assert digest_journal(journal) == expected


TEXTS = st.text(max_size=3000)


@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=5), TEXTS, st.lists(TEXTS, max_size=60))
def test_a_digest_is_never_too_long(objective: str, state: str, blockers: Any, action: str, findings: Any) -> None:
    journal = Journal(
        objective=objective,
        current_state=state,
        blockers=tuple(blockers),
        handoff_next_action=action,
        verified_findings=tuple(findings),
    )
    assert len(digest_journal(journal)) <= DIGEST
    assert render_journal(journal).startswith("# Run journal")


def test_what_the_agent_did_not_write_is_filled_with_what_the_run_knows() -> None:
    assert fill_journal(Journal(), "the goal", "the finding") == Journal(
        objective="the goal", current_state="the finding"
    )
    own = Journal(objective="mine", current_state="far")
    assert fill_journal(own, "the goal", "the finding") == own


def test_artifacts_are_noted_once_beside_the_agent_s_own() -> None:
    journal = add_artifacts(Journal(artifacts=("doc 7",)), ("a.md", "a.md"))
    assert add_artifacts(journal, ("a.md",)).artifacts == ("doc 7", "a.md")


def reply(use: str, tool: str, arguments: Any, *, text: str = "") -> Part:
    said = [{"type": "text", "text": text}] if text else []
    return Part(kind=PartKind.reply, content=[*said, {"type": "tool_use", "id": use, "name": tool, "input": arguments}])


def result(use: str, *, fails: bool = False) -> Part:
    return Part(kind=PartKind.result, content=[{"type": "tool_result", "tool_use_id": use, "is_error": fails}])


def test_a_fork_has_the_journal_of_its_step() -> None:
    parts = [
        reply("a", UPDATE, {"current_state": "one"}, text="Plan: go"),
        result("a"),
        reply("b", UPDATE, {"mood": "x"}),
        result("b", fails=True),
        reply("c", APPEND, {"section": "decisions", "entry": "go"}),
        result("c"),
    ]
    assert rebuild_journal(parts, "o") == Journal(objective="o", current_state="one", decisions=("go",))
    assert rebuild_journal(parts[:4], "o") == Journal(objective="o", current_state="one")
    assert rebuild_journal([], "o") == Journal()


def test_a_fork_has_the_objective_of_its_step() -> None:
    parts = [
        reply("a", "look", {}, text="Frame: see it\nPlan: look"),
        result("a"),
        reply("b", "reframe", {"frame": "hear it"}),
        result("b"),
        reply("c", "reframe", {"frame": "smell it"}),
        result("c", fails=True),
        reply("d", UPDATE, {"objective": "taste it"}),
        result("d"),
    ]
    objectives = [rebuild_journal(parts[:length], "goal").objective for length in (2, 4, 6, 8)]
    assert objectives == ["see it", "hear it", "hear it", "taste it"]


def test_a_journal_that_is_full_drops_old_entries_of_the_section_and_none_of_another() -> None:
    journal, large = Journal(decisions=("first",)), "記" * 4000
    for _ in range(10):
        journal, outcome = run_journal_tool(journal, APPEND, {"section": "verified_findings", "entry": large})
        assert outcome.status == "ok"
        assert len(journal.model_dump_json().encode()) <= MAX_JOURNAL_BYTES
    assert (journal.decisions, len(journal.verified_findings)) == (("first",), 5)
    assert outcome.result == "journal: verified_findings now has 5; the oldest one was dropped"


def test_what_would_make_a_full_journal_larger_is_refused_and_what_makes_it_smaller_is_not() -> None:
    full = Journal(verified_findings=("x" * 4000,) * 16)
    same, outcome = run_journal_tool(full, UPDATE, {"decisions": ["y" * 4000]})
    assert (same, outcome.status) == (full, "error")
    same, outcome = run_journal_tool(full, APPEND, {"section": "decisions", "entry": "y" * 4000})
    assert (same, outcome.status) == (full, "error")
    smaller, outcome = run_journal_tool(full, UPDATE, {"verified_findings": ["x"]})
    assert (smaller.verified_findings, outcome.status) == (("x",), "ok")
