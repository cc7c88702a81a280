"""Sessions: a cookie in place of a token, at all gateways of a project, for the page's own requests alone."""

import asyncio
import stat
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from http.cookies import Morsel, SimpleCookie
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import Request
from obstore.store import MemoryStore

import perdure.gateway.sessions
from perdure.activities.security import NO_SECRETS
from perdure.activities.storage.object_store import RemoteStores
from perdure.contracts.people import Sender, SentBy
from perdure.decisions.people.terms import format_sent_by
from perdure.gateway.app import make_app
from perdure.gateway.auth import Gateway as Served
from perdure.gateway.auth import TrustedProxy
from perdure.gateway.sessions import KEY_FILE, LIFETIME, LONGEST, CookieSession, open_sessions
from perdure.gateway.tokens import Scope, Token, Tokens, new_token
from perdure.settings.file import GatewaySettings
from tests.e2e.projects import Project
from tests.gateway.conftest import Gateway, Gateways, make_token
from tests.gateway.test_access_log import lines
from tests.waiting import until

OWN = {"Sec-Fetch-Site": "same-origin", "X-Perdure": "1"}
BOUND = 10.0  # seconds until a session without its token ends


@asynccontextmanager
async def browser(gateway: Gateway, cookie: str = "") -> AsyncIterator[httpx.AsyncClient]:
    """A client without a token. Cookies are sent as given, also those of TLS."""
    headers = {"Cookie": cookie} if cookie else {}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, trust_env=False, timeout=60) as http:
        yield http


def cookie_of(answer: httpx.Response) -> Morsel[str]:
    [morsel] = SimpleCookie(answer.headers["Set-Cookie"]).values()
    return morsel


async def sign_in(gateway: Gateway, token: str = "", **headers: str) -> str:
    """The cookie, as a browser sends it."""
    async with browser(gateway) as http:
        answer = await http.post("/v1/session", json={"token": token or gateway.token}, headers={**OWN, **headers})
    assert answer.status_code == 200, answer.text
    morsel = cookie_of(answer)
    return f"{morsel.key}={morsel.value}"


async def test_a_cookie_counts_in_place_of_the_token_at_each_gateway(gateway: Gateway, gateways: Gateways) -> None:
    async with browser(gateway) as http:
        by_header = await http.post("/v1/session", headers={"Authorization": f"Bearer {gateway.token}"})
        by_body = await http.post("/v1/session", json={"token": gateway.token})
    for answer in (by_header, by_body):
        morsel = cookie_of(answer)
        assert gateway.token not in answer.text + answer.headers["Set-Cookie"]
        assert (morsel["httponly"], morsel["samesite"], morsel["path"]) == (True, "strict", "/")
        assert (morsel["secure"], morsel["domain"]) == ("", "")  # this gateway has no TLS before it
        assert LIFETIME.total_seconds() - 60 < int(morsel["max-age"]) <= LIFETIME.total_seconds()
        assert answer.headers["Cache-Control"] == "no-store"
        said = answer.json()
        assert (said["name"], said["credential"], said["person"], said["groups"]) == ("tester", "cookie", None, [])
        assert set(said["scopes"]) == set(Scope)
        assert timedelta() < datetime.fromisoformat(said["expires_at"]) - datetime.now(UTC) <= LIFETIME
    run_id = await gateway.start()
    with gateways.open() as second:
        async with browser(second, f"{morsel.key}={morsel.value}") as http:
            assert (await http.get("/v1/session")).json() == said
            listed = await http.get("/v1/runs")
            assert (listed.status_code, listed.headers["Cache-Control"]) == (200, "no-store")
            assert "Set-Cookie" not in listed.headers  # it is fresh
            async with http.stream("GET", f"/v1/runs/{run_id}/events") as stream:
                assert stream.status_code == 200
    [line] = [line for line in second.logged() if line.get("route") == "/v1/runs"]
    assert (line["token"], line["credential"]) == ("tester", "cookie")


async def test_over_tls_the_cookie_is_for_this_host_and_tls_alone(gateway: Gateway, gateways: Gateways) -> None:
    plain = await sign_in(gateway)
    with gateways.open("--behind-tls") as behind:
        async with browser(behind) as http:
            morsel = cookie_of(await http.post("/v1/session", json={"token": gateway.token}))
        assert (morsel.key.startswith("__Host-"), morsel["secure"]) == (True, True)
        for cookie, status in ((f"{morsel.key}={morsel.value}", 200), (plain, 401)):
            async with browser(behind, cookie) as http:
                assert (await http.get("/v1/session")).status_code == status
    # A proxy on this machine may end TLS without --behind-tls: the browser says so.
    assert (await sign_in(gateway, Origin="https://perdure.example")).startswith("__Host-")


