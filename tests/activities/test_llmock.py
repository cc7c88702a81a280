"""An outside judge: llmock breaks the Messages API in every way it knows, and gives its verdict on our client.

Retries are Temporal's, so `insist` stands in for it: it does what each failure says, and no more.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from llmock.pytest_plugin import LLMock
from temporalio.exceptions import ApplicationError

from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.contracts.agent import Definition, ToolSchema
from perdure.contracts.model_settings import ModelOptions

LOOK = ToolSchema(name="look", description="Looks.", input_schema={"type": "object"})
DEFINITION = Definition(
    agent="a", model="claude-x", options=ModelOptions(max_tokens=99), system="You are tested.", tools=(LOOK,)
)
GOAL = [{"role": "user", "content": [{"type": "text", "text": "see what is there"}]}]
ATTEMPTS = 4
TURN_TIMEOUT = 0.8  # seconds
FIRST_WAIT = 0.06  # seconds, then twice as long each time

Script = Callable[[LLMock], object]


@pytest.fixture
async def model(llmock: LLMock) -> AsyncIterator[MessagesModel]:
    """As the worker makes it: the client's own retries are off.

    The server is a thread of this process. It must not collect the garbage of this one: a stream that broke off is
    closed by the event loop that it belongs to, and may just be at it.
    """
    gc.disable()
    try:
        async with AsyncAnthropic(api_key="sk-none", base_url=llmock.base_url("anthropic"), max_retries=0) as client:
            yield MessagesModel(client)
        gc.collect(1)
    finally:
        gc.enable()


async def insist(model: MessagesModel, **fields: Any) -> tuple[ModelReply | None, list[str]]:
    """The reply, if one came in the end, and how each attempt before it failed."""
    failures: list[str] = []
    for attempt in range(ATTEMPTS):
        wait = FIRST_WAIT * 2**attempt
        try:
            call = ModelCall(**{"definition": DEFINITION, "messages": GOAL, **fields})
            return await asyncio.wait_for(model.reply(call), TURN_TIMEOUT), failures
        except TimeoutError:
            failures.append("timeout")
        except ApplicationError as error:
            failures.append(error.type or "")
            if error.non_retryable:
                break
            if error.next_retry_delay is not None:
                wait = error.next_retry_delay.total_seconds()
        if attempt < ATTEMPTS - 1:
            await asyncio.sleep(wait)
    return None, failures


def said(reply: ModelReply | None) -> str:
    return "".join(block.get("text", "") for block in reply.content) if reply else ""


PASSING: dict[str, tuple[Script, list[str]]] = {
    "rate limit": (lambda it: it.rate_limit(retry_after=0.4), ["RateLimited"]),
    "two rate limits": (lambda it: it.rate_limit(times=2, retry_after=0), ["RateLimited"] * 2),
    "overloaded": (lambda it: it.fail(529, retry_after=0), ["ModelUnavailable"]),
    **{
        f"status {status}": (lambda it, status=status: it.fail(status, retry_after=0), ["ModelUnavailable"])  # type: ignore[misc]
        for status in (408, 409, 500, 502, 503, 504)
    },
    "dropped in the middle, twice": (lambda it: it.disconnect(after_chunks=3, times=2), ["ModelUnavailable"] * 2),
    "a stream that hangs": (lambda it: it.stall(after_chunks=2, seconds=30), ["timeout"]),
    "a first word that never comes": (lambda it: it.slow_first_token(30), ["timeout"]),
    "an answer that never comes": (lambda it: it.delay(1.2), ["timeout"]),
    "one thing after another": (
        lambda it: it.fail(503, retry_after=0).fail(429, retry_after=0).fail(529, retry_after=0),
        ["ModelUnavailable", "RateLimited", "ModelUnavailable"],
    ),
}


@pytest.mark.parametrize("fault", PASSING)
async def test_a_fault_that_passes_is_outlived_by_the_judges_rules(
    llmock: LLMock, model: MessagesModel, fault: str
) -> None:
    script, failures = PASSING[fault]
    script(llmock.tool_mode("off").reply("all is well", times=None))
    reply, failed = await insist(model)
    assert (said(reply), failed) == ("all is well", failures)
    verdict = llmock.verdict()
    assert (verdict.attempts, verdict.findings) == (len(failures) + 1, ()), verdict.render()
    llmock.assert_resilient(strict=True)


EVENTS = (
    "message_start",
    "content_block_start",
    "ping",
    *["content_block_delta"] * 3,
    "content_block_stop",
    "message_delta",
    "message_stop",
)
# Where the judge is stricter than we are, or cannot see what we did; nothing of the answer is lost in any of them.
JUDGED = {
    ("corrupt", "ping"): ["malformed_chunk_ignored"],  # a ping says nothing, so the client does not read it
    ("corrupt", "message_stop"): ["malformed_chunk_ignored"],  # tried again, but all had been sent by then
    ("truncate", "message_stop"): ["truncated_stream_accepted"],  # the stop reason had come: the answer is whole
}
NOT_TRIED_AGAIN = {("corrupt", "ping"), ("truncate", "message_stop")}


@pytest.mark.parametrize("fault", ["corrupt", "truncate", "disconnect"])
@pytest.mark.parametrize("at", range(len(EVENTS)), ids=lambda at: f"{at}-{EVENTS[at]}")
async def test_wherever_a_stream_breaks_half_an_answer_is_never_taken_for_a_whole_one(
    llmock: LLMock, model: MessagesModel, fault: str, at: int
) -> None:
    llmock.pace(10).tool_mode("off").reply("all is well", times=None)
    getattr(llmock, fault)(after_chunks=at)
    reply, failed = await insist(model)
    case = (fault, EVENTS[at])
    assert (said(reply), failed) == ("all is well", [] if case in NOT_TRIED_AGAIN else ["ModelUnavailable"])
    assert [finding.code for finding in llmock.verdict().findings] == JUDGED.get(case, [])


LASTING: dict[str, tuple[Script, list[str]]] = {
    **{
        f"status {status}": (lambda it, status=status: it.fail(status, times=None), ["ModelRefused"])  # type: ignore[misc]
        for status in (400, 401, 402, 403, 404, 413, 422)
    },
    "context too long": (lambda it: it.context_overflow(times=None), ["ContextTooLong"]),
    "more than the window": (lambda it: it.limits(context_window=1), ["ContextTooLong"]),
    "an outage": (lambda it: it.fail(503, times=None, retry_after=0), ["ModelUnavailable"] * ATTEMPTS),
    "a rate limit without end": (lambda it: it.rate_limit(times=None, retry_after=0), ["RateLimited"] * ATTEMPTS),
}


@pytest.mark.parametrize("fault", LASTING)
async def test_a_fault_that_stays_is_given_up_in_time_and_never_by_hammering(
    llmock: LLMock, model: MessagesModel, fault: str
) -> None:
    script, failures = LASTING[fault]
    script(llmock)
    reply, failed = await insist(model)
    assert (reply, failed) == (None, failures)
    verdict = llmock.verdict()
    assert (verdict.attempts, verdict.findings) == (len(failures), ()), verdict.render()


async def test_a_real_quota_is_kept_by_waiting_as_long_as_it_asks(llmock: LLMock, model: MessagesModel) -> None:
    llmock.tool_mode("off").reply("all is well", times=None).limits(rpm=60)
    failures: list[str] = []
    for number in range(62):
        content = [{"type": "text", "text": f"question {number}"}]
        reply, failed = await insist(model, messages=[{"role": "user", "content": content}])
        assert said(reply) == "all is well"
        failures += failed
    assert set(failures) == {"RateLimited"}
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize(
    ("kind", "name", "broken"), [("malformed_arguments", "look", True), ("unknown_tool", None, False)]
)
async def test_a_broken_tool_use_goes_to_the_model_and_is_not_retried(
    llmock: LLMock, model: MessagesModel, kind: str, name: str | None, broken: bool
) -> None:
    llmock.break_tool_call(kind)
    reply, failed = await insist(model)
    assert reply is not None
    (use,) = [block for block in reply.content if block["type"] == "tool_use"]
    assert (reply.stop_reason, failed) == ("tool_use", [])
    assert (use["name"] == name) if name else (use["name"] != "look")  # which the run then refuses by name
    assert (reply.broken == (use["id"],)) is broken
    llmock.assert_resilient(strict=True)


async def test_of_a_tool_use_that_broke_off_nothing_is_kept(llmock: LLMock, model: MessagesModel) -> None:
    llmock.call_tool("look", {"at": "ü" * 200}, times=None).disconnect(after_chunks=2)
    reply, failed = await insist(model)
    assert reply is not None
    assert [block["input"] for block in reply.content if block["type"] == "tool_use"] == [{"at": "ü" * 200}]
    assert (failed, reply.broken) == (["ModelUnavailable"], ())
    llmock.assert_resilient(strict=True)


async def test_the_judge_would_have_found_what_it_looks_for(llmock: LLMock, model: MessagesModel) -> None:
    """A verdict that finds nothing is worth something only if it can find something."""
    llmock.fail(401).rate_limit(retry_after=5).truncate(after_chunks=1)
    for _ in range(3):
        with pytest.raises(ApplicationError):
            await model.reply(ModelCall(DEFINITION, GOAL))
    found = {finding.code for finding in llmock.verdict().findings}
    assert found == {"retried_non_retryable", "retry_after_ignored", "truncated_stream_accepted"}
