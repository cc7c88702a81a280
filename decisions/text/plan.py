"""The items of a plan, and those that the run's journal marks as done. An unmarked item may be done too."""

import re

from contracts.run.journal import Journal

MAX_PLAN_ITEMS = 30  # items
_LISTED = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.):])\s+(?:\[[ xX]\]\s*)?(.+)$")
_INLINE = re.compile(r"(?:^|(?<=[\s;,]))\(?(\d{1,2})[.)]\s+")
_MARK = r"^\s*(?:[-*•]\s*)?(?:\[x\]|[✓✔☑✅]️?|done:)\s*"
_TICKED = re.compile(_MARK + r"(?:(?:(?:plan\s+)?item\s+)?(\d{1,2})\s*(?:[.):].*)?|(.+))$", re.IGNORECASE)
_SAID = re.compile(r"^\W*plan\s+(?:item|step)\s+(\d{1,2})\W+(?:is\s+)?(?:done|completed)[.!]?$", re.IGNORECASE)


def plan_items(plan: str) -> tuple[str, ...]:
    """Return the items: of the plan's list; else of numbers in its first line; else the whole plan as one item."""
    lines = [line for line in plan.splitlines() if line.strip()]
    listed = tuple(match[1].strip() for line in lines if (match := _LISTED.match(line)))
    if len(listed) > 1:
        return listed[:MAX_PLAN_ITEMS]
    pieces = _INLINE.split(" ".join(lines))
    if pieces[1::2][:2] == ["1", "2"]:
        return tuple(piece.strip(" ;,") for piece in pieces[2::2])[:MAX_PLAN_ITEMS]
    return listed or ((" ".join(plan.split()),) if lines else ())


def ticked_items(plan: tuple[str, ...], journal: Journal) -> frozenset[int]:
    """Return the numbers, from 1, of the items that the journal ticks.

    A tick is "[x] 2. …", "✓ 2", "done: <the item>" or "plan item 2 done". Steps are not items: "step 2 done" may refer
    to a tool call.
    """
    texts = (journal.current_state, *journal.verified_findings, *journal.decisions)
    by_text = {_normalize_item(item): number for number, item in enumerate(plan, 1)}
    ticked: set[int] = set()
    for line in (line.strip() for text in texts for line in text.splitlines()):
        if match := _TICKED.match(line) or _SAID.match(line):
            number, text = (*match.groups(), None)[:2]
            ticked.add(int(number) if number else by_text.get(_normalize_item(text or ""), 0))
    return frozenset(ticked & set(range(1, len(plan) + 1)))


def _normalize_item(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".;,")
