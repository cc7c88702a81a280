"""The entity of all budgets, and purses of workers: through its rotation, its termination, and without a worker."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from perdure.features.budgets.contract import BudgetsState, Every, Measure, Terms
from perdure.features.budgets.journal import Reservation, SpendJournal, current_boot, open_left, read_entries
from perdure.features.budgets.purse import AwayError, Need, Purse, UsedUpError
from perdure.features.budgets.rules import budgets_id, key_of, view_all
from tests.replaying import replay_history
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.script import FINISH

KEY = key_of("team", Measure.tokens)
TERMS = Terms(limit=1000, every=Every.month)
NEED = {KEY: Need(TERMS, 10)}


class Fleet:
    """Purses of one task queue, as many workers have them. `truth` is what their calls have really cost."""

    def __init__(self, it: World, folder: Path | None = None, terms: Terms = TERMS) -> None:
        self.it, self.folder, self.terms = it, folder, terms
        self.truth = 0

    @property
    def entity(self) -> Run:
        return self.it.client.get_workflow_handle(budgets_id(self.it.queue))

    def purse(self) -> Purse:
        return Purse(self.it.client, self.it.queue, {"team/tokens": self.terms}, self.folder)

    async def used(self) -> int:
        state = await self.entity.query("state", result_type=BudgetsState)
        views = view_all(state, state.keys[KEY].window + 1.0)
        return views[0].used

    async def spend(self, purse: Purse, cost: int = 7, most: int = 10, times: int = 1) -> int:
        """Make calls until one is refused; return how many were made."""
        for number in range(times):
            try:
                reservation = await purse.reserve({KEY: Need(self.terms, most)})
            except UsedUpError:
                return number
            await asyncio.sleep(0)
            self.truth += cost
            purse.charge(reservation, {KEY: cost})
        return times


@asynccontextmanager
async def fleet(world: MakeWorld, **options: Any) -> AsyncIterator[Fleet]:
    async with world(lambda _: FINISH) as it:
        having = Fleet(it, **options)
        yield having
        history = await having.entity.fetch_history()
        await replay_history(history, it.client.data_converter)


async def test_many_workers_use_all_of_a_budget_and_no_more_through_rotations(
    world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.features.budgets.workflow.MAX_TURNS", 5)
    async with fleet(world, folder=tmp_path / "b") as has:
        purses = [has.purse() for _ in range(5)]
        await asyncio.gather(*(has.spend(purse, times=200) for purse in purses for _ in range(4)))
        assert 950 <= has.truth <= 1000
        for purse in purses:
            await purse.close()
        assert await has.used() == has.truth
        executions = await has.it.executions(has.entity)
        assert not list((tmp_path / "b").iterdir()), "their journals are settled"
    assert len(executions) >= 3


async def test_a_terminated_entity_has_a_successor_with_all_that_was_spent(world: MakeWorld, tmp_path: Path) -> None:
    async with fleet(world) as has:
        alive, dead = has.purse(), has.purse()
        await has.spend(alive, times=20)
        await has.spend(dead, times=20)
        await dead.take_turn({}, gives_back=False)
        held = dead._pots[KEY].granted
        before = has.truth
        await has.entity.terminate("a test")
        await has.spend(alive, times=500)
        assert before < has.truth <= 1000 - (held - 140), "the dead worker's spend and lease count on"
        with pytest.raises(UsedUpError):
            await alive.reserve(NEED)
        await alive.close()
        assert await has.used() == has.truth


async def test_without_an_entity_what_is_leased_may_be_spent_and_then_calls_wait(world: MakeWorld) -> None:
    async with world(lambda _: FINISH, works=False) as it:
        has = Fleet(it)
        purse = has.purse()
        async with it.worker():
            await has.spend(purse, times=3)
        leased = purse._pots[KEY].granted - has.truth
        spent, began = has.truth, monotonic()
        with pytest.raises(AwayError, match="answer"):
            await has.spend(purse, cost=10, times=1000)
        made = (has.truth - spent) // 10
        assert 0 < made <= leased // 10
        assert monotonic() - began < 30
        with pytest.raises(AwayError, match="the next turn is in"):
            await purse.reserve(NEED)
        async with it.worker():
            await asyncio.sleep(purse._away_until - monotonic() + 0.1)
            assert await has.spend(purse, times=5) == 5
            await purse.close()
            assert await has.used() == has.truth


async def test_ten_workers_that_ask_at_once_are_all_served(world: MakeWorld) -> None:
    """As at the turn of a window; the server takes ten updates of a workflow at once."""
    async with fleet(world, terms=Terms(limit=1_000_000)) as has:
        purses = [has.purse() for _ in range(10)]
        made = await asyncio.gather(*(has.spend(purse, times=30) for purse in purses))
        assert made == [30] * 10
        for purse in purses:
            await purse.close()
        assert await has.used() == has.truth


async def test_keyed_allowances_are_spent_within_the_credit_unasked(world: MakeWorld) -> None:
    terms = Terms(limit=1000, every=Every.month, has_credit=True)
    async with fleet(world, terms=terms) as has:
        first, second = has.purse(), has.purse()
        keys = [key_of("team", Measure.tokens, f"customer {number}") for number in range(40)]
        for purse in (first, second):
            await has.spend(purse)
            turns = purse._seq
            for key in keys:
                for _ in range(9):
                    purse.charge(await purse.reserve({key: Need(terms, 10)}), {key: 10})
            await asyncio.gather(*purse._tasks)
            assert turns <= purse._seq
        for _ in range(100):
            with suppress(UsedUpError):
                first.charge(await first.reserve({keys[0]: Need(terms, 10)}), {keys[0]: 10})
        await first.close()
        await second.close()
        state = await has.entity.query("state", result_type=BudgetsState)
        assert state.keys[keys[1]].spent == 180
        assert 900 <= state.keys[keys[0]].spent <= 1000


async def test_a_journal_has_what_a_killed_worker_spent_and_may_have_spent(world: MakeWorld, tmp_path: Path) -> None:
    """The worker is a process of its own, killed with one call in flight; another one of its disk settles for it."""
    script = f"""
