"""Which model answers: what `[model]` and `[model.providers]` say, and the clients that come of it."""

import base64
import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from anthropic.lib.aws._auth import _get_session
from temporalio.exceptions import ApplicationError

from perdure.activities.project import Project
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.providers.prices import FREE
from perdure.activities.run.definition import build_definition
from perdure.activities.security import MIN_SECRET
from perdure.contracts.agent import Definition
from perdure.contracts.model_settings import ModelOptions, Pace
from perdure.contracts.run.turn import Usage
from perdure.doctor import run_checks
from perdure.process.models import create_clients, open_models
from perdure.process.project import build_project, unpriced_budgets
from perdure.settings import ProjectError, Settings
from perdure.testkit.model_server import ScriptedModel, says
from perdure.testkit.rehearsal.sse import encode_event, encode_stream
from tests.projects import load_project, rejection_line, write_project

KEY = "canary-0815-of-local"
GOAL = [{"role": "user", "content": [{"type": "text", "text": "see"}]}]
LOCAL = '[model.providers.local]\nbase_url = "http://127.0.0.1:9"\n'
RELAY = '[model.providers.relay]\nkind = "relay"\n'
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "hello from the cloud"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 4},
}


def project(settings: Settings) -> Project:
    return build_project(settings, SimpleNamespace(spec=httpx.AsyncClient))  # type: ignore[arg-type]


async def ask(settings: Settings, name: str) -> ModelReply:
    definition = Definition(
        agent="a", model=name, options=ModelOptions(max_tokens=99), system="You are tested.", tools=()
    )
    async with AsyncExitStack() as closing:
        return await open_models(settings, closing).reply(ModelCall(definition=definition, messages=GOAL))


def test_a_default_may_be_one_model_or_a_list_and_an_agents_list_comes_before_it(tmp_path: Path) -> None:
    assert load_project(tmp_path, '[model]\ndefault = "one"\n', ANTHROPIC_API_KEY="k").fallbacks == ()
    two = '[model]\ndefault = ["one", "two", "one"]\n'
    found = load_project(tmp_path, two, head="model: [mine, yours]\npeers: []", ANTHROPIC_API_KEY="k")
    assert (found.model, found.fallbacks) == ("one", ("two",))
    its = project(found)
    assert build_definition(its, its.agents["default"], may_delegate=True).models == ("one", "two")
    assert build_definition(its, its.agents["a"], may_delegate=True).models == ("mine", "yours")
    its = project(load_project(tmp_path, two, head="model:", ANTHROPIC_API_KEY="k"))
    assert build_definition(its, its.agents["a"], may_delegate=True).models == ("one", "two")
    its = project(load_project(tmp_path, two, head="model: mine", ANTHROPIC_API_KEY="k"))
    assert build_definition(its, its.agents["a"], may_delegate=True).models == ("mine",)


def test_a_definition_with_one_model_has_no_list_in_history() -> None:
    definition = Definition(agent="a", model="one", options=ModelOptions(max_tokens=9), system="s", tools=())
    assert (
        definition.model_dump_json() == '{"agent":"a","model":"one","options":{"max_tokens":9},"system":"s","tools":[]}'
    )


def test_perdure_model_stands_for_the_projects_default_with_its_list(tmp_path: Path) -> None:
    found = load_project(tmp_path, '[model]\ndefault = ["one", "two"]\n', ANTHROPIC_API_KEY="k", PERDURE_MODEL="other")
    assert (found.model, found.fallbacks) == ("other", ())


@pytest.mark.parametrize(
    ("toml", "env", "model"),
    [
        ("", {}, "rehearsal"),
        ('[model]\ndefault = "one"\n', {"PERDURE_MODEL": "rehearsal"}, "rehearsal"),
        (f'[model]\ndefault = "local:one"\n{LOCAL}', {}, "local:one"),
        (LOCAL, {"PERDURE_MODEL": "local:one"}, "local:one"),
    ],
)
def test_the_rehearsal_stands_in_for_the_default_provider_only(
    tmp_path: Path, toml: str, env: dict[str, str], model: str
) -> None:
    found = load_project(tmp_path, toml, **env)
    assert (found.model, found.fallbacks) == (model, ())


