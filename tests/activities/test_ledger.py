"""The effect ledger: of all who try, one makes the effect, and its outcome is recorded or known to be unknown."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from obstore.store import LocalStore as ObstoreLocal
from obstore.store import MemoryStore

from perdure.activities.effects import ledger
from perdure.activities.effects.ledger import (
    Claim,
    ClaimGranted,
    ClaimOwner,
    InDoubt,
    LedgerEntry,
    LedgerUnavailableError,
)
from perdure.activities.storage.object_store import RemoteStores
from perdure.activities.storage.store import LocalStores, Store, Stores
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.decisions.ids import call_digest
from tests.waiting import PATIENCE

Process: TypeAlias = "subprocess.Popen[bytes]"
TIMEOUT = timedelta(seconds=30)
DONE = ToolOutcome(result={"receipt": 7}, duration_ms=3)


@pytest.fixture(params=["local", "memory", "object store on disk", "S3"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    match request.param:
        case "local":
            made = LocalStores(tmp_path)
            made.of("r").workspace.create()
            return made
        case "memory":
            return RemoteStores(MemoryStore())
        case "S3":
            return RemoteStores.at(request.getfixturevalue("bucket"))
        case _:
            return RemoteStores(ObstoreLocal(str(tmp_path), mkdir=True))


@pytest.fixture
def entry(stores: Stores) -> LedgerEntry:
    return LedgerEntry(stores.of("r"), "agentic:run:r:step:3:request", 3)


def test_one_of_many_that_claim_at_once_is_granted(entry: LedgerEntry) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: entry.claim("charge", TIMEOUT), range(64)))
    assert [type(answer) for answer in answers].count(ClaimGranted) == 1
    assert all(isinstance(answer, ClaimGranted | InDoubt) for answer in answers)


def test_a_recorded_result_is_found_by_a_second_claim(entry: LedgerEntry) -> None:
    assert isinstance(entry.claim("charge", TIMEOUT), ClaimGranted)
    entry.record(DONE)
    assert entry.claim("charge", TIMEOUT) == DONE


def test_a_claim_without_a_result_has_its_owner_and_its_end(entry: LedgerEntry) -> None:
    entry.claim("charge", TIMEOUT)
    found = entry.claim("charge", TIMEOUT)
    assert isinstance(found, InDoubt)
    assert found.claim is not None
    assert (found.claim.key, found.claim.tool, found.claim.owner) == (entry.key, "charge", ClaimOwner.current())
    assert found.claim.until - found.claim.claimed_at == TIMEOUT


def test_another_step_generation_or_run_has_a_page_of_its_own(stores: Stores, entry: LedgerEntry) -> None:
    entry.claim("charge", TIMEOUT)
    others = [
        LedgerEntry(entry.store, "k", 4),
        LedgerEntry(entry.store, "k", 3, generation=2),
        LedgerEntry(stores.of("r2"), "k", 3),
    ]
    if isinstance(stores, LocalStores):
        stores.of("r2").workspace.create()
    assert all(isinstance(other.claim("charge", TIMEOUT), ClaimGranted) for other in others)


@pytest.mark.parametrize("damaged", ["claim", "result"])
def test_a_damaged_page_is_in_doubt_and_never_taken_for_free(entry: LedgerEntry, damaged: str) -> None:
    entry.claim("charge", TIMEOUT)
    entry.store.write(f"ledger/step-00003.{damaged}", b"{half a")
    assert entry.claim("charge", TIMEOUT) == InDoubt(None)


def refusing_store(number: int) -> Store:
    class Refusing(LocalStores):
        def create(self, name: str, data: bytes) -> None:
            raise OSError(number, os.strerror(number))

    return Refusing(Path())  # type: ignore[return-value]  # nothing else of it is used


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_ledger_that_takes_no_claim_grants_nothing(number: int) -> None:
    with pytest.raises(LedgerUnavailableError, match="takes no claim"):
        LedgerEntry(refusing_store(number), "k", 1).claim("charge", TIMEOUT)


def test_a_claim_that_the_disk_cuts_in_half_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = LocalStores(tmp_path)
    stores.of("r").workspace.create()
    entry = LedgerEntry(stores.of("r"), "k", 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LedgerUnavailableError):
            entry.claim("charge", TIMEOUT)
    assert isinstance(entry.claim("charge", TIMEOUT), ClaimGranted)


def claim_as(entry: LedgerEntry, owner: ClaimOwner) -> InDoubt:
    entry.claim("charge", TIMEOUT)
    found = entry.read_outcome()
    assert isinstance(found, InDoubt)
    assert found.claim is not None
    claim = found.claim.evolve(owner=owner)
    entry.store.write("ledger/step-00003.claim", claim.model_dump_json().encode())
    return InDoubt(Claim.model_validate(claim))


def owner_of(process: Process) -> ClaimOwner:
    return ClaimOwner(host=ClaimOwner.current().host, pid=process.pid, started=ledger._process_start(process.pid))


@pytest.fixture
def living() -> Iterator[Process]:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process
        process.kill()


async def test_the_result_of_a_living_claimant_is_waited_for(entry: LedgerEntry, living: Process) -> None:
    owner = owner_of(living)
    waiting = asyncio.create_task(entry.wait_for_result(claim_as(entry, owner), ()))
    await asyncio.sleep(2 * ledger.RESULT_CHECK_EVERY)
    assert not waiting.done()
    entry.record(DONE)
    assert await asyncio.wait_for(waiting, PATIENCE) == DONE


async def test_a_dead_claimant_is_not_waited_for(entry: LedgerEntry, living: Process) -> None:
    owner = owner_of(living)
    assert owner.may_live
    living.kill()
    doubtful = claim_as(entry, owner)
    assert await asyncio.wait_for(entry.wait_for_result(doubtful, ()), PATIENCE) == doubtful
    assert not owner.may_live


async def test_a_claim_of_this_process_is_waited_for_while_it_is_at_work(entry: LedgerEntry) -> None:
    entry.claim("charge", TIMEOUT)
    doubtful = entry.read_outcome()
    assert isinstance(doubtful, InDoubt)
    assert await asyncio.wait_for(entry.wait_for_result(doubtful, ()), PATIENCE) == doubtful
    waiting = asyncio.create_task(entry.wait_for_result(doubtful, {entry.key}))
    await asyncio.sleep(2 * ledger.RESULT_CHECK_EVERY)
    assert not waiting.done()
    entry.record(DONE)
    assert await asyncio.wait_for(waiting, PATIENCE) == DONE


async def test_a_claimant_on_another_machine_is_waited_for_shortly(
    entry: LedgerEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "ELSEWHERE", timedelta(seconds=0.3))
    doubtful = claim_as(entry, ClaimOwner(host="another", pid=1))
    assert await asyncio.wait_for(entry.wait_for_result(doubtful, ()), PATIENCE) == doubtful


def test_an_error_is_recorded_as_well_as_a_result(entry: LedgerEntry) -> None:
    entry.claim("charge", TIMEOUT)
    entry.record(error_outcome("timeout", "no answer", retryable=True))
    found = entry.read_outcome()
    assert isinstance(found, ToolOutcome)
    assert found.error is not None
    assert found.error.kind == "timeout"


def test_a_store_keeps_lists_and_clears(stores: Stores) -> None:
    store = stores.of("r")
    assert store.names("ledger") == []
    store.write("ledger/b", b"1")
    store.create("ledger/a", b"2")
    store.write("segment-x.json", b"3")
    store.write("ledger/b", b"4")
    assert (store.names("ledger"), store.read("ledger/b")) == (["a", "b"], b"4")
    with pytest.raises(FileExistsError):
        store.create("ledger/a", b"5")
    with pytest.raises(FileNotFoundError):
        store.read("ledger/c")
    assert list(stores.list_folders()) == ["r"]
    store.remove_older("ledger", datetime.now(UTC) - timedelta(hours=1))
    assert store.names("ledger") == ["a", "b"]
    store.remove_older("ledger", datetime.now(UTC) + timedelta(hours=1))
    assert (store.names("ledger"), store.read("segment-x.json")) == ([], b"3")
    store.write("ledger/b", b"6")
    store.clear()
    assert store.names("ledger") == []
    store.clear()


def test_a_page_of_another_call_is_in_doubt_and_never_its_result(entry: LedgerEntry) -> None:
    entry.claim("charge", TIMEOUT)
    entry.record(DONE)
    other = replace(entry, call=call_digest("charge", {"eur": 900}))
    assert other.claim("charge", TIMEOUT) == InDoubt(None)


def test_a_run_of_the_same_id_has_pages_of_its_own(entry: LedgerEntry) -> None:
    first = replace(entry, execution="01a200ec-6681-755f-8626-32d6549a304d")
    first.claim("charge", TIMEOUT)
    first.record(DONE)
    second = replace(entry, execution="01a200ec-6681-755f-8626-aaaaaaaaaaaa")
    assert isinstance(second.claim("charge", TIMEOUT), ClaimGranted)


def test_a_client_that_sends_its_claim_twice_is_granted_it(entry: LedgerEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    create = type(entry.store).create

    def twice(store: Store, name: str, data: bytes) -> None:
        create(store, name, data)
        create(store, name, data)

    monkeypatch.setattr(type(entry.store), "create", twice)
    assert isinstance(entry.claim("charge", TIMEOUT), ClaimGranted)


def test_an_earlier_generation_is_at_work_while_its_claimant_lives(entry: LedgerEntry, living: Process) -> None:
    assert not entry.is_at_work(())
    claim_as(
        entry,
        owner_of(living),
    )
    assert entry.is_at_work(())
    living.kill()
    living.wait()
    assert not entry.is_at_work(())
    claim_as(entry, ClaimOwner(host="another", pid=1))
    assert entry.is_at_work(())
    entry.record(DONE)
    assert not entry.is_at_work(())


async def test_a_result_that_came_after_the_check_is_found_when_its_claimant_has_left(entry: LedgerEntry) -> None:
    entry.claim("charge", TIMEOUT)
    seen = entry.claim("charge", TIMEOUT)
    assert isinstance(seen, InDoubt)
    entry.record(DONE)
    assert await entry.wait_for_result(seen, ()) == DONE
