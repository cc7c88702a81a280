"""The rules of places: first come, first served; who leaves one gives it to the first who waits."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from perdure.features.places.contract import PlaceAnswer, PlacesState, Seat, TakePlace

MAX_CHECKED = 100  # holders of a check


def places_id(task_queue: str) -> str:
    """Return the id of the workflow that has all places of a task queue."""
    return f"perdure-places:{task_queue}"


def agent_key(agent: str, owner: str | None) -> str:
    """Return the key of an agent's places; those of one owner, if each has its own."""
    return f"agent:{agent}" if owner is None else f"agent:{agent}/{owner}"


def tool_key(tool: str) -> str:
    return f"tool:{tool}"


def holder_name(key: str) -> str:
    """Return the name under which those that wait for a place are held, without blanks."""
    return f"place:{quote(key, safe=':/')}"


def format_taken(key: str, taken: int, most: int) -> str:
    """Format as "agent clerk: 5 of 5 at work"."""
    kind, _, name = key.partition(":")
    return f"{kind} {name.replace('/', ' for ', 1)}: {taken} of {most} at work"


@dataclass(frozen=True)
class Changed:
    """The state after a change, and those whose turn it is now."""

    state: PlacesState
    woken: Mapping[str, Seat]


def take(state: PlacesState, asked: TakePlace) -> tuple[Changed, PlaceAnswer]:
    """Give a place, or let the holder wait. Asking again changes nothing."""
    state = state.evolve(most={**state.most, asked.key: asked.most})
    changed = _fill(state, asked.key)
    state = changed.state.evolve(most=state.most)
    held, waiting = dict(state.held.get(asked.key, {})), dict(state.waiting.get(asked.key, {}))
    is_granted = asked.holder in held or len(held) < asked.most
    if is_granted:
        held[asked.holder] = asked.seat.evolve(paused="")
        waiting.pop(asked.holder, None)
    elif asked.waits:
        waiting[asked.holder] = asked.seat  # at its old place, if it waits already
    answer = PlaceAnswer(is_granted=is_granted, taken=len(held))
    return Changed(_with(state, asked.key, held, waiting), changed.woken), answer


def leave(state: PlacesState, key: str, holder: str) -> Changed:
    """Take a place back, or the wish for one. The first who waits gets it."""
    held = {name: seat for name, seat in state.held.get(key, {}).items() if name != holder}
    waiting = {name: seat for name, seat in state.waiting.get(key, {}).items() if name != holder}
    return _fill(_with(state, key, held, waiting), key)


def _fill(state: PlacesState, key: str) -> Changed:
    held, waiting, woken = dict(state.held.get(key, {})), dict(state.waiting.get(key, {})), dict[str, Seat]()
    while waiting and len(held) < state.most.get(key, 0):
        name = next(iter(waiting))
        held[name] = woken[name] = waiting.pop(name)
    return Changed(_with(state, key, held, waiting), woken)


def _with(state: PlacesState, key: str, held: Mapping[str, Seat], waiting: Mapping[str, Seat]) -> PlacesState:
    """Return the state with these; an unused key is dropped."""
    helds, waitings, most = dict(state.held), dict(state.waiting), dict(state.most)
    for known, now in ((helds, held), (waitings, waiting)):
        known.pop(key, None)
        if now:
            known[key] = dict(now)
    if not (held or waiting):
        most.pop(key, None)
    return PlacesState(most=most, held=helds, waiting=waitings)


def to_check(state: PlacesState) -> dict[str, Seat]:
    """Return the holders to check, as others wait for their places, and the first of those who wait."""
    seats = dict[str, Seat]()
    for key, waiting in state.waiting.items():
        seats |= state.held.get(key, {})
        name, seat = next(iter(waiting.items()))
        seats[name] = seat
    return dict(list(seats.items())[:MAX_CHECKED])


def drop_gone(state: PlacesState, gone: tuple[str, ...]) -> Changed:
    """Take back the places of holders that are gone."""
    woken = dict[str, Seat]()
    for key in tuple(state.most):
        for holder in gone:
            if holder in state.held.get(key, {}) or holder in state.waiting.get(key, {}):
                changed = leave(state, key, holder)
                state = changed.state
                woken |= changed.woken
    return Changed(state, {name: seat for name, seat in woken.items() if name not in gone})