@pytest.mark.parametrize(
    ("toml", "agent", "words"),
    [
        (
            f'[model]\ndefault = "lokal:one"\n{LOCAL}',
            "",
            "model lokal:one: there is no provider 'lokal' (did you mean ",
        ),
        (f'[model]\ndefault = ["local:one", "gtp:x"]\n{LOCAL}', "", "'gtp'; there are: local; "),
        (f'[model]\ndefault = "local:one"\nsummary = "gtp:x"\n{LOCAL}', "", "model gtp:x: there is no provider 'gtp'"),
        ("", "model: gtp:x", "agent a: model gtp:x: there is no provider 'gtp'; there are: none; "),
    ],
)
def test_a_provider_that_does_not_exist_is_an_error_of_the_worker_and_the_doctor(
    tmp_path: Path, toml: str, agent: str, words: str
) -> None:
    for env in ({}, {"ANTHROPIC_API_KEY": KEY}):
        with pytest.raises(ProjectError) as error:
            create_clients(load_project(tmp_path, toml, head=agent or None, **env))
        assert words in str(error.value)
        assert "\n" not in str(error.value)
    assert create_clients(load_project(tmp_path, toml, head=agent or None, ANTHROPIC_BASE_URL="http://127.0.0.1:9"))


async def test_the_doctor_reports_replies_as_long_as_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    line = "agent default: max_tokens, 8,192, is not below the window of m, 8,192 tokens: lower it"
    for window, found in ((8192, [line]), (8193, [])):
        write_project(tmp_path, f'[model]\ndefault = "m"\nwindow = {window}\n')
        assert [check.found async for check in run_checks() if check.name == "model" and not check.ok] == found


HOSTED = """[model]
default = "gpt:m"
[model.providers.gpt]
kind = "openai"
base_url = "https://api.openai.com/v1"
[model.providers.az]
kind = "openai"
base_url = "https://me.openai.azure.com/openai/v1"
"""