async def test_who_is_there_is_401_without_a_session(gateway: Gateway) -> None:
    async with browser(gateway) as http:
        answer = await http.get("/v1/session")
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert (await gateway.get("/v1/session")).json()["credential"] == "token"


@pytest.mark.parametrize("body", [None, {}, {"token": ""}, {"token": "pdr_stolen"}, {"token": 7}, {"tokens": "pdr_x"}])
async def test_a_wrong_token_does_not_sign_in(gateway: Gateway, body: Any) -> None:
    async with browser(gateway) as http:
        answer = await http.post("/v1/session", json=body) if body is not None else await http.post("/v1/session")
        assert answer.status_code in (401, 422)
        assert "Set-Cookie" not in answer.headers
        assert "pdr_stolen" not in answer.text
        assert (await http.post("/v1/session", content=f'{{"token": "{gateway.token}"}}')).status_code == 415


async def test_revoking_the_token_ends_its_sessions(gateway: Gateway) -> None:
    """Another token with the name does not bring them back."""
    name = f"leaver-{uuid4().hex[:8]}"
    cookie = await sign_in(gateway, await asyncio.to_thread(make_token, gateway.project, name, "runs:read"))
    async with browser(gateway, cookie) as http:
        assert (await http.get("/v1/runs")).status_code == 200
        assert (await asyncio.to_thread(gateway.project.perdure, "token", "revoke", name)).code == 0

        async def is_over() -> bool:
            return (await http.get("/v1/runs")).status_code == 401

        await until(is_over, BOUND)
        await asyncio.to_thread(make_token, gateway.project, name, "runs:read")
        answer = await http.get("/v1/runs")
    assert (answer.status_code, answer.json()["detail"]) == (401, "the session is over: sign in again")
    [line, *_] = await lines(gateway, 1, reason="unknown_session", route="/v1/runs")
    assert (line["event"], line["token"]) == ("gateway.login_failed", None)


@pytest.mark.parametrize("by_cookie", [False, True])
async def test_an_open_stream_ends_with_its_token(gateway: Gateway, by_cookie: bool) -> None:
    run_id, name = await gateway.waiting(), f"watcher-{uuid4().hex[:8]}"
    token = await asyncio.to_thread(make_token, gateway.project, name, "runs:read")
    sent = {"Cookie": await sign_in(gateway, token)} if by_cookie else {"Authorization": f"Bearer {token}"}
    async with browser(gateway) as http, http.stream("GET", f"/v1/runs/{run_id}/events", headers=sent) as stream:
        chunks = stream.aiter_raw()
        await anext(chunks)
        assert (await asyncio.to_thread(gateway.project.perdure, "token", "revoke", name)).code == 0
        async with asyncio.timeout(BOUND):
            seen = b"".join([chunk async for chunk in chunks])
    assert b"event: end" not in seen
    await gateway.post(f"/v1/runs/{run_id}/cancel", {})


async def test_a_forged_or_altered_cookie_is_none(gateway: Gateway) -> None:
    name, _, value = (await sign_in(gateway)).partition("=")
    version, holder, since, ends, signature = value.rsplit(".", 4)
    forged = [
        f"2.{holder}.{since}.{ends}.{signature}",
        f"{version}.only-read.{since}.{ends}.{signature}",
        f"{version}.{holder}.{int(since) + 1}.{ends}.{signature}",
        f"{version}.{holder}.{since}.{int(ends) + 3600}.{signature}",
        f"{version}.{holder}.{since}.{ends}.{signature[:-1]}{'A' if signature[-1] != 'A' else 'E'}",
        f"{version}.{holder}.{since}.{ends}.{'A' * 43}",
        f"{version}.{holder}.{since}.{ends}.",
        f"{version}.{holder}.{since}.{'9' * 400}.{signature}",
        value.partition(".")[2],
        gateway.token,
        "",
    ]
    for wrong in forged:
        async with browser(gateway, f"{name}={wrong}") as http:
            assert (await http.get("/v1/runs")).status_code == 401, wrong
    async with browser(gateway, f"{name}={value}") as http:
        assert (await http.get("/v1/runs")).status_code == 200


