"""Recovery from a full context, in stages (B5).

| over the threshold | response |
| --- | --- |
| the first time | R1: compact, the last ten messages stay |
| again within 20 turns of that | R2: deep prune, the last four stay |
| again within 20 turns of that | R3: ask a person; it frees no room, so the next is a deep prune |
| after four of these | nothing more: the run continues to its limits, as long as the model accepts it |
"""

import re

from contracts.run.compaction import Recoveries, Recovery

SOON = 20  # turns
MAX_RECOVERIES = 4  # of a run

QUESTION = "I've made progress but I'm losing context faster than I can recover. Keep going, change direction, or stop?"


def is_recovery_used_up(done: Recoveries) -> bool:
    return done.used >= MAX_RECOVERIES


def next_recovery(done: Recoveries, turn: int) -> Recovery | None:
    """Return the next stage, if one is left."""
    if is_recovery_used_up(done):
        return None
    if done.pruned_at is not None and turn - done.pruned_at <= SOON:
        return Recovery.ask
    if done.compacted_at is not None and turn - done.compacted_at <= SOON:
        return Recovery.prune
    return Recovery.compact


def record_recovery(done: Recoveries, stage: Recovery, turn: int) -> Recoveries:
    """Record that a stage was used."""
    changes: dict[str, int | None] = {"used": done.used + 1}
    if stage is Recovery.compact:
        changes["compacted_at"] = turn
    if stage is not Recovery.compact:
        changes["pruned_at"] = turn if stage is Recovery.prune else None
    return done.model_copy(update=changes)


def parse_window(message: str) -> int | None:
    """Return the window, in tokens, that a provider's "prompt too long" message names, if any."""
    before = r">|context (?:length|window) (?:is|of)|context size \(?|n_ctx\D{0,4}"
    match = re.search(rf"(?:{before})\s*(\d[\d,]{{3,}})", message)
    return int(match[1].replace(",", "")) if match else None