@pytest.mark.parametrize(
    ("toml", "env", "systems"),
    [
        ("", {}, {"anthropic": "rehearsal"}),
        ("", {"ANTHROPIC_API_KEY": KEY}, {"anthropic": "anthropic"}),
        ("", {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, {"anthropic": "127.0.0.1"}),
        (f'[model]\ndefault = "local:m"\n{LOCAL}', {}, {"anthropic": "anthropic", "local": "local"}),
        (HOSTED, {}, {"anthropic": "anthropic", "gpt": "openai", "az": "azure.ai.openai"}),
    ],
)
async def test_spans_name_a_provider_by_who_it_is(
    tmp_path: Path, toml: str, env: dict[str, str], systems: dict[str, str]
) -> None:
    async with AsyncExitStack() as closing:
        models = open_models(load_project(tmp_path, toml, **env), closing)
        assert {name: models.system_of(name) for name in systems} == systems


@pytest.mark.parametrize(
    ("toml", "agent", "env", "words"),
    [
        ('[model]\ndefault = "one"\n', "", {}, "model one needs ANTHROPIC_API_KEY"),
        ('[model]\ndefault = "one"\n', "", {"ANTHROPIC_API_KEY": " "}, "model one needs ANTHROPIC_API_KEY"),
        ("", "model: claude-x", {}, "needs ANTHROPIC_API_KEY"),
        ("", "", {"PERDURE_MODEL": "claude-x"}, "model claude-x needs ANTHROPIC_API_KEY"),
        (f'[model]\ndefault = ["local:one", "two"]\n{LOCAL}', "", {}, "model two needs ANTHROPIC_API_KEY"),
        (
            f'[model]\ndefault = "local:one"\n{LOCAL}',
            "model: three",
            {},
            "agent a: model three needs ANTHROPIC_API_KEY",
        ),
        (f'[model]\ndefault = "local:one"\nsummary = "s"\n{LOCAL}', "", {}, "model s needs ANTHROPIC_API_KEY"),
    ],
)
def test_a_model_without_its_key_is_rejected_instead_of_rehearsed(
    tmp_path: Path, toml: str, agent: str, env: dict[str, str], words: str
) -> None:
    found = load_project(tmp_path, toml, head=agent or None, **env)
    with pytest.raises(ProjectError) as error:
        create_clients(found)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("toml", "agent", "words"),
    [
        ("[model]\ndefault = []\n", "", "line 2: model.default: expected the name of a model, or a list of names"),
        ("[model]\ndefault = [1]\n", "", "line 2: model.default: expected the name of a model, or a list of names"),
        ('[model]\ndefault = " "\n', "", "line 2: model.default: expected the name of a model, or a list of names"),
        ("", "model: {}", "model: expected the name of a model, or a list of names"),
        ("[model.providers.local]\n", "", "model.providers: local: needs a base_url"),
        (
            '[model.providers.anthropic]\nbase_url = "http://x"\n',
            "",
            "anthropic: takes requests_per_minute, shared, tokens_per_minute only; its address and key are ANTHROPIC_*",
        ),
        ('[model.providers."a:b"]\nbase_url = "http://x"\n', "", "model.providers.a:b"),
        ('[model.providers.x]\nbase_url = "ftp://x"\n', "", "line 2: model.providers.x.base_url"),
        (
            '[model.providers.x]\nkind = "chat"\n',
            "",
            "line 2: model.providers.x.kind: Input should be 'messages', 'openai', 'bedrock', 'vertex' or 'relay'",
        ),
        ('[model.providers.x]\nkind = "openai"\n', "", "model.providers: x: needs a base_url"),
        (f'{LOCAL}kind = "openai"\nregion = "r"\n', "", 'a region is for kind = "bedrock" or "vertex"'),
        ('[model.providers.x]\nkind = "bedrock"\n', "", 'model.providers.x: kind = "bedrock" needs a region'),
        ('[model.providers.x]\nkind = "vertex"\nregion = "r"\n', "", 'kind = "vertex" needs a project'),
        (f'{LOCAL}region = "r"\n', "", 'a region is for kind = "bedrock" or "vertex"'),
        (f'{LOCAL}project = "p"\n', "", 'a project is for kind = "vertex"'),
        (f'{RELAY}base_url = "http://x"\n', "", 'kind = "relay" calls no server, and takes no base_url'),
        (f"{LOCAL}requests_per_minute = 0\n", "", "model.providers.local.requests_per_minute"),
        (f'{LOCAL}api_key_env = "not a name"\n', "", "model.providers.local.api_key_env"),
        (f'{LOCAL}api_key = "sk-1"\n', "", "model.providers.local.api_key: no such setting"),
        ("", "server_tools: web_search", "server_tools: expected a list of web_search and code_execution, or a table"),
        ("", "server_tools: [web_serch]", "line 2: server_tools.web_serch: no such setting"),
        ("", "server_tools: {web_search: {max_uses: 0}}", "server_tools.web_search.max_uses"),
        ("", "server_tools: {web_search: {type: web_search_1}}", "server_tools.web_search.type"),
        (
            "",
            'server_tools: {web_search: {allowed_domains: ["https://a.b"]}}',
            "server_tools.web_search.allowed_domains",
        ),
        (
            "",
            "server_tools: {web_search: {allowed_domains: [a.b], blocked_domains: [c.d]}}",
            "takes allowed_domains or blocked_domains, not both",
        ),
        (
            "",
            "tools: [web_search]\nserver_tools: [web_search]",
            "web_search is a tool of the project and a server tool: remove one of them",
        ),
    ],
)
def test_wrong_model_settings_are_rejected_in_one_line(tmp_path: Path, toml: str, agent: str, words: str) -> None:
    assert words in rejection_line(tmp_path, toml, head=agent or None)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("model: relay:far\ntools: []", "model relay:far: the agent has no tool 'far': add it to its tools"),
        (
            "model: relay:fetch\ntools: [fetch]\naccept: {rubric: it is right}",
            "model relay:fetch judges nothing: give the rubric a model",
        ),
    ],
)
def test_a_relay_that_cannot_work_is_rejected_when_a_worker_starts(tmp_path: Path, head: str, words: str) -> None:
    with pytest.raises(ProjectError, match=f"a.md.*{words}$"):
        project(load_project(tmp_path, RELAY, head=head, ANTHROPIC_API_KEY="x"))


def test_a_relay_costs_nothing_and_needs_no_key(tmp_path: Path) -> None:
    settings = load_project(tmp_path, RELAY, head="model: relay:fetch\ntools: [fetch]", PERDURE_MODEL="relay:fetch")
    assert [*create_clients(settings)] == ["anthropic"]
    assert project(settings).price_of("relay:fetch") == FREE


def test_server_tools_are_sent_as_the_agent_lists_them(tmp_path: Path) -> None:
    head = "server_tools: {code_execution: , web_search: {max_uses: 3, allowed_domains: [a.example/docs]}}"
    domains = {"allowed_domains": ["a.example/docs"]}
    search = {"name": "web_search", "type": "web_search_20250305", "max_uses": 3, **domains}
    code = {"name": "code_execution", "type": "code_execution_20250825"}
    agent = load_project(tmp_path, head=head).agent("a")
    assert agent.server_tools == (search, code)
    settings = load_project(tmp_path, head="server_tools: [code_execution]")
    plain = build_definition(project(settings), settings.agent("a"), may_delegate=False)
    assert plain.options.server_tools == (code,)