REFUSED: list[dict[str, str]] = [
    {},
    {"X-Perdure": "1"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "cross-site", "X-Perdure": "1"},
    {"Sec-Fetch-Site": "same-site", "X-Perdure": "1"},  # another port, or a sister domain
    {"Sec-Fetch-Site": "none", "X-Perdure": "1"},
    {"Origin": "http://evil.example", "X-Perdure": "1"},
    {"Origin": "null", "X-Perdure": "1"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "{own}", "X-Perdure": "1"},
]
TAKEN: list[dict[str, str]] = [OWN, {"Origin": "{own}", "X-Perdure": "1"}]


async def test_only_the_gateways_own_page_may_act_by_cookie(gateway: Gateway) -> None:
    run_id, cookie = await gateway.waiting(), await sign_in(gateway)
    async with browser(gateway, cookie) as http:
        for headers in REFUSED:
            sent = {name: value.format(own=gateway.url) for name, value in headers.items()}
            for method, path in (("POST", f"/v1/runs/{run_id}/cancel"), ("DELETE", "/v1/session")):
                answer = await http.request(method, path, headers=sent)
                assert (answer.status_code, "own page" in answer.json()["detail"]) == (403, True), sent
            assert (await http.get(f"/v1/runs/{run_id}", headers=sent)).status_code == 200
        assert (await http.get(f"/v1/runs/{run_id}")).json()["state"]["status"] == "waiting_on_human"
        for headers in TAKEN:
            sent = {name: value.format(own=gateway.url) for name, value in headers.items()}
            other = await gateway.waiting()
            assert (await http.post(f"/v1/runs/{other}/cancel", headers=sent)).status_code == 202, sent
    assert (await lines(gateway, len(REFUSED), reason="cross_site", run_id=run_id))[0][
        "event"
    ] == "gateway.login_failed"
    assert (await gateway.post(f"/v1/runs/{run_id}/cancel", {})).status_code == 202  # a token needs none of it


async def test_of_a_token_and_a_cookie_the_token_counts(gateway: Gateway) -> None:
    name = f"reader-{uuid4().hex[:8]}"
    reader = await asyncio.to_thread(make_token, gateway.project, name, "runs:read")
    async with browser(gateway, await sign_in(gateway)) as http:
        both = {"Authorization": f"Bearer {reader}"}
        assert (await http.get("/v1/session", headers=both)).json()["name"] == name
        assert (await http.post("/v1/runs/x/cancel", headers={**both, **OWN})).status_code == 403
        wrong = {"Authorization": "Bearer pdr_wrong"}
        assert (await http.get("/v1/session", headers=wrong)).status_code == 401


async def test_signing_out_removes_the_cookie(gateway: Gateway) -> None:
    cookie = await sign_in(gateway)
    async with browser(gateway, cookie) as http:
        answer = await http.delete("/v1/session", headers=OWN)
    morsel = cookie_of(answer)
    assert (answer.status_code, morsel.key, morsel.value) == (204, cookie.partition("=")[0], "")
    assert (morsel["max-age"], morsel["path"]) == ("0", "/")
    async with browser(gateway) as http:
        assert (await http.delete("/v1/session", headers=OWN)).status_code == 401


# ---- a proxy that names the person


HEADER = "X-Forwarded-User"
PROXY = """
[gateway]
proxy_header = "x-forwarded-user"
proxy_addresses = ["{addresses}", "2001:db8::/32"]
proxy_scopes = ["runs:read", "human:answer"]

[people]
finance = ["ann"]
"""


@contextmanager
def behind_proxy(gateways: Gateways, addresses: str) -> Iterator[Gateway]:
    file = f"proxy-{uuid4().hex[:8]}.toml"
    gateways.project.write_all({file: PROXY.format(addresses=addresses)})
    with gateways.open(PERDURE_CONFIG=str(gateways.project.folder / file)) as opened:
        yield opened


