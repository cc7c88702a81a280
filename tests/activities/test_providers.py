"""Who answers where a model cannot: the next of the list, at its own provider's pace."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from perdure.activities.providers import fallback
from perdure.activities.providers.fallback import RESTS, FallbackModel, Provider
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.providers.rate_limit import RateLimitedError, RateLimiter
from perdure.contracts.agent import Definition
from perdure.contracts.failures import RunFailure, Stop
from perdure.contracts.model_settings import ModelOptions
from perdure.contracts.run.turn import Usage

Answers = Callable[[str], ApplicationError | None]


class Endpoint:
    """Answers each model by a rule, and keeps whom it was asked for."""

    def __init__(self, fails: Answers = lambda _: None) -> None:
        self.fails = fails
        self.asked: list[str] = []

    async def reply(self, call: ModelCall) -> ModelReply:
        assert call.definition.fallbacks == ()
        self.asked.append(call.definition.model)
        if failure := self.fails(call.definition.model):
            raise failure
        return ModelReply([{"type": "text", "text": "hello"}], "end_turn", call.definition.model, Usage(input=1))


def new_failure(kind: RunFailure | Stop, *, final: bool = False, delay: float | None = None) -> ApplicationError:
    after = None if delay is None else timedelta(seconds=delay)
    return ApplicationError(f"said {kind}", type=kind, non_retryable=final, next_retry_delay=after)


DOWN = new_failure(RunFailure.model_unavailable)


class TwoProviders:
    """Two providers, at a pace that holds nobody back by itself, and a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, default: Answers, local: Answers = lambda _: None) -> None:
        self.now = 100.0
        monkeypatch.setattr(fallback, "monotonic", lambda: self.now)
        self.default, self.local = Endpoint(default), Endpoint(local)
        self.models = FallbackModel(
            {
                "anthropic": Provider(self.default, RateLimiter("anthropic", clock=lambda: self.now)),
                "local": Provider(self.local, RateLimiter("local", clock=lambda: self.now)),
            }
        )

    async def ask(self, *names: str) -> ModelReply:
        self.now += 1
        model, *others = names
        definition = Definition(
            agent="a",
            model=model,
            fallbacks=tuple(others),
            options=ModelOptions(max_tokens=9),
            system="You are tested.",
            tools=(),
        )
        return await self.models.reply(ModelCall(definition=definition, messages=[]))

    async def failure(self, *names: str) -> ApplicationError:
        with pytest.raises(ApplicationError) as failure:
            await self.ask(*names)
        return failure.value


MakeWorld = Callable[..., TwoProviders]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> MakeWorld:
    return lambda *answers: TwoProviders(monkeypatch, *answers)


def down(*names: str) -> Answers:
    return lambda model: DOWN if model in names else None


async def test_the_first_of_the_list_answers_and_the_others_are_not_asked(world: MakeWorld) -> None:
    it = world(down())
    reply = await it.ask("one", "two", "local:three")
    assert (reply.model, reply.asked, reply.passed_over) == ("one", "one", ())
    assert (it.default.asked, it.local.asked) == (["one"], [])


async def test_a_provider_gets_its_own_name_of_the_model_and_the_reply_names_it(world: MakeWorld) -> None:
    it = world(down())
    reply = await it.ask("local:llama3:8b")
    assert (reply.model, reply.asked) == ("local:llama3:8b", "local:llama3:8b")
    assert it.local.asked == ["llama3:8b"]


async def test_if_a_model_is_down_the_next_answers_and_the_reply_has_the_reason(world: MakeWorld) -> None:
    it = world(down("one", "two"))
    reply = await it.ask("one", "two", "local:three")
    assert reply.model == "local:three"
    assert [(each.model, each.why) for each in reply.passed_over] == [
        ("one", "said ModelUnavailable"),
        ("two", "said ModelUnavailable"),
    ]


@pytest.mark.parametrize("kind", [RunFailure.model_refused, Stop.context_too_long])
async def test_what_is_refused_for_good_is_for_a_person_or_the_run_and_no_other_model_is_asked(
    world: MakeWorld, kind: RunFailure | Stop
) -> None:
    it = world(lambda _: new_failure(kind, final=True))
    assert (await it.failure("one", "local:two")).type == kind
    assert it.local.asked == []


async def test_a_refusal_of_a_name_whose_provider_is_unknown_says_so(world: MakeWorld) -> None:
    it = world(lambda _: new_failure(RunFailure.model_refused, final=True))
    assert (await it.failure("locl:three")).message == (
        "said ModelRefused ('locl:three' is no provider's: there is no 'locl' among anthropic, local)"
    )
    assert (await it.failure("three")).message == "said ModelRefused"


