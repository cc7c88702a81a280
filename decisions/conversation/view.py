"""A lane as people read it."""

from contracts.conversation import LaneState, LaneView, Queued, WaitingView
from decisions.conversation.lane import MAX_QUEUED, TURN_EXCERPT
from decisions.text.formatting import escape_markdown, truncate

MAX_SHOWN_REQUESTS = 50


def lane_view(state: LaneState) -> LaneView:
    return LaneView(
        conversation_id=state.conversation_id,
        agent=state.agent,
        active=_waiting_view(state.active.queued) if state.active else None,
        queued=len(state.queue),
        most_queued=MAX_QUEUED,
        waiting=tuple(_waiting_view(message) for message in state.queue[:MAX_SHOWN_REQUESTS]),
        recent=state.recent,
        accepted=state.accepted,
        refused=state.refused,
        notices=state.notices,
    )


def _waiting_view(message: Queued) -> WaitingView:
    request = message.request
    asked = truncate(request.text, TURN_EXCERPT)
    return WaitingView(request_id=request.request_id, run_id=message.run_id, asked=asked, at=message.at)


def lane_details(state: LaneState) -> str:
    running = f"run `{state.active.queued.run_id}`" if state.active else "idle"
    blocks = [f"**{running}** · {len(state.queue):,} waiting · {state.accepted:,} accepted · {state.refused:,} refused"]
    if state.active:
        blocks.append(f"**Now** {escape_markdown(truncate(state.active.queued.request.text, TURN_EXCERPT))}")
    if state.notices:
        blocks.append(f"**Ignored** {escape_markdown(state.notices[-1])}")
    latest = reversed(state.recent[-5:])
    lines = [f"- {turn.end} `{turn.run_id}` {escape_markdown(truncate(turn.asked, 80))}" for turn in latest]
    return "\n\n".join([*blocks, *(["\n".join(["**Lately**", "", *lines])] if lines else [])])
