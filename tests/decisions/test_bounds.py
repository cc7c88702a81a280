"""Bounds of memory and time."""

from datetime import timedelta
from itertools import islice

from perdure.contracts.bounds import Backoff, Latest, LatestNotices
from perdure.contracts.models import FrozenModel
from perdure.workflows.execution import retrying


def test_pauses_grow_up_to_the_longest_one_however_often_it_failed() -> None:
    pauses = Backoff(1, 60, factor=3)
    assert list(islice(pauses, 6)) == [1, 3, 9, 27, 60, 60]
    assert pauses.seconds(0) == 0
    assert pauses.pause(10_000) == timedelta(minutes=1)


def test_retries_end_the_pauses() -> None:
    assert list(Backoff(0.5, 8, factor=4, retries=3)) == [0.5, 2, 8]


def test_temporal_gets_the_same_pauses() -> None:
    policy = retrying(Backoff(0.5, 8, factor=4, retries=3))
    assert (policy.maximum_attempts, policy.backoff_coefficient) == (4, 4)
    assert (policy.initial_interval, policy.maximum_interval) == (timedelta(seconds=0.5), timedelta(seconds=8))
    assert retrying(Backoff(1, 30)).maximum_attempts == 0


class Numbers(Latest[int], most=3):
    """Three numbers."""


class Memory(FrozenModel):
    numbers: Numbers = Numbers()


def test_a_memory_drops_its_oldest_entries_however_they_come() -> None:
    assert Numbers().add(1, 2, 3).add(4) == Numbers(range(1, 5)) == (2, 3, 4)
    assert Memory.model_validate_json('{"numbers": [1, 2, 3, 4]}').numbers == (2, 3, 4)


def test_a_memory_is_a_plain_list_in_json_and_still_one_when_it_is_read() -> None:
    memory = Memory(numbers=Numbers([1, 2]))
    assert memory.model_dump_json() == '{"numbers":[1,2]}'
    assert Memory.model_validate(memory.model_dump()).numbers.add(3, 4) == (2, 3, 4)


def test_memories_keep_their_own_bounds() -> None:
    assert (Numbers.most, LatestNotices.most) == (3, 20)
