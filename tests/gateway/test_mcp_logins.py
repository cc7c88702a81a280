"""Logins to MCP servers at the gateway: who may begin one, and who comes back. And the settings and texts of OAuth.

The gateway's application itself, on a real Temporal server, beside a real authorization server.
"""

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from temporalio.client import Client

from perdure.features.mcp.commands import check_servers, read_logins
from perdure.features.mcp.offer import offered_tools, open_grants
from perdure.features.mcp.routes import COOKIE, open_logins
from perdure.gateway.app import make_app
from perdure.gateway.auth import Gateway
from perdure.gateway.tokens import Scope, new_token, read_tokens
from perdure.session import Session
from perdure.settings import ProjectError, Settings, load_settings
from tests.activities.test_mcp_grants import files_of, follow, login_at_terminal
from tests.mcp.oauth import OAuthServer

KEYS = f"k1:{base64.b64encode(b'k' * 32).decode()}"
ENV = {"PERDURE_CODEC_KEYS": KEYS}
ACCESS = '[mcp.tickets]\nauth = "oauth"\napprovers = ["ops"]\n'
PERSONAL = '[mcp.tickets]\nauth = "oauth"\ngrant = "requester"\n'
GATEWAY = '[gateway]\npublic_url = "http://gateway.test"\n[people]\nops = ["ann"]\n'


@pytest.fixture
def oauth() -> Iterator[OAuthServer]:
    with OAuthServer() as server:
        yield server


def project(folder: Path, url: str, toml: str, **env: str) -> Settings:
    (folder / "perdure.toml").write_text(toml)
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"tickets": {"type": "http", "url": url}}}))
    return load_settings({"PERDURE_HOME": str(folder / "home"), **ENV, **env}, folder)


