"""Grants of OAuth: a login once, refreshes by one process at a time, and no login that is not needed.

Against a real authorization server and a real MCP server, over HTTP on loopback.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp_types import CallToolResult, Result
from obstore.store import MemoryStore

from perdure.activities.storage.object_store import RemoteStore
from perdure.activities.storage.store import LocalStores
from perdure.codec import AesGcmCodec
from perdure.decisions.ids import GRANTS_STORE
from perdure.features.mcp.activities import grants
from perdure.features.mcp.activities.config import HttpServer, OAuthAccess
from perdure.features.mcp.activities.connection import Connection, McpUnreachableError, OpenCall
from perdure.features.mcp.activities.grants import Grant, GrantError, GrantKeeper, GrantStore, NeedsLoginError
from perdure.features.mcp.login import LoginError, MachineKeeper, begin_login, finish_login
from perdure.features.mcp.loopback import log_in
from tests.mcp.oauth import OAuthServer
from tests.ports import free_port
from tests.waiting import until

KEY = b"k" * 32
ROOT = Path(__file__).parents[2]


@pytest.fixture
def oauth() -> Iterator[OAuthServer]:
    with OAuthServer() as server:
        yield server


def store_in(folder: Path) -> GrantStore:
    return GrantStore(LocalStores(folder).of(GRANTS_STORE), AesGcmCodec({"k1": KEY}))


def server_of(oauth: OAuthServer, **access: Any) -> HttpServer:
    return HttpServer("tickets", f"{oauth.url}/mcp", oauth=OAuthAccess(**access))


async def follow(url: str) -> str:
    """The browser of a person who agrees: the address that the authorization server sends it back to."""
    async with httpx2.AsyncClient() as http:
        return str((await http.get(url)).headers["location"])


async def login_at_terminal(oauth: OAuthServer, store: GrantStore, requester: str = "") -> Grant:
    opened: list[asyncio.Task[None]] = []

    async def browse(url: str) -> None:
        back = await follow(url)
        async with httpx2.AsyncClient() as http:
            foreign = await http.get(back.replace("state=", "state=x"))
            assert foreign.status_code == 400
            assert (await http.get(back)).status_code == 200

    def show(url: str) -> None:
        opened.append(asyncio.create_task(browse(url)))

    server = server_of(oauth, is_personal=bool(requester))
    grant = await log_in(server, store, 0, requester or "ann", show, requester)
    await opened[0]
    return grant


def connect(oauth: OAuthServer, store: GrantStore) -> Connection:
    return Connection(server_of(oauth), keeper=GrantKeeper(server_of(oauth), store))


async def count_stock(connection: Connection) -> None:
    accepted = (await connection.tools())["stock"].sha256
    assert not is_error(await connection.call("stock", {"article": "mug"}, 10.0, (accepted,), OpenCall("key")))


def is_error(answer: Result) -> bool:
    return not isinstance(answer, CallToolResult) or answer.is_error


def files_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


async def test_a_login_at_the_terminal_gives_a_token_that_is_stored_encrypted(
    oauth: OAuthServer, tmp_path: Path
) -> None:
    store = store_in(tmp_path)
    grant = await login_at_terminal(oauth, store)
    assert (grant.generation, grant.by, grant.resource, grant.scope) == (1, "ann", f"{oauth.url}/mcp", "stock")
    connection = connect(oauth, store)
    await count_stock(connection)
    await connection.close()
    stored = files_of(tmp_path)
    assert stored
    assert grant.refresh_token
    assert grant.client_secret
    for secret in (grant.access_token, grant.refresh_token, grant.client_secret):
        assert secret.encode() not in stored
        assert secret not in repr(grant)
    assert oauth.log == ["register", "login"]


async def test_a_token_that_ended_is_refreshed_with_the_stored_resource_in_a_new_process(
    oauth: OAuthServer, tmp_path: Path
) -> None:
    oauth.ttl = 0.0  # it ends at once
    await login_at_terminal(oauth, store_in(tmp_path))
    oauth.ttl = 3600.0
    connection = connect(oauth, store_in(tmp_path))  # all that it knows is in the store
    await count_stock(connection)
    await connection.close()
    assert oauth.log == ["register", "login", "refresh"]
    assert oauth.forms[-1]["resource"] == f"{oauth.url}/mcp"


async def test_many_calls_at_once_refresh_once(oauth: OAuthServer, tmp_path: Path) -> None:
    oauth.ttl = 0.0
    await login_at_terminal(oauth, store_in(tmp_path))
    oauth.ttl = 3600.0
    keepers = [GrantKeeper(server_of(oauth), store_in(tmp_path)) for _ in range(8)]  # as many processes
    tokens = await asyncio.gather(*(keeper.current() for keeper in keepers for _ in range(3)))
    assert len({grant.access_token for grant in tokens}) == 1
    assert oauth.count("refresh") == 1
    assert not oauth.count("reused")


async def test_an_object_store_keeps_grants_and_leases_too(oauth: OAuthServer) -> None:
    objects = RemoteStore(MemoryStore(), "mcp%3Agrants")
    stores = [GrantStore(objects, AesGcmCodec({"k1": KEY})) for _ in range(5)]
    oauth.ttl = 0.0
    grant = await login_at_terminal(oauth, stores[0])
    oauth.ttl = 3600.0
    tokens = await asyncio.gather(*(GrantKeeper(server_of(oauth), store).current() for store in stores))
    assert {each.version for each in tokens} == {grant.version + 1}
    assert (oauth.count("refresh"), oauth.count("reused")) == (1, 0)
    assert not await stores[1].commit(tokens[0])  # that version exists
    with pytest.raises(LoginError, match="not known"):
        await finish_login(stores[2], "foreign", "code", None)


async def call_for_ever(url: str, folder: str) -> None:
    """Call as a worker process does, over one connection."""
    server = HttpServer("tickets", url, oauth=OAuthAccess())
    connection = Connection(server, keeper=GrantKeeper(server, store_in(Path(folder))))
    while True:
        await count_stock(connection)
        sys.stdout.write("ok\n")
        sys.stdout.flush()
        await asyncio.sleep(0.1)


CALLS = """
import asyncio, sys
from tests.activities.test_mcp_grants import call_for_ever
asyncio.run(call_for_ever(*sys.argv[1:]))
"""


@pytest.mark.slow
async def test_three_processes_share_rotating_tokens_while_they_are_killed(oauth: OAuthServer, tmp_path: Path) -> None:
    """Tokens of three seconds, and five kills: no login, no family revoked, and one refresh for each token."""
    oauth.ttl = 3.0
    store, logs = tmp_path / "store", tmp_path / "logs"
    logs.mkdir()
    await login_at_terminal(oauth, store_in(store))

    def start(number: int) -> subprocess.Popen[bytes]:
        with (logs / f"{number}.log").open("ab") as log:
            command = [sys.executable, "-c", CALLS, f"{oauth.url}/mcp", str(store)]
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)

    workers = {number: start(number) for number in range(3)}
    try:
        for turn in range(5):
            await until_refreshed(oauth)  # a kill after the answer is sent, and before it is stored, costs a login
            await asyncio.sleep(0.3)
            victim = workers[turn % 3]
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            workers[turn % 3] = start(turn % 3)
        await until(lambda: all("ok" in path.read_text() for path in logs.iterdir()))
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    written = [path.read_text() for path in sorted(logs.iterdir())]
    assert all("ok" in log and "Error" not in log for log in written), written
    assert (oauth.count("login"), oauth.count("reused"), oauth.families[0].is_revoked) == (1, 0, False)
    assert oauth.count("refresh") >= 5
    final = await store_in(store).read("tickets")
    assert final is not None
    assert not final.ended


async def until_refreshed(oauth: OAuthServer) -> None:
    before = oauth.count("refresh")
    async with asyncio.timeout(60):
        while oauth.count("refresh") == before:  # noqa: ASYNC110 - another thread counts
            await asyncio.sleep(0.01)


async def test_a_lease_that_was_lost_is_taken_over_and_never_deleted(
    oauth: OAuthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "LEASE_SECONDS", 0.5)
    oauth.ttl = 0.0
    store = store_in(tmp_path)
    grant = await login_at_terminal(oauth, store)
    oauth.ttl = 3600.0
    lost = await store.take_lease("tickets", grant.version)  # of a process that was killed
    assert lost is not None
    assert await store_in(tmp_path).take_lease("tickets", grant.version) is None
    taken = await GrantKeeper(server_of(oauth), store_in(tmp_path)).current()
    assert taken.version == grant.version + 1
    leases = LocalStores(tmp_path).of(GRANTS_STORE).names("leases/tickets")
    assert leases == [f"{grant.version:012d}-0000", f"{grant.version:012d}-0001", f"{grant.version:012d}-0001~"]


async def test_a_revoked_grant_needs_a_login_at_once_and_says_so_to_all(oauth: OAuthServer, tmp_path: Path) -> None:
    store = store_in(tmp_path)
    await login_at_terminal(oauth, store)
    oauth.revoke()
    connection = connect(oauth, store)
    with pytest.raises(NeedsLoginError, match="the grant has ended") as needs:
        await connection.tools()
    assert needs.value.occasion == await store.name_occasion(1)
    await connection.close()
    tried = len(oauth.forms)
    with pytest.raises(NeedsLoginError, match="perdure mcp login tickets"):
        await GrantKeeper(server_of(oauth), store_in(tmp_path)).current()
    assert len(oauth.forms) == tried  # another process does not try it again
    again = await login_at_terminal(oauth, store)
    assert again.generation == 2
    assert (await GrantKeeper(server_of(oauth), store_in(tmp_path)).current()).access_token == again.access_token


async def test_the_loser_of_a_race_adopts_the_winners_token_and_marks_nothing(
    oauth: OAuthServer, tmp_path: Path
) -> None:
    store = store_in(tmp_path)
    grant = await login_at_terminal(oauth, store)
    keeper = GrantKeeper(server_of(oauth), store)
    assert await store.commit(grant.evolve(version=grant.version + 1, access_token="at-winner"))
    await keeper.reject(grant)  # the token that was tried, which is not the stored one any more
    latest = await store.read("tickets")
    assert latest is not None
    assert (latest.access_token, latest.ended) == ("at-winner", "")
    assert (await keeper.renew(grant)).access_token == "at-winner"


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_token_endpoint_that_is_down_costs_no_login(oauth: OAuthServer, tmp_path: Path, status: int) -> None:
    oauth.ttl = 0.0
    store = store_in(tmp_path)
    await login_at_terminal(oauth, store)
    oauth.ttl, oauth.token_status = 3600.0, status
    keeper = GrantKeeper(server_of(oauth), store)
    with pytest.raises(GrantError, match=f"HTTP {status}") as failure:
        await keeper.current()
    assert not isinstance(failure.value, NeedsLoginError)
    connection = Connection(server_of(oauth), keeper=keeper)
    with pytest.raises(McpUnreachableError, match="does not give a token now"):
        await connection.tools()
    await connection.close()
    oauth.token_status = 0
    assert (await keeper.current()).ended == ""


async def test_a_token_that_still_works_is_used_when_its_refresh_is_refused(
    oauth: OAuthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    oauth.ttl = 60.0
    grant = await login_at_terminal(oauth, store)
    monkeypatch.setattr(grants, "time", lambda: float(grant.expires_at or 0) - 5)  # it is due, and not over
    for refusal, status in (("invalid_grant", 0), ("invalid_target", 0), ("", 503)):
        oauth.refusal, oauth.token_status = refusal, status
        kept = await GrantKeeper(server_of(oauth), store).current()
        assert (kept.access_token, kept.ended) == (grant.access_token, "")
    assert len([form for form in oauth.forms if form["grant_type"] == "refresh_token"]) == 3


async def test_a_refresh_whose_answer_was_lost_is_told_from_a_grant_that_was_revoked(
    oauth: OAuthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "LEASE_SECONDS", 0.2)
    oauth.ttl = 0.0
    store = store_in(tmp_path)
    grant = await login_at_terminal(oauth, store)
    assert await store.take_lease("tickets", grant.version)  # a process was killed after it had sent the refresh
    oauth.families[0].spent.add(grant.refresh_token or "")
    oauth.families[0].refresh = "rt-lost"
    with pytest.raises(NeedsLoginError, match="the answer to an earlier refresh may have been lost"):
        await GrantKeeper(server_of(oauth), store_in(tmp_path)).current()


async def test_a_machine_has_a_token_by_its_own_credentials_without_a_person(
    oauth: OAuthServer, tmp_path: Path
) -> None:
    oauth.clients["robot"] = "own-secret"
    server = server_of(oauth, is_machine=True, client_id="robot", client_secret="own-secret")
    keepers = [MachineKeeper(server, store_in(tmp_path)) for _ in range(3)]
    tokens = await asyncio.gather(*(keeper.current() for keeper in keepers))
    assert len({grant.access_token for grant in tokens}) == 1
    oauth.revoke()  # a token that is rejected is replaced
    connection = Connection(server, keeper=keepers[0])
    await count_stock(connection)
    await connection.close()
    assert oauth.log == ["machine", "machine"]
    unknown = server_of(oauth, is_machine=True, client_id="robot", client_secret="x")
    with pytest.raises(GrantError, match="refuses the client: invalid_client") as refused:
        await MachineKeeper(unknown, store_in(tmp_path / "other")).current()
    assert not isinstance(refused.value, NeedsLoginError)


async def test_a_call_that_lacks_rights_asks_for_them_in_the_next_login(oauth: OAuthServer, tmp_path: Path) -> None:
    store = store_in(tmp_path)
    await login_at_terminal(oauth, store)
    keeper = GrantKeeper(server_of(oauth), store)
    connection = Connection(server_of(oauth), keeper=keeper)
    accepted = (await connection.tools())["wipe"].sha256
    with pytest.raises(Exception, match="error response"):
        await connection.call("wipe", {}, 10.0, (accepted,), OpenCall("key"))
    scope = keeper.take_lack("wipe")
    assert scope == "admin"
    assert keeper.take_lack("wipe") is None
    assert "needs more rights (admin)" in str(await keeper.want(scope))
    await count_stock(connection)  # the rights that it has go on
    assert (await login_at_terminal(oauth, store)).scope == "stock admin"
    await connection.close()
    renewed = connect(oauth, store)
    await renewed.tools()
    assert not is_error(await renewed.call("wipe", {}, 10.0, (accepted,), OpenCall("key")))
    await renewed.close()


async def test_rights_that_came_with_a_login_which_a_worker_has_not_seen_are_not_asked_for_again(
    oauth: OAuthServer, tmp_path: Path
) -> None:
    """Each worker keeps the token that it has until it is due."""
    store = store_in(tmp_path)
    await login_at_terminal(oauth, store)
    own, other = (GrantKeeper(server_of(oauth), store_in(tmp_path)) for _ in range(2))
    before = [(await keeper.current()).scope for keeper in (own, other)]
    await own.want("admin")
    await login_at_terminal(oauth, store)
    assert (before, (await other.current()).scope) == (["stock", "stock"], "stock")
    with pytest.raises(GrantError, match="call it again") as again:
        await other.want("admin")
    assert not isinstance(again.value, NeedsLoginError)
    assert [(await keeper.current()).scope for keeper in (own, other)] == ["stock admin"] * 2


# Attacks on the way back.


async def begin_in_browser(oauth: OAuthServer, store: GrantStore, browser: str = "own") -> dict[str, str]:
    url, state = await begin_login(server_of(oauth), store, "http://127.0.0.1:1/callback", "ann", browser)
    fields = {name: values[0] for name, values in parse_qs(urlsplit(await follow(url)).query).items()}
    assert fields["state"] == state
    return fields


async def test_a_callback_with_a_foreign_state_is_refused(oauth: OAuthServer, tmp_path: Path) -> None:
    store = store_in(tmp_path)
    fields = await begin_in_browser(oauth, store)
    for state in ("", "x" * 43, fields["state"][:-1]):
        with pytest.raises(LoginError, match="not known"):
            await finish_login(store, state, fields["code"], fields["iss"], "own")
    with pytest.raises(LoginError, match="not known"):  # of another project
        await finish_login(store_in(tmp_path / "other"), fields["state"], fields["code"], fields["iss"], "own")
    assert await store.read("tickets") is None


async def test_a_callback_counts_once_in_the_browser_that_began_it(oauth: OAuthServer, tmp_path: Path) -> None:
    store = store_in(tmp_path)
    fields = await begin_in_browser(oauth, store)
    for browser in ("", "another"):
        with pytest.raises(LoginError, match="another browser"):
            await finish_login(store, fields["state"], fields["code"], fields["iss"], browser)
    first = await finish_login(store, fields["state"], fields["code"], fields["iss"], "own")
    with pytest.raises(LoginError, match="completed before"):
        await finish_login(store_in(tmp_path), fields["state"], fields["code"], fields["iss"], "own")
    assert await store.read("tickets") == first


@pytest.mark.parametrize("issuer", ["https://evil.example", None])
async def test_a_callback_of_another_authorization_server_is_refused(
    oauth: OAuthServer, tmp_path: Path, issuer: str | None
) -> None:
    store = store_in(tmp_path)
    fields = await begin_in_browser(oauth, store)
    with pytest.raises(LoginError, match="another authorization server"):
        await finish_login(store, fields["state"], fields["code"], issuer, "own")
    assert await store.read("tickets") is None
    assert oauth.count("login") == 0


async def test_a_login_that_is_too_old_is_refused(
    oauth: OAuthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    fields = await begin_in_browser(oauth, store)
    monkeypatch.setattr("perdure.features.mcp.login.time", lambda: datetime.now(UTC).timestamp() + 601)
    with pytest.raises(LoginError, match="older than ten minutes"):
        await finish_login(store, fields["state"], fields["code"], fields["iss"], "own")


async def test_a_version_that_a_killed_process_wrote_in_part_counts_for_nothing(
    oauth: OAuthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "READ_ATTEMPTS", 2)
    store = store_in(tmp_path)
    grant = await login_at_terminal(oauth, store)
    LocalStores(tmp_path).of(GRANTS_STORE).create(f"grants/tickets/{grant.version + 1:012d}", b"half")
    again = await store.read("tickets")
    assert again == grant.evolve(version=grant.version + 1)  # so that the next version is a new one
    assert await store.commit(grant.evolve(version=grant.version + 2))


async def test_the_grant_of_another_server_or_another_key_is_not_used(
    oauth: OAuthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path)
    await login_at_terminal(oauth, store)
    files = LocalStores(tmp_path).of(GRANTS_STORE)
    name = files.names("grants/tickets")[-1]
    files.create(f"grants/other/{name}", files.read(f"grants/tickets/{name}"))  # by someone who can write to the store
    with pytest.raises(GrantError, match="the stored grant of other belongs to tickets"):
        await GrantKeeper(replace(server_of(oauth), name="other"), store).current()
    with pytest.raises(GrantError, match="which is missing"):
        await GrantStore(files, AesGcmCodec({"k2": b"2" * 32})).read("tickets")
    monkeypatch.setattr(grants, "READ_ATTEMPTS", 1)
    with pytest.raises(GrantError, match="cannot be decrypted"):
        await GrantStore(files, AesGcmCodec({"k1": b"2" * 32})).read("tickets")


@pytest.mark.parametrize("kind", ["disk", "objects"])
async def test_grants_of_requesters_are_apart_from_each_other_and_from_the_projects(
    oauth: OAuthServer, tmp_path: Path, kind: str
) -> None:
    files = LocalStores(tmp_path).of(GRANTS_STORE) if kind == "disk" else RemoteStore(MemoryStore(), "mcp%3Agrants")
    store = GrantStore(files, AesGcmCodec({"k1": KEY}))
    oauth.ttl = 0.0
    names = ("", "ann", "Ann", "ann/../ben", "an\u0301n")
    grants = {name: await login_at_terminal(oauth, store, name) for name in names}
    oauth.ttl = 3600.0
    tokens = {name: await GrantKeeper(server_of(oauth), store, name).current() for name in names}
    assert len({each.access_token for each in tokens.values()}) == len(names)
    assert {(each.version, each.generation) for each in tokens.values()} == {(2, 1)}  # refreshed once, each by itself
    assert [(each.requester, each.by) for each in grants.values()] == [(name, name or "ann") for name in names]
    assert len({await store.name_occasion(1, name) for name in names}) == len(names)
    oauth.families[1].is_revoked = True
    with pytest.raises(NeedsLoginError, match=r"needs a login of ann: .*perdure mcp login tickets --for ann$") as needs:
        await GrantKeeper(server_of(oauth), store, "ann").renew(tokens["ann"])
    assert needs.value.occasion == await store.name_occasion(1, "ann")
    assert (await GrantKeeper(server_of(oauth), store, "Ann").current()).ended == ""


async def test_the_grant_of_another_requester_is_not_used_where_it_was_copied_to(
    oauth: OAuthServer, tmp_path: Path
) -> None:
    store = store_in(tmp_path)
    for name in ("ann", "ben"):
        await login_at_terminal(oauth, store, name)
    own, other = (grants._place_of("tickets", name) for name in ("ann", "ben"))
    files = LocalStores(tmp_path).of(GRANTS_STORE)
    files.create(f"grants/{own}/{9:012d}", files.read(f"grants/{other}/{1:012d}"))  # by someone who can write there
    files.create(f"grants/tickets/{9:012d}", files.read(f"grants/{other}/{1:012d}"))
    for name in ("ann", ""):
        with pytest.raises(GrantError, match="belongs to another requester: log in again"):
            await GrantKeeper(server_of(oauth), store, name).current()


@pytest.mark.parametrize("name", ["", "unknown"])
async def test_a_login_of_no_requester_is_refused(oauth: OAuthServer, tmp_path: Path, name: str) -> None:
    """Runs whose requester is not known have the name `unknown`: a login by this name would be that of all of them."""
    with pytest.raises(LoginError, match="needs the name of a requester"):
        await begin_login(server_of(oauth, is_personal=True), store_in(tmp_path), "http://127.0.0.1:1", "x", "", name)


async def test_a_token_is_shown_to_no_other_server_that_has_taken_the_name(oauth: OAuthServer, tmp_path: Path) -> None:
    store = store_in(tmp_path)
    before = await login_at_terminal(oauth, store)
    with OAuthServer() as other:
        connection = connect(other, store)  # its URL in .mcp.json was changed
        with pytest.raises(NeedsLoginError, match=f"the grant is for {oauth.url}/mcp") as needed:
            await connection.tools()
        assert other.log == []
        assert before.reason_for_login(f"{other.url}/mcp") == f"the grant is for {oauth.url}/mcp"  # as in `mcp logins`
        again = await login_at_terminal(other, store)
        await count_stock(connection)
        await connection.close()
    assert (again.resource, again.generation) == (f"{other.url}/mcp", before.generation + 1)
    assert needed.value.occasion == await store.name_occasion(before.generation)  # which the login settles


async def test_the_token_of_a_machine_is_shown_to_no_other_server(oauth: OAuthServer, tmp_path: Path) -> None:
    access = OAuthAccess(is_machine=True, client_id="robot", client_secret="own-secret")
    store = store_in(tmp_path)
    with OAuthServer() as other:
        for place in (oauth, other):
            place.clients["robot"] = "own-secret"
        first = await MachineKeeper(replace(server_of(oauth), oauth=access), store).current()
        second = await MachineKeeper(replace(server_of(other), oauth=access), store).current()
    assert (oauth.log, other.log) == (["machine"], ["machine"])
    assert (second.resource, second.version) == (f"{other.url}/mcp", first.version + 1)


async def test_tokens_are_sent_to_no_address_without_tls_beyond_this_machine() -> None:
    with pytest.raises(GrantError, match="without TLS"):
        await grants.request_token("http://tokens.example/token", {})


@pytest.mark.slow
async def test_the_server_of_the_documentation_works_as_printed(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    program = text.partition("```python\n")[2].partition("```")[0]
    port = free_port()
    (tmp_path / "tickets.py").write_text(program.replace("PORT, LIFE = 8765, 60", f"PORT, LIFE = {port}, 2"))
    command = [sys.executable, "tickets.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as server:  # noqa: ASYNC220 - ends soon
        try:
            await until_listening(port)
            tickets = HttpServer("tickets", f"http://127.0.0.1:{port}/mcp", oauth=OAuthAccess())
            opened: list[asyncio.Task[str]] = []

            async def browse(url: str) -> str:
                async with httpx2.AsyncClient(follow_redirects=True) as http:
                    return (await http.get(url)).text

            store = store_in(tmp_path / "store")
            first = await log_in(tickets, store, 0, "ann", lambda url: opened.append(asyncio.create_task(browse(url))))
            assert await opened[0] == "You can close this page."
            connection = Connection(tickets, keeper=GrantKeeper(tickets, store))
            accepted = (await connection.tools())["open_tickets"].sha256
            while (await store.read("tickets") or first).version == first.version:  # until a token has been replaced
                assert not is_error(await connection.call("open_tickets", {}, 10.0, (accepted,), OpenCall("key")))
                await asyncio.sleep(0.1)
            assert not is_error(await connection.call("open_tickets", {}, 10.0, (accepted,), OpenCall("key")))
            await connection.close()
        finally:
            server.kill()


async def until_listening(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