@pytest.mark.parametrize(
    ("kind", "tool", "is_there"),
    [
        ("bedrock", "web_search", False),
        ("bedrock", "code_execution", False),
        ("vertex", "web_search", True),
        ("vertex", "code_execution", False),
    ],
)
def test_a_provider_without_a_server_tool_is_rejected_when_a_worker_starts(
    tmp_path: Path, kind: str, tool: str, is_there: bool
) -> None:
    toml = f'[model]\ndefault = ["m", "x:m"]\n[model.providers.x]\nkind = "{kind}"\nregion = "r"\n'
    toml += 'project = "p"\n' if kind == "vertex" else ""
    settings = load_project(tmp_path, toml, head=f"server_tools: [{tool}]", ANTHROPIC_API_KEY=KEY)
    if is_there:
        settings.check_models()
        return
    with pytest.raises(ProjectError) as error:
        settings.check_models()
    words = f"server_tools: x:m is at a provider of kind {kind}, which does not have {tool}"
    assert str(error.value).endswith(f"a.md, line 2: {words}")


ADDRESSES = {
    "127.0.0.1:9": "does not begin with http",
    "localhost:8080": "does not begin with http",
    "ftp://x": "does not begin with http",
    "http:x": "does not begin with http",
    "http://": "it has no host",
    "http://[": "its host is not valid",
    "http://me:hush-hush-1@x:y": "its port is not a number",
    "http://me:hush/hush-1@x": "its port is not a number",
    "http://x:99999": "its port is not a number",
    "http://a b": "it contains a blank or a control character",
    "\n": "does not begin with http",
}


@pytest.mark.parametrize("url", ADDRESSES)
def test_an_invalid_address_is_rejected_with_the_expected_form(tmp_path: Path, url: str) -> None:
    toml = f"[model.providers.local]\nbase_url = {json.dumps(url)}\n"
    in_file = "perdure.toml, line 2: model.providers.local.base_url"
    for text, env, where in (("", {"ANTHROPIC_BASE_URL": url}, "ANTHROPIC_BASE_URL"), (toml, {}, in_file)):
        line = rejection_line(tmp_path, text, **env)
        assert f"{where}: expected a URL like http://127.0.0.1:8080 or https://api.anthropic.com; " in line
        assert ADDRESSES[url] in line
        assert "hush" not in line


async def test_the_doctor_reports_an_invalid_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "127.0.0.1:9")
    found = [check async for check in run_checks()]
    assert (found[-1].name, found[-1].ok) == ("project", False)
    assert found[-1].found.startswith("ANTHROPIC_BASE_URL: expected a URL like ")


def test_a_key_and_an_address_of_a_mounted_file_may_end_in_a_line_break(tmp_path: Path) -> None:
    toml = f'{LOCAL}api_key_env = "OF_LOCAL"\n'
    env = {"ANTHROPIC_API_KEY": f"{KEY}\n", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9/\n", "OF_LOCAL": f"{KEY}\r\n"}
    found = load_project(tmp_path, toml, **env)
    assert (found.api_key, found.base_url, found.keys) == (KEY, "http://127.0.0.1:9/", {"local": KEY})
    assert load_project(tmp_path, "", ANTHROPIC_API_KEY="\n").is_rehearsal


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "OF_LOCAL"])
@pytest.mark.parametrize("key", ["canary\n0815", "canary\x000815", "canary\x7f0815", "canäry0815"])
def test_a_key_that_no_header_takes_is_rejected_without_showing_it(tmp_path: Path, variable: str, key: str) -> None:
    line = rejection_line(tmp_path, f'{LOCAL}api_key_env = "OF_LOCAL"\n', **{variable: key})
    assert line.startswith(f"{variable}: expected a key of printable ASCII")
    assert "0815" not in line


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/", "/v1/messages"])
async def test_an_address_may_end_in_v1(tmp_path: Path, ending: str) -> None:
    with ScriptedModel([says("hi")]) as server:
        toml = f'[model.providers.local]\nbase_url = "{server.base_url}{ending}"\n'
        found = load_project(tmp_path, toml, ANTHROPIC_BASE_URL=server.base_url + ending)
        assert (await ask(found, "claude-x")).content[0]["text"] == "hi"
        assert (await ask(found, "local:m")).content[0]["text"] == "hi"


