"""The parts of a conversation that the model no longer sees: those of unanswered turns, and those a person removed.

The transcript only grows. A note names the earlier parts that it leaves out, and replaces them for the model.
"""

from collections.abc import Sequence

from contracts.failures import Escalation, RunFailure
from contracts.run.state import RunState, RunStatus
from contracts.run.transcript import Part, PartKind
from decisions.builtin_tools import ESCALATE, FINISH, unwrap_use

OMITTED = Part(kind=PartKind.brief, content=[])  # replaces a part that is left out: a brief is not a message
OUT_OF_TIME = "time used up"
MAX_NOTED_CALLS = 50  # that a note names

# The provider or the model rejected the conversation, so its last parts may be the cause.
_REFUSED = (RunFailure.model_refused, RunFailure.model_unusable, Escalation.model_declined, Escalation.context)
_SUSPECT = (*_REFUSED, RunFailure.model_unavailable, RunFailure.turn_limit)


def unanswered_kind(state: RunState, default: str | None = None) -> str | None:
    """Return the reason why the turn ended without an answer, unless a person cancelled it.

    `default` is the kind of an end that the run itself does not know.
    """
    ending = state.ending
    if ending is None:
        return default
    if ending.status is RunStatus.completed:
        return OUT_OF_TIME if ending.is_partial else None
    return None if ending.reason == Escalation.asked else ending.reason


def close_unanswered(parts: Sequence[Part], start: int, kind: str) -> Part | None:
    """Return the note that closes a turn, parts[start:], that ended without an answer.

    A turn that called no tool is left out whole. One that did keeps its goal, calls and results; if the conversation
    was refused, results that the model never answered are withheld. If a refused turn has no reply, everything since
    the last answer is left out with it, so that a cause in an earlier turn does not stay forever.
    """
    seen = visible_parts(parts)
    replies = [i for i in range(start, len(parts)) if seen[i].kind is PartKind.reply]
    worked = [i for i in replies if _tool_uses(seen[i])]
    if kind == OUT_OF_TIME and replies:
        return None
    if not worked:
        first = start if replies or kind not in _SUSPECT else _first_unanswered(seen, start)
        text = f"{_format_ended(kind)} The user's message of that turn was left out."
        return omit_parts(parts, first, len(parts), text)
    end = _results_end(seen, worked[-1])
    withheld = [worked[-1] + 1, end] if kind in _REFUSED and worked[-1] == replies[-1] else [end, end]
    left_out = ", without the results that the model had not answered" if withheld[0] < end else ""
    text = f"{_format_ended(kind)} What it did stands above{left_out}."
    return _omission_note(text, omits=[[end, len(parts)]], withholds=[withheld])


def omit_parts(parts: Sequence[Part], start: int, end: int, text: str) -> Part:
    """Return the note that leaves parts[start:end] out. It names the calls that were made in them."""
    made = [part for part in parts[start:end] if part.about.get("step")]
    calls = [f"{part.about['tool']} (step {part.about['step']}): {_error_kind(part) or 'done'}" for part in made]
    more = f"; and {len(calls) - MAX_NOTED_CALLS} more" if len(calls) > MAX_NOTED_CALLS else ""
    if calls:
        text += f" Calls in what was left out: {'; '.join(calls[:MAX_NOTED_CALLS])}{more}. They are not undone."
    return _omission_note(text, omits=[[start, end]], withholds=[])


def omit_turn(parts: Sequence[Part], end: int) -> Part | None:
    """Return the note that leaves a whole turn out, the last one before `end`, unless it is left out already."""
    seen = visible_parts(parts)[:end]
    goal = max((i for i in range(end) if parts[i].kind is PartKind.goal), default=None)
    if goal is None or seen[goal] is OMITTED:
        return None
    return omit_parts(parts, _turn_start(seen, goal), end, "A person took an earlier turn out of the conversation.")


def _turn_start(parts: Sequence[Part], goal: int) -> int:
    """Return the index of a turn's first part, given its goal's: its brief precedes the goal."""
    return goal - 1 if goal and parts[goal - 1].kind is PartKind.brief else goal


def _omission_note(text: str, omits: list[list[int]], withholds: list[list[int]]) -> Part:
    about = {"omits": omits, "withholds": withholds}
    return Part(kind=PartKind.note, content=[{"type": "text", "text": f"[{text}]"}], about=about)


def _format_ended(kind: str) -> str:
    return f"An earlier turn ended without an answer: {kind}."


def is_omission(part: Part) -> bool:
    return "omits" in part.about


def visible_parts(parts: Sequence[Part]) -> Sequence[Part]:
    """Return the same parts at the same places, with those left out as `OMITTED`.

    A summary of parts that were left out later is left out with them.
    """
    notes = [i for i, part in enumerate(parts) if is_omission(part)]
    if not notes:
        return parts
    seen = list(parts)
    for at in notes:
        about = parts[at].about
        for start, end in about["omits"]:
            seen[start:end] = [OMITTED] * (end - start)
            for i in range(start, at):
                if seen[i].kind is PartKind.summary:
                    seen[i : i + 2] = [OMITTED, OMITTED]
        for start, end in about["withholds"]:
            seen[start:end] = [_withhold_content(part) for part in seen[start:end]]
    return seen


def _withhold_content(part: Part) -> Part:
    """Remove the content of a result. The call and its status stay."""
    if part.kind is not PartKind.result:
        return part
    kind = _error_kind(part)
    text = f"{kind}: (the message was left out)" if kind else "(done; the result was left out)"
    return part.model_copy(update={"content": [{**part.content[0], "content": text}]})


def _error_kind(part: Part) -> str:
    """Return the kind of error in a result; empty if the call succeeded."""
    block = part.content[0]
    return str(block["content"]).partition(":")[0][:60] if block.get("is_error") else ""


def _tool_uses(part: Part) -> list[str]:
    return [unwrap_use(block)["name"] for block in part.content if block.get("type") == "tool_use"]


def _results_end(parts: Sequence[Part], reply: int) -> int:
    end = reply + 1
    while end < len(parts) and parts[end].kind is PartKind.result:
        end += 1
    return end


def _first_unanswered(seen: Sequence[Part], start: int) -> int:
    """Return the start of the stretch before `start` that no reply has answered.

    It is a whole turn if its calls have no answer.
    """
    reply = next((i for i in reversed(range(start)) if seen[i].kind is PartKind.reply), None)
    if reply is None:
        return 0
    uses = _tool_uses(seen[reply])
    if not uses or FINISH in uses or ESCALATE in uses:
        first, about_earlier = _results_end(seen, reply), (PartKind.summary, PartKind.journal)
        while first < start and (seen[first].kind in about_earlier or is_omission(seen[first])):
            first += 1
        return min(first, start)
    goal = next((i for i in reversed(range(reply)) if seen[i].kind is PartKind.goal), 0)
    return _turn_start(seen, goal)
