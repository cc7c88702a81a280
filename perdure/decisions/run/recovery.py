"""Recovery, as two tables: from a full context, and of a call whose attempt ended without an outcome.

A full context has stages (B5):

| over the threshold | response |
| --- | --- |
| the first time | R1: compact, the last ten messages stay |
| again within 20 turns of that | R2: deep prune, the last four stay |
| again within 20 turns of that | R3: ask a person; it frees no room, so the next is a deep prune |
| after four of these | nothing more: the run continues to its limits, as long as the model accepts it |

A call (B1, B2, B9):

| the attempt ended | effect | next |
| --- | --- | --- |
| cancelled | any | stop |
| the ledger accepts no claim | any | wait, and try again |
| the ledger has a claim, and no outcome | any | ask a person |
| its worker was lost | any | look up, at most `MAX_LOST` times |
| it used up its time | `once` | look up, unless an attempt was lost or late before |
| lost or late, and not to be looked up | `once` | ask a person |
| otherwise | any | fail: the model gets the error |
"""

import re
from enum import StrEnum

from perdure.contracts.run.turn import Recoveries, Recovery
from perdure.contracts.tool import Effect

SOON = 20  # turns
MAX_RECOVERIES = 4  # of a run

MAX_READ = 2_000  # characters of a provider's message

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
    if stage is Recovery.compact:
        return done.evolve(used=done.used + 1, compacted_at=turn)
    return done.evolve(used=done.used + 1, pruned_at=turn if stage is Recovery.prune else None)


def parse_window(message: str) -> int | None:
    """Return the window, in tokens, that a provider's "prompt too long" message names, if any."""
    before = r">|context (?:length|window) (?:is|of)|context size \(?|n_ctx\D{0,4}|tokens allowed \(?"
    match = re.search(rf"(?:{before})\s*(\d[\d,]{{3,}})", message)
    return int(match[1].replace(",", "")) if match else None


_NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?![\w-])")
_MOST = re.compile(r"(?:at most|less than or equal to|<=|>|\[1,)\s*[`']?(\d[\d,]*)")
MIN_REPLY = 1024  # tokens that a reply has room for, at least


def parse_reply_room(message: str, asked: int) -> int | None:
    """Return the tokens that are left for a reply, if a provider's refusal names a limit that `asked` ones exceed.

    The limit is that of the prompt and the reply, or that of replies. None means that the prompt itself is too long.
    """
    message = message[:MAX_READ]
    numbers = {int(number.replace(",", "")) for number in _NUMBER.findall(message)}
    most = _MOST.search(message)
    limit = parse_window(message) or (int(most[1].replace(",", "")) if most else None)
    if limit is None or not (asked in numbers or "max_tokens" in message):
        return None
    prompts = {number for number in numbers if number + asked in numbers}  # with their sum
    prompts = prompts or {number for number in numbers if number < limit < number + asked} - {asked}
    room = limit - max(prompts, default=0)
    return room if min(MIN_REPLY, asked // 2) <= room < asked else None


# Looks for a call whose worker was lost, and activities of a model turn that loses its worker. Each has its own retries
# by Temporal (docs/one-call.md has the totals): what kills its worker must not do so forever.
MAX_LOST = 3


class FailureKind(StrEnum):
    """How an activity failed: did it run, and may it have had its effect?"""

    cancelled = "cancelled"  # stopped before it did anything
    failed = "failed"  # it raised the error itself
    late = "late"  # it used up its time
    lost = "lost"  # its worker died or was shut down
    in_doubt = "in_doubt"  # the ledger has its claim, and no outcome
    not_begun = "not_begun"  # the ledger accepts no claim, for now


class CallRecovery(StrEnum):
    stop = "stop"
    wait = "wait"
    ask = "ask"
    look_up = "look_up"  # another attempt: a `once` call is looked up in the ledger first
    fail = "fail"


_ALWAYS = {
    FailureKind.cancelled: CallRecovery.stop,
    FailureKind.not_begun: CallRecovery.wait,
    FailureKind.in_doubt: CallRecovery.ask,
    FailureKind.failed: CallRecovery.fail,
}
# How often a call is looked up after such ends, by whether it is a `once` call; then it is asked about, or fails.
_LOOKUPS = {
    (FailureKind.lost, True): MAX_LOST,
    (FailureKind.lost, False): MAX_LOST,
    (FailureKind.late, True): 1,
    (FailureKind.late, False): 0,
}


def recover_call(end: FailureKind, effect: Effect, lost: int) -> CallRecovery:
    """Return what to do. `lost` counts the attempts before this one; without a ledger to look up it is `MAX_LOST`."""
    if end in _ALWAYS:
        return _ALWAYS[end]
    is_once = effect is Effect.once
    if lost < _LOOKUPS[end, is_once]:
        return CallRecovery.look_up
    return CallRecovery.ask if is_once else CallRecovery.fail