@pytest.mark.parametrize("ending", ["", "/", "/chat/completions", "/chat/completions/"])
async def test_an_address_of_chat_completions_may_end_in_the_call(tmp_path: Path, ending: str) -> None:
    with ScriptedModel([says("hi")]) as server:
        toml = f'[model.providers.gpt]\nkind = "openai"\nbase_url = "{server.base_url}/v1{ending}"\n'
        reply = await ask(load_project(tmp_path, toml), "gpt:some:model")
    assert (reply.content, reply.model) == ([{"type": "text", "text": "hi"}], "gpt:some:model")


@pytest.mark.parametrize(("setting", "sent"), [('api_key_env = "OF_GPT"\n', KEY), ("", "none")])
async def test_chat_completions_are_asked_with_the_key_if_there_is_one(
    tmp_path: Path, setting: str, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-another-server")
    message = {"role": "assistant", "content": "hi"}
    body = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    cloud = CloudServer(json.dumps(body).encode(), "application/json")
    with serving(cloud) as url:
        toml = f'[model.providers.gpt]\nkind = "openai"\nbase_url = "{url}/openai/v1/"\n{setting}'
        await ask(load_project(tmp_path, toml, OF_GPT=KEY), "gpt:m")
    ((path, headers, _),) = cloud.asked
    sent_key = httpx.Headers(headers)["authorization"]
    assert (path, sent_key) == ("/openai/v1/chat/completions", f"Bearer {sent}")


async def test_the_doctor_shows_a_provider_of_chat_completions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = '[model]\ndefault = "gpt:m"\n[model.providers.gpt]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
    (tmp_path / "perdure.toml").write_text(toml)
    monkeypatch.chdir(tmp_path)
    found = await anext(check async for check in run_checks() if check.name == "model")
    assert (found.ok, found.found) == (True, "gpt:m at http://127.0.0.1:9/v1, without a key (not called)")


async def test_an_unreachable_address_is_named_without_its_password(tmp_path: Path) -> None:
    with ScriptedModel([says("hi")]) as server:
        address = server.base_url.replace("//", "//me:hush-hush-1@")
        with pytest.raises(ApplicationError, match=r"\(404\) at http://127.0.0.1:\d+/api/v1/messages: ") as failure:
            await ask(load_project(tmp_path, "", ANTHROPIC_BASE_URL=f"{address}/api"), "claude-x")
        assert "hush" not in failure.value.message


async def test_each_provider_is_asked_where_it_is_with_its_own_key(tmp_path: Path) -> None:
    with ScriptedModel([says("from afar")]) as far, ScriptedModel([says("from here")]) as near:
        toml = f'[model.providers.local]\nbase_url = "{near.base_url}"\napi_key_env = "OF_LOCAL"\n'
        found = load_project(tmp_path, toml, ANTHROPIC_BASE_URL=far.base_url, OF_LOCAL=KEY)
        assert (await ask(found, "claude-x")).content[0]["text"] == "from afar"
        assert (await ask(found, "anthropic:claude-x")).model == "claude-x"
        reply = await ask(found, "local:llama3:8b")
        assert (reply.content[0]["text"], reply.model) == ("from here", "local:llama3:8b")
        assert [body["model"] for body in near.requests] == ["llama3:8b"]


def test_keys_and_passwords_in_addresses_are_secrets(tmp_path: Path) -> None:
    toml = '[model.providers.local]\nbase_url = "https://me:hush-hush-1@example.org"\napi_key_env = "OF_LOCAL"\n'
    found = load_project(tmp_path, toml, OF_LOCAL=KEY)
    assert len(KEY) >= MIN_SECRET
    assert found.secrets.redact(f"it said {KEY}, hush-hush-1") == (
        "it said [redacted OF_LOCAL], [redacted model.providers.local.base_url]"
    )
    assert KEY not in repr(found)


def test_a_missing_key_is_reported_by_its_variable(tmp_path: Path) -> None:
    found = load_project(tmp_path, f'{LOCAL}api_key_env = "OF_LOCAL"\n')
    with pytest.raises(
        ProjectError, match=r"^model\.providers\.local: api_key_env names OF_LOCAL, and that is not set$"
    ):
        create_clients(found)


@pytest.mark.parametrize(
    ("kind", "more", "package"),
    [
        ("bedrock", 'region = "r"', "boto3"),
        ("vertex", 'region = "r"\nproject = "p"', "google.auth"),
        ("openai", 'base_url = "http://127.0.0.1:9/v1"', "openai"),
    ],
)
def test_a_package_that_is_missing_is_named_with_how_to_get_it(
    tmp_path: Path, kind: str, more: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.process.models.find_spec", lambda _: None)
    found = load_project(tmp_path, f'[model.providers.cloud]\nkind = "{kind}"\n{more}\n')
    with pytest.raises(ProjectError) as error:
        create_clients(found)
    assert str(error.value) == (
        f"model.providers.cloud: kind = \"{kind}\" needs the package {package}: pip install 'perdure[{kind}]'"
    )


def test_prices_and_windows_are_those_of_the_model_unless_the_project_sets_them_for_its_provider(
    tmp_path: Path,
) -> None:
    toml = f'{LOCAL}[prices."local:claude-haiku-4-5"]\ninput = 7\noutput = 8\n'
    its = project(load_project(tmp_path, toml))
    own, known = its.price_of("local:claude-haiku-4-5"), its.price_of("claude-opus-4-6")
    assert (own and own.input, known and known.input) == (7, 5)
    assert its.price_of("local:llama3:8b") is None
    assert its.summary_model_of("local:claude-opus-5-5") == "local:claude-opus-5-5"
    assert its.summary_model_of("anthropic:claude-opus-5-5") == "claude-haiku-5-5"
    assert its.window_of("local:claude-opus-4-6") == 1_000_000
    assert its.window_of("claude-opus-4-6", "local:claude-haiku-4-5") == 200_000


@pytest.mark.parametrize(
    ("base_url", "is_known"),
    [
        ("", True),
        ("https://api.anthropic.com", True),
        ("https://API.Anthropic.com:443/v1", True),
        ("http://127.0.0.1:8080", False),
        ("https://anthropic.com.example.org", False),
        ("https://notanthropic.com", False),
    ],
)
def test_the_price_of_a_claude_model_holds_at_anthropic_and_the_clouds_alone(
    tmp_path: Path, base_url: str, is_known: bool
) -> None:
    toml = '[model.providers.aws]\nkind = "bedrock"\nregion = "r"\n'
    toml += '[model.providers.gpt]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
    if base_url:
        toml += f'[model.providers.near]\nbase_url = "{base_url}"\n'
    its = project(load_project(tmp_path, toml, ANTHROPIC_BASE_URL=base_url, ANTHROPIC_API_KEY=KEY))
    assert (its.price_of("claude-opus-4-6") is not None) is is_known
    assert (its.price_of("near:claude-opus-4-6") is not None) is (is_known and bool(base_url))
    assert its.price_of("aws:claude-opus-4-6") is not None
    assert its.price_of("gpt:claude-opus-4-6") is None


# The clouds. They speak the Messages API in envelopes of their own.


def test_a_budget_in_usd_without_a_price_is_a_warning(tmp_path: Path) -> None:
    budget = "[limits]\nbudget_usd = 1\n"
    assert unpriced_budgets(project(load_project(tmp_path, budget, ANTHROPIC_API_KEY=KEY))) == []
    elsewhere = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "PERDURE_MODEL": "claude-opus-4-6"}
    [line] = unpriced_budgets(project(load_project(tmp_path, budget, **elsewhere)))
    assert line == (
        "agent default: budget_usd does not count claude-opus-4-6, whose price is unknown: "
        'set [prices."claude-opus-4-6"], or budget_tokens'
    )
    assert unpriced_budgets(project(load_project(tmp_path, "", **elsewhere))) == []
    priced = f'{budget}[prices."claude-opus-4-6"]\ninput = 1\noutput = 2\n'
    assert unpriced_budgets(project(load_project(tmp_path, priced, **elsewhere))) == []


class CloudServer:
    """A server that answers any POST with `body`, and keeps paths, headers and what it was sent."""

    def __init__(self, body: bytes, kind: str, encoding: str = "identity") -> None:
        self.body, self.kind, self.encoding, self.status = body, kind, encoding, 200
        self.asked: list[tuple[str, dict[str, str], Any]] = []


@contextmanager
def serving(cloud: CloudServer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["content-length"]))
            cloud.asked.append((self.path, dict(self.headers.items()), json.loads(sent)))
            self.send_response(cloud.status)
            self.send_header("content-type", cloud.kind)
            self.send_header("content-encoding", cloud.encoding)
            self.send_header("content-length", str(len(cloud.body)))
            self.end_headers()
            with suppress(ConnectionError):  # a client that reads no further
                self.wfile.write(cloud.body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_compressed_answer_is_refused_and_a_long_error_is_cut(tmp_path: Path) -> None:
    cloud = CloudServer(b"y" * 20_000_000, "text/plain", encoding="gzip, gzip")
    with serving(cloud) as url:
        found = load_project(tmp_path, "", ANTHROPIC_BASE_URL=url)
        with pytest.raises(ApplicationError, match="is compressed"):
            await ask(found, "claude-x")
        cloud.encoding, cloud.status = "identity", 500
        with pytest.raises(ApplicationError, match=r"\(500\)") as failure:
            await ask(found, "claude-x")
    assert len(failure.value.message) < 3000
    assert [{k.lower(): v for k, v in headers.items()}["accept-encoding"] for _, headers, _ in cloud.asked] == [
        "identity",
        "identity",
    ]


async def test_vertex_is_asked_for_the_model_of_the_project_in_its_region(tmp_path: Path) -> None:
    cloud = CloudServer(b"".join(encode_stream(MESSAGE)), "text/event-stream")
    with serving(cloud) as url:
        toml = f'[model.providers.gcp]\nkind = "vertex"\nregion = "here"\nproject = "mine"\nbase_url = "{url}/v1"\n'
        found = load_project(tmp_path, f'{toml}api_key_env = "OF_GCP"\n', OF_GCP=KEY)
        reply = await ask(found, "gcp:claude-x@20251001")
    assert (reply.content[0]["text"], reply.model, reply.usage) == (
        "hello from the cloud",
        "gcp:claude-x",
        Usage(input=3, output=4),
    )
    ((path, headers, body),) = cloud.asked
    assert path == ("/v1/projects/mine/locations/here/publishers/anthropic/models/claude-x@20251001:streamRawPredict")
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert (body["system"][0]["text"], "model" in body) == ("You are tested.", False)


def event_stream(events: list[bytes], kind: str = "event", name: str = "chunk") -> bytes:
    """AWS's framing: lengths, headers, the payload, and a checksum of each."""
    frames = b""
    for event in events:
        said = event.decode().partition("data: ")[2].strip().encode()
        payload = json.dumps({"bytes": base64.b64encode(said).decode()}).encode() if kind == "event" else said
        type_name = ":event-type" if kind == "event" else ":exception-type"
        named = {type_name: name, ":content-type": "application/json", ":message-type": kind}
        headers = b"".join(
            struct.pack("!B", len(key)) + key.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
            for key, value in named.items()
        )
        front = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
        front += struct.pack("!I", zlib.crc32(front))
        frames += front + headers + payload + struct.pack("!I", zlib.crc32(front + headers + payload))
    return frames


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3", reason="anthropic[bedrock] is not installed")
    _get_session.cache_clear()  # type: ignore[attr-defined]  # it has the keys of another test
    for name in ("AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def bedrock(folder: Path, url: str, **env: str) -> Settings:
    token = 'api_key_env = "OF_AWS"\n' if env else ""
    return load_project(
        folder, f'[model.providers.aws]\nkind = "bedrock"\nregion = "here"\nbase_url = "{url}"\n{token}', **env
    )


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("token", [None, KEY])
async def test_bedrock_is_asked_with_the_accounts_keys_or_with_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA0815")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-account-0815")
    cloud = CloudServer(event_stream(list(encode_stream(MESSAGE))), "application/vnd.amazon.eventstream")
    with serving(cloud) as url:
        found = bedrock(tmp_path, url, **({"OF_AWS": token} if token else {}))
        reply = await ask(found, "aws:anthropic.claude-x-v1:0")
    assert (reply.content[0]["text"], reply.model) == ("hello from the cloud", "aws:claude-x")
    ((path, headers, _),) = cloud.asked
    assert path == "/model/anthropic.claude-x-v1:0/invoke-with-response-stream"
    assert headers["Authorization"].startswith(f"Bearer {token}" if token else "AWS4-HMAC-SHA256 Credential=AKIA0815/")


@pytest.mark.usefixtures("aws")
async def test_a_call_that_cannot_be_signed_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(ApplicationError, match=r"could not be signed: .*credentials") as failure:
        await ask(bedrock(tmp_path, "http://127.0.0.1:9"), "aws:anthropic.claude-x-v1:0")
    assert failure.value.type == "ModelUnavailable"


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("throttlingException", "RateLimited"),
        ("internalServerException", "ModelUnavailable"),
        ("validationException", "ModelRefused"),
    ],
)
async def test_a_failure_in_bedrocks_stream_has_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, kind: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA0815")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-account-0815")
    failure = event_stream([encode_event({"type": "x", "message": "not now"})], "exception", code)
    cloud = CloudServer(failure, "application/vnd.amazon.eventstream")
    with serving(cloud) as url, pytest.raises(ApplicationError, match="not now") as error:
        await ask(bedrock(tmp_path, url), "aws:anthropic.claude-x-v1:0")
    assert error.value.type == kind


