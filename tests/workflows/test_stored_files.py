"""What a run keeps by its hash is compared with it. A changed file holds the run up until the right one is back."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from activities.model.transcript_cache import digest_of_record, keep_segment, read_record, read_segment, record_name
from activities.storage.store import LocalStore, StoredFileChangedError
from activities.storage.workspace import Workspace
from contracts.conversation import TurnRecord
from contracts.run.transcript import Segment
from perdure.testkit.model_server import calls, says, slow

FINISH = calls(("finish", {"outcome": "done"}))


async def test_a_changed_definition_holds_the_run_up_until_it_is_right_again(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.GRACE", timedelta(seconds=0.1))
    asked = 0

    def script(_: Any) -> Any:
        nonlocal asked
        asked += 1
        return slow(says("never heard"), 30) if asked == 1 else FINISH

    async with world(script, works=False) as it:
        async with it.worker():
            run = await it.start(run_id=it.queue)
            await it.until(lambda: asked == 1)
        path = next((tmp_path / it.queue / ".store").glob("definition-*.json"))
        right = path.read_bytes()
        path.write_bytes(right.replace(b"You are tested.", b"You are EVIL now."))
        async with it.worker():

            async def is_held() -> bool:
                pending = (await run.describe()).raw_description.pending_activities
                return any("was changed: its hash is" in each.last_failure.message for each in pending)

            await it.until(is_held)
            (pending,) = (await run.describe()).raw_description.pending_activities
            assert path.name.removeprefix("definition-").removesuffix(".json") in pending.last_failure.message
            assert pending.last_failure.application_failure_info.type == "StoredFileChangedError"
            path.write_bytes(right)
            await run.result()
        assert (await run.describe()).status is WorkflowExecutionStatus.COMPLETED
    assert "EVIL" not in str(it.model.requests)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    workspace = Workspace(tmp_path / "run")
    workspace.create()
    return LocalStore(workspace)


async def test_a_changed_segment_is_named(store: LocalStore) -> None:
    segment = await keep_segment(store, [], 0, "head")
    assert await read_segment(store, segment) == []
    store.put(segment.ref, b"[ ]")
    with pytest.raises(StoredFileChangedError, match=r"segment-[0-9a-f]{32}\.json was changed"):
        await read_segment(store, segment)


async def test_a_changed_record_is_named_and_so_is_one_of_another_turn(store: LocalStore) -> None:
    record = TurnRecord(segments=(), run_id="r1", journal=None, shows_journal=False)
    ref = record_name("r1")
    whole = Segment(ref=ref, start=0, end=0, head="h", digest=digest_of_record(record))
    store.put(ref, record.model_dump_json().encode())
    assert await read_segment(store, whole) == []
    store.put(ref, record.model_copy(update={"shows_journal": True}).model_dump_json().encode())
    with pytest.raises(StoredFileChangedError, match=whole.digest):
        await read_segment(store, whole)
    store.put(record_name("r2"), record.model_dump_json().encode())
    with pytest.raises(StoredFileChangedError):
        await read_record(store, record_name("r2"))
