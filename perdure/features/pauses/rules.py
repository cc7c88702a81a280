"""The pause that holds an activity, pauses in words, and ids. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from perdure.decisions import ids
from perdure.features.pauses.contract import Pause, PauseChange, PauseState

PREFIX = "pause:"  # of the names of pauses
ALL = f"{PREFIX}all"


@dataclass(frozen=True)
class RunTraits:
    """The facts by which pauses select a run. `runs` are its id, and that of the first run above it."""

    runs: frozenset[str] = frozenset()
    agent: str = ""
    schedule: str = ""


def pauses_id(task_queue: str) -> str:
    return f"pauses:{task_queue}"


def pause_name(*, agent: str | None = None, schedule: str | None = None, query: str | None = None) -> str:
    """Return the name of a pause of an agent, of a schedule, or of the runs of a query; by default of all."""
    for kind, value in (("agent", agent), ("schedule", schedule)):
        if value is not None:
            return f"{PREFIX}{kind}:{quote(value)}"
    return ALL if query is None else f"{PREFIX}runs:{ids.digest(query.encode(), 4)}"


def describe_pause(pause: Pause) -> str:
    """Return what a pause holds, in words."""
    if pause.agent is not None:
        return f"agent {pause.agent}"
    if pause.schedule is not None:
        return f"schedule {pause.schedule}"
    if pause.query is not None:
        return f"{len(pause.runs)} run{'s' * (len(pause.runs) != 1)} of {pause.query!r}"
    return "all runs"


def pause_reason(pause: Pause) -> str:
    """Return the reason that people see at a held activity."""
    why = f": {pause.why}" if pause.why else ""
    return f"{describe_pause(pause)} paused by {pause.by} at {pause.at:%Y-%m-%d %H:%M} UTC{why}"


def needs_traits(pauses: Sequence[Pause]) -> bool:
    """Return whether it takes the traits of a run to tell which pause holds it."""
    return bool(pauses) and all(pause.name != ALL for pause in pauses)


def find_pause(pauses: Sequence[Pause], traits: RunTraits) -> Pause | None:
    """Return the pause that holds a run, if one does. The pause of all comes first."""
    holding = (pause for pause in pauses if _holds(pause, traits))
    return min(holding, key=lambda pause: pause.name != ALL, default=None)


def _holds(pause: Pause, traits: RunTraits) -> bool:
    if pause.agent is not None:
        return pause.agent == traits.agent
    if pause.schedule is not None:
        return pause.schedule == traits.schedule
    return pause.query is None or not traits.runs.isdisjoint(pause.runs)


def apply_change(state: PauseState, change: PauseChange) -> PauseState:
    """Return the state after a change. The runs of an ended pause are to be released."""
    begun = {pause.name: pause for pause in change.begin}
    kept = (pause for pause in state.pauses if pause.name not in begun and pause.name not in change.end)
    ended = dict.fromkeys(name for name in (*state.releasing, *change.end) if name not in begun)
    return state.evolve(pauses=(*kept, *begun.values()), releasing=tuple(ended))
