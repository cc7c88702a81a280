"""Large payloads on an object store that speaks S3: Temporal has references, runs go on as ever."""

from pathlib import Path

import obstore
import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import (
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from perdure.activities.storage.object_store import PayloadStore, open_store
from perdure.client.run_list import find_run
from perdure.client.watch import HistoryReader
from perdure.codec import AesGcmCodec
from perdure.converter import OFFLOAD_THRESHOLD, data_converter, with_encryption, with_offloading
from perdure.testkit.model_server import calls
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.script import FINISH

ASK = calls(("ask_human", {"question": "Which?"}))
NOTES = "unseen " * 20_000  # 140 KB, in the context of the start


async def client_with(client: Client, store: PayloadStore, codec: AesGcmCodec | None = None) -> Client:
    converter = with_offloading(with_encryption(codec) if codec else data_converter, store)
    return await Client.connect(client.service_client.config.target_host, data_converter=converter)


@pytest.mark.parametrize("codec", [None, AesGcmCodec({"k1": b"1" * 32})], ids=["plain", "encrypted"])
async def test_large_payloads_are_stored_outside_history(
    world: MakeWorld, client: Client, bucket: str, codec: AesGcmCodec | None
) -> None:
    server = await client_with(client, PayloadStore(bucket), codec)
    async with world([ASK, FINISH], server=server) as it:
        run = await it.start(context={"notes": NOTES})
        await it.answer(run, text="a")
        assert (await run.result())["type"] == "agent.completed"
        assert await it.failed_tasks(run) == 0
        await it.replay()
        history = await run.fetch_history()
        executions = await HistoryReader(server).read_executions(await find_run(server, run.id))
    assert executions[0].events[0]["input"][0]["payload"]["context"]["notes"] == NOTES
    assert sum(event.ByteSize() for event in history.events) < len(NOTES)
    objects = open_store(bucket)
    kept = [
        (meta["size"], bytes(obstore.get(objects, meta["path"]).bytes()))
        for page in obstore.list(objects, f"default/{run.id.replace(':', '%3A')}")
        for meta in page
    ]
    assert min(size for size, _ in kept) > OFFLOAD_THRESHOLD
    assert {NOTES.encode() in data for _, data in kept} == {codec is None}


async def test_a_run_waits_for_a_store_that_is_away(
    world: MakeWorld, client: Client, bucket: str, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = await client_with(client, PayloadStore(bucket))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody is there
    away = await client_with(client, PayloadStore(bucket))
    async with world([FINISH], server=there, works=False) as it:
        run = await it.start(context={"notes": NOTES})
        async with it.worker(away):
            await it.until(lambda: failed_tasks_of(it, run))
        async with it.worker(there):
            assert (await run.result())["type"] == "agent.completed"


async def failed_tasks_of(it: World, run: Run) -> bool:
    return bool(await it.failed_tasks(run))


async def test_equal_payloads_share_a_place_and_damage_is_reported(bucket: str) -> None:
    store, payload = PayloadStore(bucket), Payload(metadata={"encoding": b"json/plain"}, data=b'"x"')
    context = StorageDriverStoreContext(StorageDriverWorkflowInfo(namespace="default", id="run:../../r1"))
    first, second = [(await store.store(context, [payload]))[0] for _ in range(2)]
    assert first == second
    assert await store.retrieve(StorageDriverRetrieveContext(), [first]) == [payload]
    objects, key = open_store(bucket), first.claim_data["key"]
    assert key.startswith("default/run%3A..%2F..%2Fr1/")
    obstore.put(objects, key, b"other")
    with pytest.raises(ValueError, match="is damaged"):
        await store.retrieve(StorageDriverRetrieveContext(), [first])
    obstore.delete(objects, key)
    with pytest.raises(ValueError, match="there is no default"):
        await store.retrieve(StorageDriverRetrieveContext(), [first])


@pytest.mark.parametrize("key", ["", "/", "x" * 5000, f"default/{'x' * 5000}/{'0' * 64}", "../../etc/passwd"])
async def test_a_forged_reference_is_no_store_that_is_away(tmp_path: Path, key: str) -> None:
    """An OSError would be waited for, and the workflow task tried again for ever."""
    store = PayloadStore(tmp_path.as_uri())
    with pytest.raises(ValueError, match="names nothing that was ever stored"):
        await store.retrieve(StorageDriverRetrieveContext(), [StorageDriverClaim({"key": key})])
