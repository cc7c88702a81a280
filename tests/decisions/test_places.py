"""Places: never more than the limit, in the order in which they came, and none is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from perdure.features.places.contract import PlacesState, Seat, TakePlace
from perdure.features.places.rules import drop_gone, format_taken, leave, take, to_check

KEY = "agent:clerk"
MOVES = st.lists(st.tuples(st.sampled_from(["take", "leave", "gone"]), st.integers(0, 7)), max_size=60)


def asked(number: int, most: int) -> TakePlace:
    return TakePlace(key=KEY, holder=f"r{number}", most=most, seat=Seat(workflow_id=f"r{number}", paused="1"))


@given(moves=MOVES, most=st.integers(1, 4))
def test_places_are_never_more_than_the_limit_and_go_to_those_who_came_first(
    moves: list[tuple[str, int]], most: int
) -> None:
    state, queue = PlacesState(), list[str]()
    for move, number in moves:
        name = f"r{number}"
        if move == "take":
            changed, answer = take(state, asked(number, most))
            if not answer.is_granted and name not in queue:
                queue.append(name)
        else:
            changed = leave(state, KEY, name) if move == "leave" else drop_gone(state, (name,))
            queue = [each for each in queue if each != name]
        state = changed.state
        assert list(changed.woken) == queue[: len(changed.woken)]
        queue = queue[len(changed.woken) :]
        held, waiting = state.held.get(KEY, {}), state.waiting.get(KEY, {})
        assert len(held) <= most
        assert list(waiting) == queue
        assert not waiting or len(held) == most
        assert not held.keys() & waiting.keys()


def test_a_larger_limit_lets_those_go_on_who_wait() -> None:
    state = PlacesState()
    for number in range(4):
        state = take(state, asked(number, 1))[0].state
    changed, answer = take(state, asked(9, 3))
    assert list(changed.woken) == ["r1", "r2"]
    assert not answer.is_granted
    assert set(to_check(changed.state)) == {"r0", "r1", "r2", "r3"}


def test_one_that_cannot_wait_is_not_in_the_queue() -> None:
    state = take(PlacesState(), asked(1, 1))[0].state
    changed, answer = take(state, asked(2, 1).evolve(waits=False))
    assert not answer.is_granted
    assert changed.state == state


def test_what_people_read() -> None:
    assert format_taken("agent:clerk/anna", 5, 5) == "agent clerk for anna: 5 of 5 at work"
