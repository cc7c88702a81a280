"""A person's word on how a run goes on that does not find the way by itself."""

from contracts.run import Call, Forced
from contracts.signals import Decision
from decisions.thrash import directed
from decisions.transcript import note_part
from workflows.live_run import LiveRun

KEEP_GOING = "keep going"


async def direction(run: LiveRun, forced: Forced, said: str = "", about: Call | None = None) -> str:
    """Asks what `forced` is about, with what the model `said` to it. Where the answer is to stop, the run halts."""
    if forced.asks is None:
        raise AssertionError(f"{forced.tool} asks nobody")
    text = f"{forced.text}\n\n{said}" if said else forced.text
    answer = await run.ask(forced.asks, text, about=about)
    run.state = directed(run.state)
    if answer.decision is Decision.stop:
        run.halt.request(f"stopped by {answer.by or 'a person'}: {answer.text or forced.asks}")
    return answer.text or KEEP_GOING


async def ask_in_its_place(run: LiveRun, forced: Forced) -> None:
    """The runtime asks what the model was to ask, and the model is told the answer."""
    said = await direction(run, forced)
    run.transcript.append(note_part(f"A person was asked: {forced.text}\nThe answer: {said}"))
