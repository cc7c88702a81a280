"""What is done about a full context, rung by rung (B5).

| over the threshold | what is done |
| --- | --- |
| the first time | R1: compact, the last ten messages stay |
| again within 20 turns of that | R2: deep prune, the last four stay |
| again within 20 turns of that | R3: a person is asked; it makes no room, so the next is a deep prune |
| after four of these | nothing more: the run goes on to its limits, as long as the model takes it |
"""

import re

from contracts.run.compaction import Recoveries, Recovery

SOON = 20  # turns
MOST_RECOVERIES = 4  # of a run

QUESTION = "I've made progress but I'm losing context faster than I can recover. Keep going, change direction, or stop?"


def is_used_up(done: Recoveries) -> bool:
    return done.used >= MOST_RECOVERIES


def next_recovery(done: Recoveries, turn: int) -> Recovery | None:
    """None once all are used up."""
    if is_used_up(done):
        return None
    if done.pruned_at is not None and turn - done.pruned_at <= SOON:
        return Recovery.ask
    if done.compacted_at is not None and turn - done.compacted_at <= SOON:
        return Recovery.prune
    return Recovery.compact


def recovered(done: Recoveries, stage: Recovery, turn: int) -> Recoveries:
    """One more of them was used."""
    changes: dict[str, int | None] = {"used": done.used + 1}
    if stage is Recovery.compact:
        changes["compacted_at"] = turn
    if stage is not Recovery.compact:
        changes["pruned_at"] = turn if stage is Recovery.prune else None
    return done.model_copy(update=changes)


def window_told(message: str) -> int | None:
    """The window, in tokens, that a provider names when it refuses a prompt as too long."""
    before = r">|context (?:length|window) (?:is|of)|context size \(?|n_ctx\D{0,4}"
    told = re.search(rf"(?:{before})\s*(\d[\d,]{{3,}})", message)
    return int(told[1].replace(",", "")) if told else None
