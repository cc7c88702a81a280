"""A lane as people read it."""

from collections.abc import Sequence

from contracts.conversation import LaneState, LaneView, Queued, Turn, WaitingView
from decisions.conversation.lane import EXCERPT, MOST_QUEUED
from decisions.text.formatting import cut, markdown

MOST_SHOWN = 50


def view(state: LaneState) -> LaneView:
    return LaneView(
        conversation_id=state.conversation_id,
        agent=state.agent,
        active=_shown(state.active.queued) if state.active else None,
        queued=len(state.queue),
        most_queued=MOST_QUEUED,
        waiting=tuple(_shown(message) for message in state.queue[:MOST_SHOWN]),
        recent=state.recent,
        accepted=state.accepted,
        refused=state.refused,
        notices=state.notices,
    )


def _shown(message: Queued) -> WaitingView:
    request = message.request
    asked = cut(request.text, EXCERPT)
    return WaitingView(request_id=request.request_id, run_id=message.run_id, asked=asked, at=message.at)


def details(state: LaneState) -> str:
    """Render the Web UI's current details, in Markdown."""
    running = f"run `{state.active.queued.run_id}`" if state.active else "idle"
    blocks = [f"**{running}** · {len(state.queue):,} waiting · {state.accepted:,} accepted · {state.refused:,} refused"]
    if state.active:
        blocks.append(f"**Now** {markdown(cut(state.active.queued.request.text, EXCERPT))}")
    if state.notices:
        blocks.append(f"**Ignored** {markdown(state.notices[-1])}")
    return "\n\n".join([*blocks, *_lines(state.recent)])


def _lines(turns: Sequence[Turn]) -> list[str]:
    lines = [f"- {turn.end} `{turn.run_id}` {markdown(cut(turn.asked, 80))}" for turn in reversed(turns[-5:])]
    return ["\n".join(["**Lately**", "", *lines])] if lines else []