async def test_a_person_whom_the_proxy_names_is_known_by_their_name(gateway: Gateway, gateways: Gateways) -> None:
    run_id, cookie = await gateway.waiting(), await sign_in(gateway)
    with behind_proxy(gateways, "127.0.0.0/8") as behind:
        async with browser(behind, cookie) as http:  # the cookie does not count: the proxy says who is there now
            http.headers[HEADER] = "ann"
            said = (await http.get("/v1/session")).json()
            assert (said["name"], said["person"], said["credential"]) == ("ann", "ann", "proxy")
            assert (said["scopes"], said["groups"], said["expires_at"]) == (
                ["runs:read", "human:answer"],
                ["finance"],
                None,
            )
            assert (await http.post("/v1/runs", json={"payload": {"goal": "x"}}, headers=OWN)).json()["detail"] == (
                "person ann has no scope runs:start"
            )
            answer = f"/v1/runs/{run_id}/answer"
            assert (await http.post(answer, json={"text": "red"})).status_code == 403  # another page may have sent it
            assert (await http.post(answer, json={"text": "red"}, headers=OWN)).status_code == 200
            by_token = await http.get("/v1/session", headers={"Authorization": f"Bearer {gateway.token}"})
            assert by_token.json()["name"] == "tester"
        [answered] = [body for _, body in await gateway.events(run_id) if body.get("type") == "answer_received"]
        assert answered["answer"]["sender"] == {"door": "gateway", "person": "ann", "groups": ["finance"]}
        sent = SentBy(sender=Sender.model_validate(answered["answer"]["sender"]), by=answered["answer"]["by"])
        assert format_sent_by(sent) == "ann (gateway)"
        [line] = await lines(behind, 1, run_id=run_id, status=200)
        assert (line["token"], line["person"], line["credential"]) == (None, "ann", "proxy")


async def test_a_name_that_is_none_is_refused(gateways: Gateways) -> None:
    with behind_proxy(gateways, "127.0.0.1") as behind:
        async with browser(behind) as http:
            for names in ([b"ann", b"eve"], ["ann\u202e".encode()], [b"\xff"], [b"a" * 201]):
                answer = await http.get("/v1/session", headers=[(HEADER.encode(), name) for name in names])
                assert (answer.status_code, "must name one person" in answer.text) == (400, True), names
            assert (await http.get("/v1/runs", headers={HEADER: ""})).status_code == 401  # it names none
            assert (await http.get("/v1/session", headers=[(HEADER.encode(), "Zoë".encode())])).json()["name"] == "Zoë"


async def test_the_header_of_another_address_is_ignored(gateway: Gateway, gateways: Gateways) -> None:
    with behind_proxy(gateways, "10.0.0.0/8") as behind:
        async with browser(behind) as http:
            for sent in ({HEADER: "ann"}, {HEADER: "ann", "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1"}):
                assert (await http.get("/v1/runs", headers=sent)).status_code == 401
            found = await lines(behind, 2, reason="untrusted_proxy")
            assert [(line["event"], line.get("person")) for line in found] == [("gateway.login_failed", None)] * 2
            cookie = await sign_in(behind)
            for more in ({"Authorization": f"Bearer {gateway.token}"}, {"Cookie": cookie}):
                answer = await http.get("/v1/session", headers={HEADER: "ann", **more})
                assert answer.json()["name"] == "tester"
        assert len(await lines(behind, 2, reason="untrusted_proxy")) == 2  # a request that is let in has no failure
    async with browser(gateway) as http:  # which believes no header
        assert (await http.get("/v1/runs", headers={HEADER: "ann"})).status_code == 401


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('proxy_header = "X-User"', "proxy_header: needs proxy_addresses"),
        ('proxy_addresses = ["10.0.0.0/8"]', "proxy_header: name the header"),
        ('proxy_scopes = ["runs:read"]', "proxy_header: name the header"),
        ('proxy_header = "X-User"\nproxy_addresses = ["0.0.0.0/0"]', "0.0.0.0/0 is every address"),
        ('proxy_header = "X-User"\nproxy_addresses = ["10.0.0.1/8"]', "10.0.0.1/8 has host bits set"),
        ('proxy_header = "Cookie"\nproxy_addresses = ["10.0.0.0/8"]', "Cookie has another meaning"),
        ('proxy_header = "X-User"\nproxy_addresses = ["10.0.0.1"]\nproxy_scopes = ["events:publish"]', "proxy_scopes"),
    ],
)
def test_settings_of_a_proxy_that_do_not_fit_are_named_at_the_start(tmp_path: Path, table: str, says: str) -> None:
    project = Project(tmp_path)
    project.write_all({"perdure.toml": f"[gateway]\n{table}\n"})
    error = project.perdure("gateway", "--port", "0").error()
    assert says in error


@pytest.mark.parametrize(
    ("peer", "is_believed"),
    [("10.9.0.1", True), ("::ffff:10.9.0.1", True), ("11.0.0.1", False), ("fe80::1%eth0", True), ("", False)],
)
def test_the_peer_of_the_connection_is_compared(peer: str, is_believed: bool) -> None:
    proxy = TrustedProxy.of(GatewaySettings(proxy_header="X-User", proxy_addresses=("10.0.0.0/8", "fe80::/10")))
    assert proxy is not None
    assert proxy.is_peer(Request({"type": "http", "client": (peer, 1) if peer else None})) is is_believed


