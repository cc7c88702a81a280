"""A plan is read as its items, and an item is ticked only where the journal says so."""

import pytest

from perdure.contracts.run.journal import Journal
from perdure.decisions.text.formatting import plan_items, ticked_items

PLAN = ("Fetch a.", "Measure b", "Finish.")


@pytest.mark.parametrize(
    ("plan", "read"),
    [
        ("1. Fetch a.\n2. Measure b\n\n3) Finish.", PLAN),
        ("- Fetch a.\n* Measure b\n- [ ] Finish.", PLAN),
        ("Three things:\n1. Fetch a.\n2. Measure b\n3. Finish.\nThat is all.", PLAN),
        ("1) Fetch a.; 2) Measure b, 3) Finish.", PLAN),
        ("fetch 2 pages\nand write", ("fetch 2 pages and write",)),
        ("", ()),
    ],
)
def test_a_plan_is_read_as_its_items(plan: str, read: tuple[str, ...]) -> None:
    assert plan_items(plan) == read


@pytest.mark.parametrize(
    ("says", "ticked"),
    [
        ("[x] 2. Measure b", {2}),
        ("- [X] measure  B.", {2}),
        ("✓ 3", {3}),
        ("done: item 1", {1}),
        ("done: fetch a", {1}),
        ("Plan item 1 is done.", {1}),
        ("[x] 1. a\n[ ] 2. b\n[x] 3. c", {1, 3}),
        ("[x] 2 pages fetched", set()),  # a number that counts something else
        ("[x] 9.", set()),
        ("step 2 done", set()),  # of a tool call, perhaps
        ("plan item 2: not done", set()),
        ("plan step 2: complete it", set()),
        ("[ ] 2. Measure b", set()),
    ],
)
def test_an_item_is_ticked_where_the_journal_says_so(says: str, ticked: set[int]) -> None:
    assert ticked_items(PLAN, Journal(current_state=says)) == ticked
    assert ticked_items(PLAN, Journal(verified_findings=(says,))) == ticked
    assert ticked_items(PLAN, Journal(objective=says, blockers=(says,))) == set()