@pytest.mark.parametrize(
    ("model", "agent", "reason"),
    [
        ("claude-sonnet-5-5", None, None),
        ("local:x", None, None),
        ("aws:x", None, "model aws:x (bedrock) has no batches: use pace live, or a model of anthropic"),
        ("claude-sonnet-5-5", "cloud", "model aws:y (bedrock) has no batches: use pace live, or a model of anthropic"),
        ("aws:x", "direct", None),
        ("gpt:x", None, "model gpt:x (openai) has no batches: use pace live, or a model of anthropic"),
    ],
)
def test_the_pace_batch_needs_a_model_with_batches(
    tmp_path: Path, model: str, agent: str | None, reason: str | None
) -> None:
    cloud = '[model.providers.aws]\nkind = "bedrock"\nregion = "r"\n'
    chat = '[model.providers.gpt]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
    for name, its_model in (("cloud", "aws:y"), ("direct", "claude-x")):
        write_project(tmp_path, head=f"model: {its_model}", name=name)
    settings = load_project(tmp_path, f'[model]\ndefault = "{model}"\n{LOCAL}{cloud}{chat}', ANTHROPIC_API_KEY="k")
    settings.check_pace(agent, Pace.live)
    settings.check_pace(agent, None)
    if reason is None:
        settings.check_pace(agent, Pace.batch)
        return
    with pytest.raises(ProjectError) as caught:
        settings.check_pace(agent, Pace.batch)
    assert str(caught.value) == reason


