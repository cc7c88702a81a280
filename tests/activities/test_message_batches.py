"""The scripted Message Batches API, asked by the real `anthropic` client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import APIConnectionError, APIStatusError, APITimeoutError, AsyncAnthropic
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse

from perdure.process.models import create_http_client
from perdure.testkit.message_batches import ScriptedBatches
from perdure.testkit.model_server import ScriptedModel, expires, fails, says


def build_request(custom_id: str, text: str = "hello", **params: Any) -> Any:
    message = {"role": "user", "content": text}
    return {"custom_id": custom_id, "params": {"model": "scripted", "max_tokens": 9, "messages": [message], **params}}


@asynccontextmanager
async def connect(model: ScriptedModel) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(
        api_key="none", base_url=model.base_url, max_retries=0, http_client=create_http_client()
    ) as client:
        yield client


async def read_results(client: AsyncAnthropic, batch: MessageBatch) -> list[MessageBatchIndividualResponse]:
    return [result async for result in await client.messages.batches.results(batch.id)]


async def test_a_batch_is_answered_from_the_script_in_another_order() -> None:
    with ScriptedModel([says("done")]) as model:
        async with connect(model) as client:
            batch = await client.messages.batches.create(requests=[build_request("a"), build_request("b", "bye")])
            results = await read_results(client, batch)
        assert [result.custom_id for result in results] == ["b", "a"]
        assert all(result.result.type == "succeeded" for result in results)
        assert results[0].result.message.content[0].text == "done"  # type: ignore[union-attr]
        assert [request["custom_id"] for request in model.batches.paid] == ["a", "b"]
        assert model.batches.calls == {"create": 1, "retrieve": 1, "results": 1}
        assert not model.requests


async def test_an_open_batch_is_all_processing_and_has_no_results_until_it_is_ended() -> None:
    with ScriptedModel([says("done")], batches=ScriptedBatches(seconds=None)) as model:
        async with connect(model) as client:
            batch = await client.messages.batches.create(requests=[build_request("a")])
            assert (batch.processing_status, batch.request_counts.processing) == ("in_progress", 1)
            assert (batch.expires_at - batch.created_at).total_seconds() == 24 * 3600
            assert (await client.messages.batches.retrieve(batch.id)).results_url is None
            assert not model.batches.paid
            model.batches.end_batches()
            ended = await client.messages.batches.retrieve(batch.id)
    assert (ended.processing_status, ended.request_counts.succeeded) == ("ended", 1)


async def test_parts_fail_and_expire_until_they_are_sent_again() -> None:
    answers = {
        "refused": fails(400),
        "crowded": fails(529, then=says("later")),
        "late": expires(then=says("later")),
        "stopped": expires(type="canceled"),
    }
    with ScriptedModel(lambda body: answers[body["messages"][0]["content"]]) as model:
        async with connect(model) as client:
            requests = [build_request(text, text) for text in answers]
            found = [
                {result.custom_id: result.result for result in await read_results(client, batch)}
                for batch in [await client.messages.batches.create(requests=requests) for _ in range(2)]
            ]
        assert [found[0][text].type for text in answers] == ["errored", "errored", "expired", "canceled"]
        assert found[0]["refused"].error.error.type == "invalid_request_error"  # type: ignore[union-attr]
        assert found[0]["crowded"].error.error.type == "overloaded_error"  # type: ignore[union-attr]
        assert [found[1][text].type for text in answers] == ["errored", "succeeded", "succeeded", "canceled"]
        assert [request["custom_id"] for request in model.batches.paid] == ["crowded", "late"]


async def test_an_invalid_conversation_is_an_error_of_its_part() -> None:
    with ScriptedModel([says("done")]) as model:
        async with connect(model) as client:
            batch = await client.messages.batches.create(requests=[build_request("a", tools=[{}]), build_request("b")])
            results = {result.custom_id: result.result.type for result in await read_results(client, batch)}
    assert results == {"a": "errored", "b": "succeeded"}


async def test_a_cancelled_batch_is_not_paid() -> None:
    with ScriptedModel([says("done")], batches=ScriptedBatches(seconds=60)) as model:
        async with connect(model) as client:
            batch = await client.messages.batches.create(requests=[build_request("a")])
            assert (await client.messages.batches.cancel(batch.id)).processing_status == "canceling"
            assert [result.result.type for result in await read_results(client, batch)] == ["canceled"]
            assert (await client.messages.batches.cancel(batch.id)).processing_status == "ended"
        assert not model.batches.paid


async def test_a_create_is_accepted_although_its_connection_is_cut() -> None:
    with ScriptedModel([says("done")], batches=ScriptedBatches(cut_creates=[0])) as model:
        async with connect(model) as client:
            with pytest.raises(APIConnectionError):
                await client.messages.batches.create(requests=[build_request("a")])
            second = await client.messages.batches.create(requests=[build_request("b")])
            listed = [batch.id async for batch in client.messages.batches.list(limit=1)]
        assert listed == [batch.id for batch in model.batches.batches[::-1]]
        assert listed[0] == second.id
        assert len(listed) == 2


@pytest.mark.parametrize(
    ("requests", "status"),
    [
        ([build_request("a"), build_request("a", "bye")], 400),
        ([build_request("run:1")], 400),
        ([build_request("a" * 65)], 400),
        ([build_request("a", stream=True)], 400),
        ([], 400),
        ([{"custom_id": "a"}], 400),
        ([build_request("a"), build_request("b"), build_request("c")], 413),
        ([build_request("a", "x" * 2000)], 413),
    ],
)
async def test_a_create_that_the_api_refuses_leaves_no_batch(requests: list[Any], status: int) -> None:
    with ScriptedModel([says("done")], batches=ScriptedBatches(max_requests=2, max_bytes=2000)) as model:
        async with connect(model) as client:
            with pytest.raises(APIStatusError) as caught:
                await client.messages.batches.create(requests=requests)
        assert caught.value.status_code == status
        assert not model.batches.batches


async def test_batches_in_a_folder_outlive_the_server(tmp_path: Path) -> None:
    with ScriptedModel([expires(then=says("done"))], batches=ScriptedBatches(seconds=60, folder=tmp_path)) as model:
        async with connect(model) as client:
            batch = await client.messages.batches.create(requests=[build_request("a")])
    with ScriptedModel([expires(then=says("done"))], batches=ScriptedBatches(folder=tmp_path)) as model:
        model.batches.end_batches()
        async with connect(model) as client:
            assert [result.result.type for result in await read_results(client, batch)] == ["expired"]
            again = await client.messages.batches.create(requests=[build_request("a")])
            assert [result.result.type for result in await read_results(client, again)] == ["succeeded"]


async def test_an_unknown_batch_is_not_found() -> None:
    with ScriptedModel([says("done")]) as model:
        async with connect(model) as client:
            with pytest.raises(APIStatusError, match="no such batch"):
                await client.messages.batches.retrieve("msgbatch_0")


async def test_a_request_has_its_effect_before_its_late_reply() -> None:
    with ScriptedModel([says("done")], batches=ScriptedBatches(reply_seconds=0.5)) as model:
        async with connect(model) as client:
            with pytest.raises(APITimeoutError):
                await client.messages.batches.create(requests=[build_request("a")], timeout=0.2)
        assert len(model.batches.batches) == 1