@asynccontextmanager
async def serving(settings: Settings, client: Client) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, str]]]:
    """A browser at the gateway, and tokens by name."""
    settings.home.mkdir(parents=True, exist_ok=True)
    tokens, written = read_tokens(settings.home, {}), dict[str, str]()
    for name, scopes in (("ann", (Scope.answer,)), ("eve", (Scope.answer,)), ("bob", (Scope.read,))):
        written[name], token = new_token(name, scopes, None)
        tokens.add(token)
    app = make_app(Gateway(Session(client, settings, None), tokens, {"mcp": open_logins(settings, {})}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway.test") as browser:
        yield browser, written


def signed(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_member_of_the_group_logs_in_and_nobody_else_can(
    oauth: OAuthServer, tmp_path: Path, client: Client
) -> None:
    settings = project(tmp_path, f"{oauth.url}/mcp", GATEWAY + ACCESS)
    async with serving(settings, client) as (browser, tokens):
        path = "/v1/mcp/tickets/login"
        for name, status in (("eve", 403), ("bob", 403)):
            assert (await browser.post(path, headers=signed(tokens[name]))).status_code == status
        assert (await browser.post(path)).status_code == 401
        assert (await browser.post("/v1/mcp/other/login", headers=signed(tokens["ann"]))).status_code == 404
        begun = await browser.post(path, headers=signed(tokens["ann"]))
        cookie = begun.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        back = urlsplit(await follow(begun.json()["url"]))
        assert f"{back.scheme}://{back.netloc}{back.path}" == "http://gateway.test/v1/mcp/callback"
        callback = f"{back.path}?{back.query}&session_state=of-the-server"  # servers may add parameters

        other = httpx.AsyncClient(transport=browser._transport, base_url="http://gateway.test")
        assert (await other.get(callback)).status_code == 400  # of another browser
        other.cookies.set(COOKIE, "guessed", path="/v1/mcp/callback")
        assert (await other.get(callback)).status_code == 400
        assert (await browser.get(callback.replace("state=", "state=x"))).status_code == 400
        assert await open_grants(settings).read("tickets") is None

        done = await browser.get(callback)
        assert done.status_code == 200, done.text
        assert done.text.startswith("Logged in to tickets.")
        browser.cookies.set(COOKIE, cookie.partition("=")[2].partition(";")[0], path="/v1/mcp/callback")
        replayed = await browser.get(callback)
        assert replayed.status_code == 400
        assert "completed before" in replayed.json()["detail"]
        grant = await open_grants(settings).read("tickets")
        assert grant is not None
        assert grant.by == "ann"
        assert oauth.count("login") == 1


async def test_doctor_and_the_list_say_who_must_log_in_and_no_text_has_a_secret(
    oauth: OAuthServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = project(tmp_path, f"{oauth.url}/mcp", ACCESS.replace('approvers = ["ops"]\n', ""))
    (before,) = await read_logins(settings)
    assert before["needs_login"]
    assert before["state"] == "needs a login: perdure mcp login tickets"
    checks = await check_servers(settings)
    assert [check.ok for check in checks] == [False, False]
    assert "MCP server tickets needs a login: no person has logged in: perdure mcp login tickets" in checks[0].found
    grant = await login_at_terminal(oauth, open_grants(settings))
    (after,) = await read_logins(settings)
    assert not after["needs_login"]
    assert "logged in by ann" in after["state"]
    assert "renewed by itself" in after["state"]
    oauth.revoke()
    texts = [str(check.found) for check in await check_servers(settings)]
    assert any("the grant has ended" in text for text in texts)
    (ended,) = await read_logins(settings)
    shown = f"{texts} {before} {after} {ended} {caplog.text}".encode() + files_of(tmp_path)
    for secret in (grant.access_token, grant.refresh_token or "", grant.client_secret or ""):
        assert len(secret) > 20
        assert secret.encode() not in shown


async def test_what_a_terminal_cannot_check_of_requesters_is_said(
    oauth: OAuthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tools are listed with the login of the person at the terminal; other requesters' logins are not checked."""
    monkeypatch.setattr("perdure.features.mcp.commands.find_user", lambda: "ann")
    settings = project(tmp_path, f"{oauth.url}/mcp", PERSONAL)
    await login_at_terminal(oauth, open_grants(settings), "ben")
    (before,) = await read_logins(settings)
    assert (before["requester"], before["needs_login"]) == ("ann", False)
    others = "those of other requesters are not checked here"
    assert before["state"] == f"needs a login of ann: perdure mcp login tickets --for ann; {others}"
    checks = await check_servers(settings)
    assert [check.ok for check in checks] == [True, True]
    assert "needs a login of ann: no person has logged in" in checks[0].found
    await login_at_terminal(oauth, open_grants(settings), "ann")
    (after,) = await read_logins(settings)
    assert (after["by"], after["state"].endswith(others)) == ("ann", True)
    assert "not seen yet: perdure tools --accept tickets" in (await check_servers(settings))[0].found
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "default.md").write_text("---\ntools: [tickets__stock]\n---\nYou count.\n")
    with pytest.raises(ProjectError, match="accept its tools as one of them: perdure tools --accept tickets; an agent"):
        await open_offer(project(tmp_path, f"{oauth.url}/mcp", PERSONAL))


async def open_offer(settings: Settings) -> None:
    """As a worker does that starts."""
    async with offered_tools(settings):
        pass


@pytest.mark.parametrize(
    ("toml", "env", "reason"),
    [
        (ACCESS, {"PERDURE_CODEC_KEYS": ""}, "OAuth grants are encrypted: set PERDURE_CODEC_KEYS"),
        (ACCESS, {}, "a login at the gateway needs public_url in \\[gateway\\]"),
        (ACCESS.replace("tickets", "ticket"), {}, "there is no MCP server 'ticket' in .mcp.json.*tickets"),
        (ACCESS + 'grant = "requester"\n', {}, 'with grant = "requester" each requester does'),
        (PERSONAL, {}, "a login at the gateway needs public_url in \\[gateway\\]"),
        (ACCESS + 'grant = "client"\n', {}, 'grant = "client" needs client_id and client_secret_env'),
        (ACCESS + "scopes = 1\n", {}, "scopes"),
        (
            '[mcp.tickets]\nauth = "oauth"\ngrant = "client"\nclient_id = "x"\nclient_secret_env = "TICKETS"\n',
            {},
            "TICKETS is not set",
        ),
    ],
)
def test_a_setting_that_cannot_work_is_one_line(tmp_path: Path, toml: str, env: dict[str, str], reason: str) -> None:
    def read() -> None:
        open_logins(project(tmp_path, "https://tickets.example.com/mcp", toml, **env), {})

    with pytest.raises(ProjectError, match=reason) as refused:
        read()
    assert "\n" not in str(refused.value)