# ---- time, with a gateway in this process


@asynccontextmanager
async def served(tmp_path: Path, expires: timedelta | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client that keeps cookies, signed in."""
    tokens = Tokens(tmp_path / "tokens.json")
    written, token = new_token("ann", (Scope.read,), expires)
    tokens.add(token)
    file = SimpleNamespace(people={"finance": ("ann",)})
    app = make_app(Served(SimpleNamespace(settings=SimpleNamespace(secrets=NO_SECRETS, file=file)), tokens))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here", headers=OWN) as http:
        assert (await http.post("/v1/session", json={"token": written})).json()["groups"] == ["finance"]
        yield http


@pytest.mark.parametrize("ends", ["session", "token"])
async def test_a_session_ends_with_its_time_or_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    if ends == "session":
        monkeypatch.setattr(perdure.gateway.sessions, "LIFETIME", timedelta(seconds=3))
    async with served(tmp_path, timedelta(seconds=3) if ends == "token" else None) as http:
        [cookie] = http.cookies.jar
        assert (await http.get("/v1/session")).status_code == 200

        async def is_over() -> bool:  # sent as it is: the client would drop it by itself
            answer = await http.get("/v1/session", headers={"Cookie": f"{cookie.name}={cookie.value}"})
            return answer.status_code == 401

        await until(is_over, BOUND)


async def test_a_session_that_is_used_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perdure.gateway.sessions, "RENEWED_EVERY", timedelta(seconds=1))
    async with served(tmp_path) as http:
        first = (await http.get("/v1/session")).json()["expires_at"]

        async def is_extended() -> bool:
            answer = await http.get("/v1/session")
            return answer.json()["expires_at"] > first and "Set-Cookie" in answer.headers

        await until(is_extended)
        [cookie] = http.cookies.jar
        assert (await http.get("/v1/session", headers={"Cookie": f"{cookie.name}={cookie.value}"})).status_code == 200
        monkeypatch.setattr(perdure.gateway.sessions, "RENEWED_EVERY", timedelta())
        assert (await http.delete("/v1/session")).status_code == 204
        assert list(http.cookies.jar) == []  # and not one that continues


def test_a_session_that_is_used_all_day_ends() -> None:
    now = datetime(2026, 1, 5, 8, tzinfo=UTC)
    token = Token(name="ann", sha256="0" * 64, scopes=(Scope.read,))
    session = CookieSession(token, now, now + LIFETIME)
    for minute in range(0, 24 * 60, 30):
        session = session.renew(now + timedelta(minutes=minute))
    assert session.expires_at == now + LONGEST


# ---- the key


def settings_at(tmp_path: Path) -> Any:
    return SimpleNamespace(home=tmp_path / "home", store=None)


def settings_with_store() -> Any:
    stores = RemoteStores(MemoryStore())
    return SimpleNamespace(store="s3://b/runs", stores=stores)


@pytest.mark.parametrize("shared", [False, True])
def test_gateways_that_start_at_once_have_one_key(tmp_path: Path, shared: bool) -> None:
    settings = settings_with_store() if shared else settings_at(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: open_sessions(settings).read_key(), range(24)))
    assert [len(key) for key in keys] == [32]
    if not shared:
        [path] = (tmp_path / "home").iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(("fault", "says"), [("open", "chmod 600"), ("cut", "it is not a key; remove it")])
async def test_a_key_that_is_open_or_damaged_signs_nobody_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, says: str
) -> None:
    sessions = open_sessions(settings_at(tmp_path))
    sessions.read_key()
    path = tmp_path / "home" / KEY_FILE
    path.chmod(0o640 if fault == "open" else 0o600)
    path.write_bytes(path.read_bytes() if fault == "open" else b"short")
    tokens = Tokens(tmp_path / "tokens.json")
    written, token = new_token("ann", (Scope.read,), None)
    tokens.add(token)
    settings = SimpleNamespace(settings=SimpleNamespace(secrets=NO_SECRETS))
    app = make_app(Served(settings, tokens, sessions=sessions))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
        answer = await http.post("/v1/session", json={"token": written})
    assert (answer.status_code, "its operator must fix this" in answer.text) == (503, True)
    assert says in caplog.text
