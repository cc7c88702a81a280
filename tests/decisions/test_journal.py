"""The run journal: written by three tools, read back whole or as a digest (B11)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.journal import Journal
from contracts.transcript import Part, PartKind
from decisions.builtins import LIST_SECTIONS, TEXT_SECTIONS
from decisions.journal import DIGEST, MOST_BYTES, MOST_ENTRIES, digest, kept, refolded, render, shown, with_artifacts

UPDATE, APPEND, GET = "update_run_journal", "append_run_journal_entry", "get_run_journal"


def test_the_sections_are_the_source_s_eight() -> None:
    assert sorted(Journal.model_fields) == sorted(TEXT_SECTIONS + LIST_SECTIONS)
    assert len(Journal.model_fields) == 8


def test_texts_are_replaced_and_lists_grow() -> None:
    journal, told = kept(Journal(objective="a"), UPDATE, {"objective": " b ", "blockers": ["no key"]})
    assert (journal.objective, journal.blockers, told.status) == ("b", ("no key",), "ok")
    journal, _ = kept(journal, APPEND, {"section": "blockers", "entry": "no time"})
    assert journal.blockers == ("no key", "no time")
    journal, _ = kept(journal, UPDATE, {"blockers": []})
    assert journal.blockers == ()
    same, told = kept(journal, GET, {})
    assert (same, told.result) == (journal, "# Run journal\n\n## Objective\n\nb\n")


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        (UPDATE, {}, "'nothing' does not fit"),
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
    after, told = kept(before, tool, arguments)
    assert after == before
    assert told.error is not None
    assert says in told.error.message


def test_a_journal_that_would_fill_the_window_by_itself_is_not_written_but_can_be_made_shorter() -> None:
    journal, refused = Journal(), []
    for section in LIST_SECTIONS:
        for _ in range(MOST_ENTRIES):
            entry = "漢" * 1000
            journal, told = kept(journal, APPEND, {"section": section, "entry": entry})
            refused += [told] if told.error else []
    assert "say old sections shorter" in str(refused[0].error)
    assert len(render(journal.model_copy(update={"artifacts": ()})).encode()) <= MOST_BYTES
    journal, told = kept(journal, UPDATE, {section: [] for section in LIST_SECTIONS})
    assert (told.error, journal) == (None, Journal())
    too_large = Journal(decisions=("x" * 2 * MOST_BYTES, "y"))
    assert kept(too_large, UPDATE, {"decisions": ["x" * 4000] * 20})[0].decisions == ("x" * 4000,) * 20


def test_a_full_section_drops_its_oldest_entry_and_says_so() -> None:
    journal = Journal()
    for number in range(MOST_ENTRIES + 1):
        journal, told = kept(journal, APPEND, {"section": "decisions", "entry": f"e{number}"})
    assert (journal.decisions[0], len(journal.decisions)) == ("e1", MOST_ENTRIES)
    assert "oldest one was dropped" in str(told.result)


def test_the_digest_tells_objective_state_first_blocker_next_action_and_the_latest_findings() -> None:
    journal = Journal(
        objective="ship it",
        current_state="half",
        blockers=("key", "time"),
        handoff_next_action="ask eva",
        verified_findings=("first", "second"),
    )
    expected = "Objective: ship it\nState: half\nBlocker: key\nNext: ask eva\nFinding: second\nFinding: first"
    assert digest(journal) == expected


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
    assert len(digest(journal)) <= DIGEST
    assert render(journal).startswith("# Run journal")


def test_what_the_agent_did_not_write_is_filled_with_what_the_run_knows() -> None:
    assert shown(Journal(), "the goal", "the finding") == Journal(objective="the goal", current_state="the finding")
    own = Journal(objective="mine", current_state="far")
    assert shown(own, "the goal", "the finding") == own


def test_artifacts_are_noted_once_beside_the_agent_s_own() -> None:
    journal = with_artifacts(Journal(artifacts=("doc 7",)), ("a.md", "a.md"))
    assert with_artifacts(journal, ("a.md",)).artifacts == ("doc 7", "a.md")


def test_a_fork_has_the_journal_of_its_step() -> None:
    def reply(use: str, tool: str, arguments: Any) -> Part:
        return Part(kind=PartKind.reply, content=[{"type": "tool_use", "id": use, "name": tool, "input": arguments}])

    def result(use: str, *, fails: bool = False) -> Part:
        return Part(kind=PartKind.result, content=[{"type": "tool_result", "tool_use_id": use, "is_error": fails}])

    parts = [
        reply("a", UPDATE, {"current_state": "one"}),
        result("a"),
        reply("b", UPDATE, {"mood": "x"}),
        result("b", fails=True),
        reply("c", APPEND, {"section": "decisions", "entry": "go"}),
        result("c"),
    ]
    assert refolded(parts, "o") == Journal(objective="o", current_state="one", decisions=("go",))
    assert refolded(parts[:4], "o") == Journal(objective="o", current_state="one")
