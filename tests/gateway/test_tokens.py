"""Tokens: kept as hashes, seen as soon as they change, and each opens only what its scopes say."""

import asyncio
import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from perdure.gateway.tokens import (
    Scope,
    Token,
    TokenFileError,
    Tokens,
    format_token_entry,
    new_token,
    read_tokens,
    token_digest,
)
from perdure.settings import ProjectError
from tests.e2e.projects import Project
from tests.gateway.conftest import Gateway, Gateways, make_token

NOW = datetime.now(UTC)
# Each route that needs a token, and the scope that opens it.
ROUTES = [
    ("POST", "/v1/runs", "runs:start"),
    ("POST", "/v1/runs/nobody/plan", "runs:start"),
    ("POST", "/v1/runs/nobody/steer", "runs:start"),
    ("POST", "/v1/runs/nobody/resume", "runs:start"),
    ("POST", "/v1/runs/nobody/fork", "runs:start"),
    ("GET", "/v1/runs/nobody/record", "runs:read"),
    ("GET", "/v1/runs", "runs:read"),
    ("GET", "/v1/runs/nobody", "runs:read"),
    ("GET", "/v1/runs/nobody/events", "runs:read"),
    ("GET", "/v1/runs/nobody/result", "runs:read"),
    ("POST", "/v1/runs/nobody/cancel", "human:answer"),
    ("POST", "/v1/runs/nobody/answer", "human:answer"),
    ("POST", "/v1/runs/nobody/tool-results", "tools:result"),
    ("POST", "/v1/conversations/nobody/requests", "runs:start"),
    ("GET", "/v1/conversations/nobody", "runs:read"),
    ("DELETE", "/v1/conversations/nobody/turns/nobody", "human:answer"),
    ("GET", "/v1/questions", "runs:read"),
    ("POST", "/v1/events", "events:publish"),
    ("POST", "/v1/budgets/{name}/raise", "budget:raise"),
    ("POST", "/v1/budgets/{name}/reset", "budget:raise"),
    ("POST", "/v1/files", "runs:start"),
    ("POST", "/v1/runs/nobody/answers", "human:answer"),
    ("POST", "/v1/mcp/{name}/login", "human:answer"),
    ("POST", "/v1/mcp", "runs:read"),
    ("GET", "/v1/runs/nobody/artifacts", "runs:read"),
    ("GET", "/v1/runs/nobody/artifacts/{path}", "runs:read"),
    ("GET", "/v1/runs/nobody/media/{sha256}", "runs:read"),
    ("POST", "/v1/ui/chat", "runs:read"),
    ("GET", "/v1/ui/chat/nobody/stream", "runs:read"),
    ("GET", "/v1/ui/chat/nobody/messages", "runs:read"),
    ("GET", "/v1/ui/runs/nobody/messages", "runs:read"),
    ("POST", "/v1/ag-ui", "runs:read"),
    ("GET", "/v1/ag-ui/nobody/stream", "runs:read"),
    ("POST", "/a2a/{agent}", "runs:read"),
    ("GET", "/a2a/{agent}/.well-known/agent-card.json", "runs:read"),
    *(
        ("GET", f"/v1/{lists}", "runs:read")
        for lists in (
            "overview",
            "agents",
            "conversations",
            "follow-ups",
            "schedules",
            "mailboxes",
            "dead-letters",
            "budgets",
        )
    ),
]
OPEN = {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("POST", "/v1/webhooks/{name}"),
    ("GET", "/v1/mcp/callback"),
    ("GET", "/.well-known/oauth-protected-resource/v1/mcp"),
    *((method, "/v1/session") for method in ("GET", "POST", "DELETE")),
}


@pytest.fixture(scope="module")
async def tokens(gateways: Gateways) -> dict[str, str]:
    """A token for each scope alone."""
    made = {}
    for scope in Scope:
        made[str(scope)] = await asyncio.to_thread(make_token, gateways.project, f"only-{scope.name}", scope)
    return made


