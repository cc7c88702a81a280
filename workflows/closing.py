"""The end of a turn: its results enter the conversation, and the run looks whether it goes in circles."""

from decisions import loop
from decisions.calls import was_refused
from decisions.thrash import sighting
from decisions.transcript import call_part, note_part
from workflows import events
from workflows.live_run import LiveRun


def close_turn(run: LiveRun) -> None:
    """Hands the results of a turn to the conversation, in the order of its tool uses."""
    for call in run.state.calls:
        run.transcript.append(call_part(call))
    if refused := [call for call in run.state.calls if was_refused(call)]:
        events.refused(run, refused)
    before = run.state.sighted
    closed = loop.closed_turn(run.state)
    run.state = closed.state
    for thrash in closed.seen:
        figures = {"tier": thrash.tier, "tool": thrash.tool, "count": thrash.count, "level": run.state.rung}
        advanced = thrash.is_barren and closed.climbed is not None
        is_news = advanced or sighting(thrash) not in before
        events.emit(run, "agent.loop.detected", is_traced=is_news, **figures, advanced=advanced)
    if closed.climbed is not None:
        events.emit(run, "agent.guardrail.escalated", ladder="thrash", rung=run.state.rung, stage=closed.climbed)
    if closed.note:
        run.transcript.append(note_part(closed.note))
