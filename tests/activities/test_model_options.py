"""Settings of model calls: how they are read and merged, what a request carries, and what a model does not take."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import httpx2
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Model
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from temporalio.exceptions import ApplicationError

from perdure.activities.model.turn import redact_turn
from perdure.activities.project import Project
from perdure.activities.providers.anthropic import MessagesModel
from perdure.activities.providers.options import (
    MAX_SHORT_TOKENS,
    abilities_of,
    build_options,
    can_force_tools,
    find_unusable,
    short_options,
    usable_options,
)
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.providers.prices import CLAUDE_MODELS
from perdure.activities.run.definition import build_definition, definition_diff
from perdure.activities.security import Secrets
from perdure.contracts.agent import Definition, ToolSchema
from perdure.contracts.model_settings import ModelOptions, ModelOverrides
from perdure.contracts.run.turn import ModelTurn, Usage
from perdure.process.models import create_http_client
from perdure.process.project import build_project, ignored_options
from perdure.settings import ProjectError
from perdure.testkit.model_server import ScriptedModel, fails, says
from tests.projects import load_project, rejection_line
from tests.shared_model import SharedModel

KEY = "sk-canary-51"
LOOK = ToolSchema(name="look", description="Looks.", input_schema={"type": "object"})
GOAL = [{"role": "user", "content": [{"type": "text", "text": "see"}]}]


def project(folder: Path, toml: str, head: str | None = None, **env: str) -> Project:
    settings = load_project(folder, toml, head=head, **{"ANTHROPIC_API_KEY": KEY, **env})
    return build_project(settings, SimpleNamespace(spec=httpx.AsyncClient))  # type: ignore[arg-type]


def options_of(its: Project, agent: str) -> ModelOptions:
    return build_definition(its, its.agents[agent], may_delegate=True).options


def test_an_agents_settings_come_before_the_projects_field_by_field(tmp_path: Path) -> None:
    toml = '[model]\ndefault = "local"\nmax_tokens = 5000\neffort = "high"\nbetas = ["one"]\nheaders = {x-team = "a"}\n'
    its = project(tmp_path, toml, "max_tokens: 4000\nthinking: 2048\nheaders: {x-agent: b}")
    assert options_of(its, "default") == ModelOptions(
        max_tokens=5000, effort="high", cache="5m", betas=("one",), headers={"x-team": "a"}
    )
    assert options_of(its, "a") == ModelOptions(
        max_tokens=4000, effort="high", cache="5m", betas=("one",), headers={"x-agent": "b"}, thinking=2048
    )


@pytest.mark.parametrize(("written", "value"), [("off", "off"), ("adaptive", "adaptive"), ("4096", 4096)])
def test_thinking_in_an_agents_file_is_off_adaptive_or_a_budget(tmp_path: Path, written: str, value: Any) -> None:
    assert options_of(project(tmp_path, '[model]\ndefault = "local"\n', f"thinking: {written}"), "a").thinking == value


def test_a_changed_setting_is_a_line_of_the_definitions_diff(tmp_path: Path) -> None:
    one = project(tmp_path, '[model]\ndefault = "local"\n')
    two = project(tmp_path, '[model]\ndefault = "local"\neffort = "low"\nextra = {top_k = 3}\n')
    old, new = (build_definition(its, its.agents["default"], may_delegate=True) for its in (one, two))
    diff = definition_diff(old, new).splitlines()
    assert '+effort: "low"' in diff
    assert '+extra: {"top_k": 3}' in diff
    assert [line for line in diff if line.startswith("-") and not line.startswith("---")] == []


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ("thinking = 1000", 'expected "off", "adaptive", or a budget of at least 1024 tokens'),
        ("thinking = true", 'expected "off", "adaptive", or a budget of at least 1024 tokens'),
        ('thinking = "on"', 'expected "off", "adaptive", or a budget of at least 1024 tokens'),
        ('effort = "huge"', "Input should be 'low', 'medium', 'high', 'xhigh' or 'max'"),
        ("temperature = 3", "Input should be less than or equal to 2"),
        ('headers = {Authorization = "Bearer x"}', "the header Authorization holds a secret: use api_key_env"),
        ('headers = {x-api-key = "x"}', "the header x-api-key holds a secret: use api_key_env"),
        ('headers = {anthropic-beta = "x"}', "the header anthropic-beta is the setting betas"),
        ('headers = {Content-Type = "x"}', "the header Content-Type is set by Perdure"),
        ("extra = {stream = false}", "stream is set by Perdure"),
        ("extra = {at = 2026-01-01}", "input was not a valid JSON value"),
    ],
)
def test_a_wrong_setting_is_rejected_in_one_line(tmp_path: Path, toml: str, reason: str) -> None:
    line = rejection_line(tmp_path, f"[model]\n{toml}\n", ANTHROPIC_API_KEY=KEY)
    assert f": model.{toml.partition(' ')[0]}" in line
    assert reason in line


@pytest.mark.parametrize(
    ("toml", "head", "reason"),
    [
        (
            "",
            "thinking: 2048\nmax_tokens: 2048",
            "line 2: thinking: a budget of 2048 must be below max_tokens",
        ),
        (
            "",
            "model: claude-sonnet-5-5\ntemperature: 0.1",
            "line 3: temperature: claude-sonnet-5-5 takes no temp",
        ),
        ('effort = "high"', "model: claude-haiku-4-5", "effort: claude-haiku-4-5 takes no effort (agent a)"),
        ('effort = "xhigh"', "model: claude-opus-4-6", "takes effort low, medium, high, max (agent a)"),
        ("", "model: claude-opus-5-5\nthinking: off", "claude-opus-5-5 always thinks"),
        ("", "model: claude-opus-4-8\nthinking: 4096", "claude-opus-4-8 takes no thinking budget"),
        ("", "model: claude-haiku-4-5\nthinking: adaptive", "has no adaptive thinking: set a budget"),
        ("", "model: claude-opus-5\nthinking: off\neffort: max", "can be without thinking at effort high or lower"),
        ("", "model: claude-haiku-4-5\ntemperature: 0.5\ntop_p: 0.9", "takes temperature or top_p, not both"),
        ("", "model: claude-haiku-4-5\nthinking: 4096\ntemperature: 0.5", "takes no temperature while it thinks"),
        ("", "model: claude-haiku-4-5\nthinking: 4096\ntop_p: 0.5", "thinks at a top_p of at least 0.95"),
        ("", 'model: "aws:eu.anthropic.claude-haiku-4-5-20251001-v1:0"\neffort: low', "takes no effort"),
        ("", 'model: "gpt:m"\nthinking: off', "thinking: the Chat Completions API has no thinking setting: set effort"),
        ("", 'model: "gpt:m"\nbetas: [a]', "betas: the Chat Completions API has no betas: leave them out"),
    ],
)
def test_a_setting_that_the_model_does_not_take_is_rejected_at_its_place(
    tmp_path: Path, toml: str, head: str, reason: str
) -> None:
    aws = '[model.providers.aws]\nkind = "bedrock"\nregion = "r"\n'
    aws += '[model.providers.gpt]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
    with pytest.raises(ProjectError) as error:
        project(tmp_path, f'[model]\ndefault = "local"\n{toml}\n{aws}', head)
    assert reason in str(error.value)


def test_a_fallback_is_asked_without_what_it_does_not_take_and_that_is_a_warning(tmp_path: Path) -> None:
    its = project(tmp_path, '[model]\ndefault = ["claude-opus-5-5", "claude-haiku-4-5"]\neffort = "low"\n')
    [line] = ignored_options(its)
    assert line == (
        "agent default: effort is left out of requests to the fallback claude-haiku-4-5: "
        "claude-haiku-4-5 takes no effort"
    )
    assert "output_config" in build_options("claude-opus-5-5", its.options)
    assert "output_config" not in build_options("claude-haiku-4-5", its.options)


def test_a_fallback_of_chat_completions_is_asked_without_thinking(tmp_path: Path) -> None:
    gpt = '[model.providers.gpt]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
    its = project(
        tmp_path, f'[model]\ndefault = ["claude-opus-5-5", "gpt:m"]\nthinking = "adaptive"\ncache = "1h"\n{gpt}'
    )
    left_out = "is left out of requests to the fallback gpt:m: the Chat Completions API"
    assert ignored_options(its) == [
        f"agent default: thinking {left_out} has no thinking setting: set effort",
        f"agent default: cache {left_out} caches prompts for as long as it likes: set auto",
    ]
    assert ignored_options(project(tmp_path, f'[model]\ndefault = ["m", "gpt:m"]\ncache = "auto"\n{gpt}')) == []
    with pytest.raises(ProjectError, match=r"line 3: model\.cache: .* set auto"):
        project(tmp_path, f'[model]\ndefault = "gpt:m"\ncache = "1h"\n{gpt}')


def test_every_claude_model_of_the_client_and_of_the_prices_is_in_the_table() -> None:
    named = {*get_args(get_args(Model)[0]), *CLAUDE_MODELS} - {"claude-mythos-preview"}
    assert [name for name in named if abilities_of(name) is None] == []


OPTIONS = st.builds(
    ModelOptions,
    temperature=st.none() | st.floats(0, 1),
    top_p=st.none() | st.floats(0.1, 1),
    thinking=st.none() | st.sampled_from(["off", "adaptive", 1024, 9000]),
    effort=st.none() | st.sampled_from(["low", "medium", "high", "xhigh", "max"]),
)


@given(st.sampled_from([*CLAUDE_MODELS, "qwen3:8b"]), OPTIONS)
def test_what_remains_of_the_options_is_taken(model: str, options: ModelOptions) -> None:
    usable = usable_options(model, options)
    assert set(find_unusable(model, usable)) <= {"temperature", "top_p"} - {
        name for name in ("temperature", "top_p") if getattr(usable, name) is None
    }
    assert usable.max_tokens == options.max_tokens
    if abilities_of(model) is None and options.thinking != 9000:
        assert usable == options


@given(
    st.fixed_dictionaries({}, optional={name: st.just(3000) for name in ("max_tokens", "thinking")}),
    st.fixed_dictionaries({}, optional={"effort": st.just("low"), "temperature": st.just(0.5)}),
)
def test_overrides_change_only_what_they_set(first: dict[str, Any], second: dict[str, Any]) -> None:
    merged = ModelOptions().override(ModelOverrides(**first)).override(ModelOverrides(**second))
    assert merged == ModelOptions(**first, **second)


@pytest.fixture
def script() -> Any:
    return [says("hello")]


@pytest.fixture
def server(script: Any) -> Iterator[ScriptedModel]:
    with SharedModel(script) as model:
        yield model


async def ask(server: ScriptedModel, options: ModelOptions, model: str = "scripted", **fields: Any) -> ModelReply:
    definition = Definition(agent="a", model=model, options=options, system="You are tested.", tools=(LOOK,))
    async with AsyncAnthropic(
        api_key=KEY, base_url=server.base_url, max_retries=0, http_client=create_http_client()
    ) as client:
        return await MessagesModel(client).reply(ModelCall(definition=definition, messages=GOAL, **fields))


@pytest.mark.parametrize(
    ("options", "members"),
    [
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"thinking": "off"}, {"thinking": {"type": "disabled"}}),
        ({"thinking": "adaptive"}, {"thinking": {"type": "adaptive", "display": "summarized"}}),
        ({"thinking": 2048}, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ({"effort": "low"}, {"output_config": {"effort": "low"}}),
        ({"extra": {"top_k": 3, "service_tier": "auto"}}, {"top_k": 3, "service_tier": "auto"}),
        (
            {"effort": "low", "extra": {"output_config": {"effort": "max", "format": None}}},
            {"output_config": {"effort": "low", "format": None}},
        ),
    ],
)
async def test_a_request_carries_the_settings_and_no_other(
    server: ScriptedModel, options: dict[str, Any], members: dict[str, Any]
) -> None:
    await ask(server, ModelOptions(**options))
    [body] = server.requests
    own = {"model", "max_tokens", "system", "messages", "tools", "stream"}
    assert {name: value for name, value in body.items() if name not in own} == members


async def test_headers_and_betas_are_headers_of_the_request() -> None:
    seen: list[httpx2.Headers] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers)
        return httpx2.Response(400, json={"type": "error", "error": {"type": "invalid_request_error", "message": "no"}})

    options = ModelOptions(betas=("one-2026", "two"), headers={"x-team": "a"})
    definition = Definition(agent="a", model="m", options=options, system="s", tools=())
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with AsyncAnthropic(api_key=KEY, base_url="http://model", max_retries=0, http_client=http) as client:
        with pytest.raises(ApplicationError):
            await MessagesModel(client).reply(ModelCall(definition=definition, messages=GOAL))
    assert (seen[0]["anthropic-beta"], seen[0]["x-team"]) == ("one-2026,two", "a")


@pytest.mark.parametrize(
    ("model", "options", "is_forced"),
    [
        ("scripted", {}, True),
        ("scripted", {"thinking": "off"}, True),
        ("scripted", {"thinking": "adaptive"}, False),
        ("scripted", {"thinking": 2048}, False),
        ("claude-sonnet-5-5", {}, False),
        ("claude-sonnet-5-5", {"thinking": "off"}, False),
        ("claude-haiku-4-5", {}, True),
    ],
)
async def test_no_tool_is_forced_if_the_api_would_refuse_it(
    server: ScriptedModel, model: str, options: dict[str, Any], is_forced: bool
) -> None:
    await ask(server, ModelOptions(**options), model, force="look")
    [body] = server.requests
    assert body.get("tool_choice") == ({"type": "tool", "name": "look"} if is_forced else None)
    assert can_force_tools(model, ModelOptions(**options)) is is_forced


async def test_a_closing_call_refuses_tools_while_thinking_too(server: ScriptedModel) -> None:
    await ask(server, ModelOptions(thinking="adaptive"), is_closing=True)
    [body] = server.requests
    assert body["tool_choice"] == {"type": "none"}


async def test_off_is_the_form_that_the_model_takes(server: ScriptedModel) -> None:
    await ask(server, ModelOptions(thinking="off"), "claude-sonnet-5-5")
    assert server.requests[0]["thinking"] == {"type": "between_tools"}


def refuse(message: str) -> Callable[[Any], Any]:
    return lambda _: fails(400, message=message)


@pytest.mark.parametrize(
    ("script", "options", "name"),
    [
        (refuse("temperature: may not be set"), {"temperature": 0.5}, "temperature"),
        (refuse("budget_tokens is unknown"), {"thinking": 2048}, "thinking"),
        (refuse("output_config: extra inputs are not permitted"), {"effort": "low"}, "effort"),
        (refuse("top_k: not permitted"), {"extra": {"top_k": 3}}, "extra"),
        (refuse("temperature: may not be set"), {}, None),
    ],
)
async def test_a_refusal_names_the_setting_that_it_is_about(
    server: ScriptedModel, options: dict[str, Any], name: str | None
) -> None:
    with pytest.raises(ApplicationError) as failure:
        await ask(server, ModelOptions(**options))
    assert failure.value.type == "ModelRefused"
    assert failure.value.message.endswith(f"(see {name} of [model], or of the agent)") is (name is not None)


THOUGHT = {"type": "thinking", "thinking": "the key is hunter2-hunter2", "signature": "s1"}
PLAIN_THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s2"}


def test_thinking_with_a_secret_is_dropped_whole_and_other_thinking_stays_as_it_is() -> None:
    text = {"type": "text", "text": "it is hunter2-hunter2"}
    turn = ModelTurn(content=[PLAIN_THOUGHT, THOUGHT, text], model="m", usage=Usage())
    clean = redact_turn(turn, Secrets([("PASSWORD", "hunter2-hunter2")]))
    assert clean.content == [PLAIN_THOUGHT, {"type": "text", "text": "it is [redacted PASSWORD]"}]
    assert redact_turn(turn, Secrets([("PASSWORD", "another-one")])) is turn


def test_a_definition_and_the_overrides_take_no_unknown_thinking() -> None:
    with pytest.raises(ValidationError, match="a budget of at least 1024"):
        ModelOverrides(thinking=5)


@pytest.mark.parametrize(
    ("model", "thinking"), [("claude-haiku-5-5", {"type": "disabled"}), ("claude-opus-5-5", None), ("qwen3:8b", None)]
)
def test_a_summary_is_short_and_thinks_only_if_the_model_always_does(model: str, thinking: Any) -> None:
    options = ModelOptions(max_tokens=9000, effort="max", temperature=0.5, headers={"x-team": "a"})
    definition = Definition(agent="a", model="m", options=options, system="s", tools=())
    request = build_options(model, short_options(definition, model))
    assert (request["max_tokens"], request.get("thinking")) == (MAX_SHORT_TOKENS, thinking)
    assert set(request) - {"thinking"} == {"max_tokens", "extra_headers"}