@pytest.mark.parametrize(("method", "path", "scope"), ROUTES)
async def test_each_route_opens_to_its_scope_alone(
    gateway: Gateway, tokens: dict[str, str], method: str, path: str, scope: str
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as http:
        for name, token in tokens.items():
            answer = await http.request(
                method, path, headers={"Authorization": f"Bearer {token}"}, content=b"{not json"
            )
            if name == scope:
                assert answer.status_code not in (401, 403), answer.text
            else:
                assert answer.status_code == 403
                assert scope in answer.json()["detail"]
        for header in ({}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer pdr_wrong"}):
            answer = await http.request(method, path, headers=header, content=b"{not json")
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert "pdr_wrong" not in answer.text


@pytest.mark.parametrize("more", [{"question_id": "q1"}, {"when_busy": "interrupt"}])
async def test_a_request_that_answers_or_cancels_needs_the_scope_for_it(
    gateway: Gateway, tokens: dict[str, str], more: dict[str, str]
) -> None:
    path = f"/v1/conversations/lane-{uuid4().hex[:8]}/requests"
    await gateway.post(path, {"request_id": "r1", "goal": "ask: which colour"})
    body = {"request_id": "r2", "goal": "red", **more}
    refused = await gateway.post(path, body, Authorization=f"Bearer {tokens['runs:start']}")
    assert refused.status_code == 403
    assert "human:answer" in refused.json()["detail"]
    assert (await gateway.post(path, body)).status_code == 202


async def test_who_may_not_answer_leaves_the_question_open(gateway: Gateway, tokens: dict[str, str]) -> None:
    run_id = await gateway.waiting("charge: the card")
    question = (await gateway.get(f"/v1/runs/{run_id}")).json()["state"]["question"]
    for name, token in {**tokens, "nobody's": "pdr_wrong"}.items():
        if name != "human:answer":
            said = {"decision": "approve", "question_id": question["id"], "call": question["call"]}
            for more, body in (("answer", said), ("cancel", {})):
                refused = await gateway.post(f"/v1/runs/{run_id}/{more}", body, Authorization=f"Bearer {token}")
                assert refused.status_code == (401 if name == "nobody's" else 403)
    state = (await gateway.get(f"/v1/runs/{run_id}")).json()["state"]
    assert (state["status"], state["question"], state["ignored"]) == ("waiting_on_human", question, [])
    assert (await gateway.post(f"/v1/runs/{run_id}/cancel", {})).status_code == 202


async def test_a_refused_answer_quotes_nothing_without_the_scope_to_read(
    gateway: Gateway, tokens: dict[str, str]
) -> None:
    run_id = await gateway.waiting()
    alone = {"Authorization": f"Bearer {tokens['human:answer']}"}
    for body in ({"text": "x", "question_id": "q9"}, {"decision": "approve"}, {"text": " "}):
        for headers, quotes in ((alone, False), ({}, True)):
            refused = await gateway.post(f"/v1/runs/{run_id}/answer", body, **headers)
            assert (refused.status_code, "question q1" in refused.text or "one is q1" in refused.text) == (409, quotes)
    await gateway.post(f"/v1/runs/{run_id}/cancel", {})


async def test_the_matrix_names_every_route(gateway: Gateway) -> None:
    paths = (await gateway.get("/openapi.json")).json()["paths"]
    served = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    named = {(method, path.replace("nobody", "{id}")) for method, path, _ in ROUTES} | OPEN
    plain = {(method, re.sub(r"{(run|conversation|chat|thread)_id}", "{id}", path)) for method, path in served}
    assert plain == named


async def test_a_revoked_token_is_refused_at_once(gateway: Gateway) -> None:
    token = await asyncio.to_thread(make_token, gateway.project, "short-lived", "runs:read")
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as http:
        headers = {"Authorization": f"Bearer {token}"}
        assert (await http.get("/v1/runs", headers=headers)).status_code == 200
        assert (await asyncio.to_thread(gateway.project.perdure, "token", "revoke", "short-lived")).code == 0
        assert (await http.get("/v1/runs", headers=headers)).status_code == 401


def test_only_the_hash_is_kept_in_a_file_of_the_owner(tmp_path: Path) -> None:
    project = Project(tmp_path)
    written = make_token(project, "ci", "runs:read", "runs:start")
    assert written.startswith("pdr_")
    assert len(written) == len("pdr_") + 43
    path = project.home / "tokens.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert written not in path.read_text()
    [kept] = json.loads(path.read_text())["tokens"]
    assert (kept["sha256"], kept["scopes"]) == (token_digest(written), ["runs:start", "runs:read"])
    listed = project.perdure("token", "list", "--json")
    assert written not in listed.out
    assert json.loads(listed.out)["name"] == "ci"
    assert "ci" in project.perdure("token", "list").out
    project.perdure("token", "create", "ci", "--scope", "runs:read").error()
    assert project.perdure("token", "revoke", "nobody").code == 1
    assert project.perdure("token", "create", "x", "--scope", "admin").code == 2
    assert project.perdure("token", "create", "a/b", "--scope", "runs:read").code == 1
    assert project.perdure("token", "create", "x", "--scope", "runs:read", "--expires", "soon").code == 2
    assert project.perdure("token", "create", "x", "--scope", "events:publish").code == 2
    assert project.perdure("token", "create", "x", "--scope", "runs:read", "--platform", "slack").code == 2


def test_a_token_of_the_environment_needs_no_file(tmp_path: Path) -> None:
    project = Project(tmp_path)
    made = json.loads(project.perdure("token", "create", "box", "--scope", "runs:read", "--env", "--json").out)
    assert not (project.home / "tokens.json").exists()
    found = read_tokens(tmp_path, {"PERDURE_TOKENS": made["entry"]}).find_token(made["token"], NOW)
    assert found is not None
    assert (found.name, found.scopes) == ("box", (Scope.read,))


@pytest.mark.parametrize(
    "text", ["box", "box:abc:runs:read", f"box:{'0' * 64}:admin", f"box:{'0' * 64}:", f":{'0' * 64}:runs:read"]
)
def test_a_bad_entry_of_the_environment_is_reported_without_its_text(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProjectError, match="entry 1") as error:
        read_tokens(tmp_path, {"PERDURE_TOKENS": text})
    assert text not in str(error.value)


def test_an_expired_token_is_not_accepted(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    written, token = new_token("ci", (Scope.read,), timedelta(days=30))
    tokens.add(token)
    assert tokens.find_token(written, NOW) is not None
    assert tokens.find_token(written, NOW + timedelta(days=31)) is None


def test_a_damaged_token_file_accepts_no_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens = Tokens(path)
    written, token = new_token("ci", (Scope.read,), None)
    tokens.add(token)
    path.write_text('{"tokens": [{"name": "ci"}]}')
    with pytest.raises(TokenFileError, match="sha256"):
        tokens.find_token(written, NOW)


def test_many_at_once_lose_no_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"

    def add(number: int) -> None:
        Tokens(path).add(new_token(f"t{number}", (Scope.read,), None)[1])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert len(Tokens(path).read_all()) == 24


def test_entries_say_what_they_were_made_of() -> None:
    token = Token(name="a", sha256="0" * 64, scopes=(Scope.start, Scope.answer))
    assert format_token_entry(token) == f"a:{'0' * 64}:runs:start+human:answer"


def test_an_entry_names_the_platforms_of_events(tmp_path: Path) -> None:
    written, token = new_token("a", (Scope.start, Scope.publish), None, ("Slack", "discord"))
    assert format_token_entry(token).endswith(":runs:start+events:publish:slack+discord")
    held = read_tokens(tmp_path, {"PERDURE_TOKENS": format_token_entry(token)}).find_token(written, NOW)
    assert held is not None
    assert (held.scopes, held.platforms) == ((Scope.start, Scope.publish), ("slack", "discord"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_token_file_that_others_may_open_accepts_no_token(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens.json"
    tokens = Tokens(path)
    secret, token = new_token("ci", (Scope.read,), None)
    tokens.add(token)
    assert tokens.find_token(secret, NOW) is not None
    path.chmod(mode)
    with pytest.raises(TokenFileError, match="chmod 600"):
        tokens.find_token(secret, NOW)


def test_a_command_whose_token_file_others_may_open_fails_with_one_line(tmp_path: Path) -> None:
    project = Project(tmp_path)
    make_token(project, "ci", "runs:read")
    (project.home / "tokens.json").chmod(0o640)
    for command in (("token", "list"), ("gateway", "--port", "0")):
        assert "chmod 600" in project.perdure(*command).error()


@pytest.mark.parametrize("more", [(), ("--behind-tls",)])
def test_beyond_this_machine_needs_a_token_and_tls(tmp_path: Path, more: tuple[str, ...]) -> None:
    assert "--behind-tls" in Project(tmp_path).perdure("gateway", "--host", "0.0.0.0", *more).error()


def test_a_port_that_is_taken_is_reported(gateways: Gateways, gateway: Gateway) -> None:
    done = gateways.project.perdure(
        "gateway", "--port", gateway.url.rsplit(":", 1)[1], TEMPORAL_ADDRESS=gateways.address
    )
    assert (done.code, "(Address already in use): use another --port" in done.err) == (1, True)


def test_no_token_is_in_the_log(gateway: Gateway) -> None:
    assert gateway.token not in "".join(gateway.process.seen) + gateway.log.read_text(encoding="utf-8")
    assert gateway.token not in str(os.environ)


async def test_a_token_in_the_address_is_none(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=60) as http:
        answer: Any = await http.get(f"/v1/runs?token={gateway.token}&access_token={gateway.token}")
    assert answer.status_code == 401
    assert gateway.token not in answer.text