async def test_a_model_that_failed_rests_so_that_the_next_turns_need_not_wait_for_it(world: MakeWorld) -> None:
    it = world(down("one"))
    await it.ask("one", "local:two")
    reply = await it.ask("one", "local:two")
    assert it.default.asked == ["one"]
    assert [each.why for each in reply.passed_over] == ["said ModelUnavailable"]


async def test_after_its_rest_one_call_tries_a_model_and_the_others_go_on_without_it(world: MakeWorld) -> None:
    it = world(down("one"))
    await it.ask("one", "local:two")
    it.now += RESTS.first
    for _ in range(3):
        assert (await it.ask("one", "local:two")).asked == "local:two"
    assert it.default.asked == ["one", "one"]


async def test_each_failure_in_a_row_makes_the_rest_longer_up_to_five_minutes(world: MakeWorld) -> None:
    it = world(down("one"))
    for rest in (30, 60, 120, 240, 300, 300):
        await it.ask("one", "local:two")
        it.default.asked.clear()
        it.now += rest - 2
        await it.ask("one", "local:two")
        assert it.default.asked == []
        it.now += 1


async def test_a_model_that_answers_again_is_the_first_again(world: MakeWorld) -> None:
    it = world(down("one"))
    await it.ask("one", "local:two")
    it.default.fails = down()
    it.now += RESTS.first
    assert [(await it.ask("one", "local:two")).asked for _ in range(2)] == ["one", "one"]
    it.default.fails = down("one")
    await it.ask("one", "local:two")
    it.now += RESTS.first
    await it.ask("one", "local:two")
    assert it.default.asked == ["one"] * 5  # it rests as at its first failure


async def test_where_the_others_fail_one_that_rests_is_asked_after_all(world: MakeWorld) -> None:
    it = world(down("one"))
    await it.ask("one", "local:two")
    it.default.fails, it.local.fails = down(), down("two")
    reply = await it.ask("one", "local:two")
    assert (reply.asked, reply.passed_over) == ("one", ())
    assert (it.default.asked, it.local.asked) == (["one", "one"], ["two", "two"])


async def test_one_that_was_not_needed_has_not_been_tried(world: MakeWorld) -> None:
    it = world(down("one"), down("two"))
    await it.failure("one", "local:two")
    it.now += RESTS.first
    it.default.fails = it.local.fails = down()
    await it.ask("one", "local:two")
    it.default.fails = down("one")
    assert (await it.ask("one", "local:two")).asked == "local:two"


async def test_if_all_models_rest_all_are_tried_and_the_last_failure_is_reported(world: MakeWorld) -> None:
    it = world(down("one"), down("two"))
    for _ in range(3):
        failure = await it.failure("one", "local:two")
        assert (failure.type, failure.non_retryable) == ("ModelUnavailable", False)
    assert (it.default.asked, it.local.asked) == (["one"] * 3, ["two"] * 3)


async def test_a_model_without_another_one_is_asked_each_time(world: MakeWorld) -> None:
    it = world(down("one"))
    for _ in range(3):
        assert (await it.failure("one")) is not None
    assert it.default.asked == ["one"] * 3


async def test_a_short_wait_for_a_rate_limit_is_waited_and_a_long_one_is_another_models(world: MakeWorld) -> None:
    it = world(lambda _: new_failure(RunFailure.rate_limited, delay=3))
    failure = await it.failure("one", "local:two")
    assert (failure.type, isinstance(failure, RateLimitedError)) == ("RateLimited", False)
    assert failure.next_retry_delay == timedelta(seconds=3)
    it.now += 60
    it.default.fails = lambda _: new_failure(RunFailure.rate_limited, delay=40)
    assert (await it.ask("one", "local:two")).asked == "local:two"
    reply = await it.ask("one", "local:two")
    assert reply.passed_over[0].why.startswith("held back by the rate limit of anthropic, ")
    assert it.default.asked == ["one", "one"]


async def test_a_rate_limit_is_one_of_the_provider_and_of_all_its_models(world: MakeWorld) -> None:
    it = world(lambda _: new_failure(RunFailure.rate_limited, delay=40))
    await it.failure("one")
    assert isinstance(await it.failure("two"), RateLimitedError)
    assert it.default.asked == ["one"]


async def test_who_is_held_back_by_one_and_finds_the_others_down_has_lost_nothing_yet(world: MakeWorld) -> None:
    it = world(lambda _: new_failure(RunFailure.rate_limited, delay=40), down("two"))
    await it.failure("one")
    failure = await it.failure("one", "local:two")
    assert isinstance(failure, RateLimitedError)
    assert failure.next_retry_delay is not None
    assert failure.next_retry_delay >= timedelta(seconds=39)
