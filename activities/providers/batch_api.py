"""The Message Batches API through the `anthropic` SDK. A create request has no idempotency key: see `find`."""

from collections.abc import AsyncIterator, Awaitable, Collection, Mapping
from typing import Any, TypeVar

import anthropic
import httpx2
from anthropic import AsyncAnthropic
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from temporalio.exceptions import ApplicationError

from activities.providers.anthropic import read_reply
from activities.providers.errors import WrongApiError, to_model_failure
from activities.providers.port import ModelReply
from contracts.failures import RunFailure

CLOCK_MARGIN = 60.0  # seconds by which the provider's clock may be behind Temporal's
PAGE = 100  # batches
T = TypeVar("T")


class MessageBatches:
    """The batches of a server that speaks the Messages API. The client's own retries are off."""

    def __init__(self, client: AsyncAnthropic) -> None:
        self._client = client

    async def create(self, requests: Mapping[str, dict[str, Any]], headers: Mapping[str, str]) -> str:
        """Send requests by their ids. Return the id of the batch."""
        parts: list[Any] = [{"custom_id": name, "params": params} for name, params in requests.items()]
        created = self._client.messages.batches.create(requests=parts, extra_headers=dict(headers))
        return (await self._await_reply(created)).id

    async def find(self, count: int, since: float, known: Collection[str]) -> str | None:
        """Return the oldest batch since a time that has so many requests, apart from those that are known.

        The list has no ids of requests: another program's batch may be found. Its results show it.
        """
        return await self._await_reply(self._find(count, since - CLOCK_MARGIN, known))

    async def _find(self, count: int, since: float, known: Collection[str]) -> str | None:
        found = None
        async for batch in self._client.messages.batches.list(limit=PAGE):  # the newest are first
            if batch.created_at.timestamp() < since:
                break
            if batch.id not in known and _count_requests(batch) == count:
                found = batch.id
        return found

    async def is_ended(self, batch: str) -> bool:
        """Return whether the results can be read. Raises ApplicationError `ModelRefused` if the batch is not there."""
        return (await self._await_reply(self._client.messages.batches.retrieve(batch))).processing_status == "ended"

    async def results(self, batch: str) -> AsyncIterator[tuple[str, ModelReply | ApplicationError]]:
        """Yield the ids of the requests with their replies or failures, in any order."""
        parts = await self._await_reply(self._client.messages.batches.results(batch))
        while (part := await self._await_reply(anext(parts, None))) is not None:
            yield part.custom_id, await _read_part(part)

    async def _await_reply(self, reply: Awaitable[T]) -> T:
        try:
            return await reply
        except (anthropic.AnthropicError, httpx2.HTTPError, ValueError) as error:
            raise to_model_failure(error, self._client.api_key) from None


async def _read_part(part: MessageBatchIndividualResponse) -> ModelReply | ApplicationError:
    match part.result.type:
        case "succeeded":
            try:
                return await read_reply(part.result.message.to_dict(mode="json", warnings=False), lambda _: None)
            except WrongApiError as error:
                return to_model_failure(error)
        case "errored":
            return _to_part_failure(part.result.error.error.to_dict(mode="json"))
        case kind:
            return ApplicationError(f"the request {kind} in its batch", type=RunFailure.model_unavailable)


def _to_part_failure(error: Mapping[str, Any]) -> ApplicationError:
    """Return the failure of one request in a batch as that of a live one: an error within a stream."""
    kind, message = str(error.get("type") or "error"), str(error.get("message") or "no reason given")
    response = httpx2.Response(200, request=httpx2.Request("GET", "https://batch.invalid"))
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return to_model_failure(anthropic.APIStatusError(message, response=response, body=body))


def _count_requests(batch: MessageBatch) -> int:
    counts = batch.request_counts
    return counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