import sys, time
from pathlib import Path
from perdure.features.budgets.journal import SpendJournal
window = int(sys.argv[1])
journal = SpendJournal(Path({str(tmp_path / "b")!r}), "killed")
for number in range(5):
    journal.charge(journal.reserve({{{KEY!r}: (window, 50)}}), {{{KEY!r}: 7}})
journal.reserve({{{KEY!r}: (window, 50)}})
print("ready", flush=True)
time.sleep(60)
"""
    async with fleet(world, folder=tmp_path / "b") as has:
        purse = has.purse()
        await has.spend(purse)
        window = purse._pots[KEY].window
        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(window), stdout=PIPE)
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"ready\n"
        assert [path.stem for path, _ in open_left(tmp_path / "b")] == [], "both live"
        worker.kill()
        await worker.wait()
        await purse.sweep(tmp_path / "b")
        await purse.take_turn({}, gives_back=True)
        assert await has.used() == 7 + 5 * 7 + 50
        assert [path.stem for path in (tmp_path / "b").iterdir()] == [purse.worker]
        await purse.close()


def journal_at(folder: Path, boot: str = "") -> tuple[SpendJournal, Callable[[int], Reservation]]:
    journal = SpendJournal(folder, "w1")
    journal.entries.boot = boot or journal.entries.boot
    return journal, lambda most: journal.reserve({KEY: (0, most)})


def test_a_journal_is_written_anew_as_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.features.budgets.journal.MAX_LINES", 10)
    journal, reserve = journal_at(tmp_path)
    open_one = reserve(100)
    for _ in range(50):
        journal.charge(reserve(10), {KEY: 3})
    text = (tmp_path / "w1.jsonl").read_text()
    assert len(text.splitlines()) < 20
    assert read_entries(text).total() == {KEY: (0, 250)}
    assert list(open_left(tmp_path)) == []
    journal.charge(open_one, {KEY: 1})
    assert read_entries((tmp_path / "w1.jsonl").read_text()).total() == {KEY: (0, 151)}
    journal.close(is_settled=False)
    assert [entries.worker for _, entries in open_left(tmp_path)] == ["w1"]


def test_a_torn_line_of_a_journal_is_left_out(tmp_path: Path) -> None:
    journal, reserve = journal_at(tmp_path)
    journal.charge(reserve(10), {KEY: 3})
    reserve(10)
    text = (tmp_path / "w1.jsonl").read_text()
    journal.close(is_settled=True)
    for cut in range(len(text)):
        spent = read_entries(text[:cut]).total().get(KEY, (0, 0))[1]
        assert spent in (0, 3, 10, 13)
    assert read_entries(text).total() == {KEY: (0, 13)}


def test_a_cost_of_an_earlier_window_is_not_one_of_the_latest(tmp_path: Path) -> None:
    journal, _ = journal_at(tmp_path)
    old = journal.reserve({KEY: (3600, 10)})
    new = journal.reserve({KEY: (7200, 10)})
    journal.charge(new, {KEY: 4})
    journal.charge(old, {KEY: 9})
    assert journal.entries.total() == {KEY: (7200, 4)}
    journal.close(is_settled=True)


async def test_a_journal_of_before_a_cut_of_the_machine_is_not_believed(world: MakeWorld, tmp_path: Path) -> None:
    """Its last lines may be lost: what the worker held counts as spent."""
    async with fleet(world, folder=tmp_path / "b") as has:
        purse = has.purse()
        await has.spend(purse)
        old = f'["worker", "old", "another boot"]\n["sums", {{"{KEY}": [0, 5]}}]\n'
        (tmp_path / "b" / "old.jsonl").write_text(old)
        await purse.sweep(tmp_path / "b")
        assert (tmp_path / "b" / "old.jsonl").exists()
        assert current_boot() != "another boot"
        await purse.close()
        assert await has.used() == has.truth