@pytest.mark.parametrize("place", ["project", "agent"])
def test_a_worker_does_not_start_with_a_pace_that_its_model_does_not_have(tmp_path: Path, place: str) -> None:
    write_project(tmp_path, head="pace: batch" if place == "agent" else "", name="slow")
    paced = 'pace = "batch"\n' if place == "project" else ""
    cloud = '[model.providers.aws]\nkind = "bedrock"\nregion = "r"\napi_key_env = "K"\n'
    settings = load_project(tmp_path, f'[model]\ndefault = "aws:x"\n{paced}{cloud}', K="k")
    with pytest.raises(ProjectError, match=r"model aws:x \(bedrock\) has no batches"):
        create_clients(settings)


@pytest.mark.parametrize("kind", ["messages", "vertex"])
async def test_a_provider_gets_headers_from_variables(tmp_path: Path, kind: str) -> None:
    cloud = CloudServer(b"".join(encode_stream(MESSAGE)), "text/event-stream")
    with serving(cloud) as url:
        place = 'region = "here"\nproject = "mine"\n' if kind == "vertex" else ""
        toml = f'[model.providers.own]\nkind = "{kind}"\n{place}base_url = "{url}"\napi_key_env = "OF_OWN"\n'
        headers = 'headers_env = { X-Gateway = "PASS" }\n'
        settings = load_project(tmp_path, toml + headers, OF_OWN=KEY, PASS="canary-of-the-gateway")
        await ask(settings, "own:claude-x")
    ((_, sent, _),) = cloud.asked
    assert httpx.Headers(sent)["x-gateway"] == "canary-of-the-gateway"
    assert settings.secrets.redact("it is canary-of-the-gateway") == "it is [redacted PASS]"


def test_a_header_of_a_provider_is_not_sent_in_plain_text(tmp_path: Path) -> None:
    toml = '[model.providers.own]\nbase_url = "http://models.test"\nheaders_env = { X-Gateway = "PASS" }\n'
    with pytest.raises(ProjectError, match=r"^model\.providers\.own\.base_url: a key is sent .* over https:// only"):
        load_project(tmp_path, toml, PASS="x")
    unset = load_project(tmp_path, toml)
    with pytest.raises(ProjectError, match=r"model\.providers\.own\.headers_env\.X-Gateway: PASS is not set$"):
        unset.check_headers()
