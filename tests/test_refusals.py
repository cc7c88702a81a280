"""What Temporal's client says becomes what whoever asked should do: nothing, or the same again."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.errors import RejectedError, RunNotFoundError, TemporalUnavailableError, convert_rpc_error
from perdure.client.runs import start_or_get_run
from perdure.contracts.run.events import StartEvent

BUSY = "namespace rate limit exceeded"
SAID = [
    (RPCStatusCode.UNAVAILABLE, "tcp connect error", TemporalUnavailableError),
    (RPCStatusCode.DEADLINE_EXCEEDED, "Timeout expired", TemporalUnavailableError),
    (RPCStatusCode.CANCELLED, "Timeout expired", TemporalUnavailableError),
    (RPCStatusCode.RESOURCE_EXHAUSTED, BUSY, TemporalUnavailableError),
    (RPCStatusCode.RESOURCE_EXHAUSTED, "grpc: received message larger than max (5 vs. 4)", RejectedError),
    (RPCStatusCode.INVALID_ARGUMENT, "BadSignalInput", RejectedError),
    (RPCStatusCode.NOT_FOUND, "workflow execution already completed", RejectedError),
    (RPCStatusCode.NOT_FOUND, "workflow not found", RunNotFoundError),
]


@pytest.mark.parametrize(("status", "message", "kind"), SAID)
def test_a_server_that_is_away_or_busy_has_refused_nothing(
    status: RPCStatusCode, message: str, kind: type[Exception]
) -> None:
    assert type(convert_rpc_error(RPCError(message, status, b""), "run x")) is kind


async def test_a_start_that_the_server_did_not_answer_may_have_happened() -> None:
    async def start_workflow(*_: Any, **__: Any) -> None:
        raise RPCError(BUSY, RPCStatusCode.RESOURCE_EXHAUSTED, b"")

    client = cast("Client", SimpleNamespace(start_workflow=start_workflow))
    event = StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": "do it"}})
    with pytest.raises(TemporalUnavailableError, match=f"{BUSY}; it may have started run x all the same"):
        await start_or_get_run(client, "q", event, "x")
