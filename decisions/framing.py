"""Frame and plan, read from what the model says in its first turn. No format is forced on it."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Framing:
    frame: str  # what is asked, and what done looks like; empty where the model said nothing of it
    plan: str


def framing(text: str) -> Framing:
    """Looks for "Frame: …" and "Plan: …", in whatever dress; without a plan of that name, all of the text is it."""
    # No mark at the head of a line reaches over its end: tried from each of many lines, that would take for ever.
    frame = re.search(r"^[^\w\n]*frame\W+(.+)$", text, re.IGNORECASE | re.MULTILINE)
    plan = re.search(r"^[^\w\n]*plan\b\W*(.+)", text, re.IGNORECASE | re.MULTILINE | re.DOTALL)
    return Framing(frame[1].strip() if frame else "", (plan[1] if plan else text).strip())
