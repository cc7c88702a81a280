"""The connections of a worker to a server that each requester logs in to. Against a real server over HTTP."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from mcp import MCPError
from temporalio.testing import ActivityEnvironment

from perdure.activities.run.account import ACCOUNT_FILE, write_account
from perdure.activities.security import make_private
from perdure.activities.storage.store import LocalStores
from perdure.contracts.people import UNKNOWN, Account
from perdure.features.mcp.activities import connections
from perdure.features.mcp.activities.connection import Connection, McpUnreachableError, OpenCall
from perdure.features.mcp.activities.connections import PersonalConnections, UnknownRequesterError
from perdure.features.mcp.activities.extension import GetTask, TaskParams
from perdure.features.mcp.activities.grants import GrantKeeper, NeedsLoginError
from tests.activities.test_mcp_grants import count_stock, login_at_terminal, server_of, store_in
from tests.mcp.oauth import OAuthServer

T = TypeVar("T")


@pytest.fixture
def oauth() -> Iterator[OAuthServer]:
    with OAuthServer(has_sessions=True) as server:
        yield server


class Office:
    """A worker's connections, and runs by the name of their requester."""

    def __init__(self, oauth: OAuthServer, folder: Path) -> None:
        self.oauth, self.store = oauth, store_in(folder / "grants")
        self.stores = LocalStores(folder / "runs")
        self.server = server_of(oauth, is_personal=True)
        self.personal = PersonalConnections(self.server, self.stores, self.connect)

    def connect(self, requester: str) -> Connection:
        return Connection(self.server, keeper=GrantKeeper(self.server, self.store, requester))

    async def within(self, requester: str | None, act: Callable[[], Awaitable[T]]) -> T:
        """Act in an activity of a run of this requester; None: one that began before there were accounts."""
        run_id = f"of-{requester}"
        make_private(self.stores.of(run_id).workspace.root)
        if requester is not None:
            write_account(self.stores.of(run_id), Account(requester=requester, owner="ann"))
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, workflow_id=f"run:{run_id}", workflow_run_id=run_id)
        return await environment.run(act)

    async def count(self, requester: str) -> Connection:
        async def act() -> Connection:
            connection = await self.personal.for_run()
            await count_stock(connection)
            return connection

        return await self.within(requester, act)


async def test_connections_that_are_long_unused_are_closed_and_opened_again(
    oauth: OAuthServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_IDLE", 1)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.0)
    office = Office(oauth, tmp_path)
    for name in ("ann", "ben", "cleo"):
        await login_at_terminal(oauth, office.store, name)
    first = await office.count("ann")
    assert await office.count("ann") is first
    second = await office.count("ben")
    await office.count("cleo")
    assert (await office.count("ann"), await office.count("ben")) != (first, second)
    assert first._link is None
    by = [oauth.families.index(call.family) for call in oauth.seen]
    assert by == [0, 0, 1, 2, 0, 1]
    await office.personal.close()


@pytest.mark.parametrize("requester", ["", UNKNOWN, None])
async def test_a_run_of_no_requester_has_no_connection(
    oauth: OAuthServer, tmp_path: Path, requester: str | None
) -> None:
    """Not even if there is a grant of the project, as of a time when it had one for all."""
    office = Office(oauth, tmp_path)
    await login_at_terminal(oauth, office.store)
    with pytest.raises(UnknownRequesterError, match="this run's is unknown: start it with a token of the gateway"):
        await office.within(requester, office.personal.for_run)
    with pytest.raises(McpUnreachableError, match="accept its tools as one of them"):
        await office.personal.tools()


async def test_a_requester_without_a_login_is_asked_for_it_and_no_other_grant_is_used(
    oauth: OAuthServer, tmp_path: Path
) -> None:
    office = Office(oauth, tmp_path)
    await login_at_terminal(oauth, office.store)
    await login_at_terminal(oauth, office.store, "ben")
    with pytest.raises(NeedsLoginError, match="needs a login of ann") as needs:
        await office.count("ann")
    assert needs.value.requester == "ann"
    assert oauth.seen == []


async def test_a_task_is_asked_about_with_the_token_of_its_runs_requester(oauth: OAuthServer, tmp_path: Path) -> None:
    office = Office(oauth, tmp_path)
    for name in ("ann", "ben"):
        await login_at_terminal(oauth, office.store, name)

    async def look() -> None:
        await office.personal.request(GetTask(params=TaskParams(task_id="t1")), 10.0)

    for name in ("ben", "ann"):
        with pytest.raises(MCPError, match="not found"):  # this server has no tasks
            await office.within(name, look)
    assert [oauth.families.index(call.family) for call in oauth.seen] == [1, 0]
    await office.personal.close()


async def test_an_account_that_cannot_be_read_is_no_reason_for_another_one(oauth: OAuthServer, tmp_path: Path) -> None:
    office = Office(oauth, tmp_path)
    await login_at_terminal(oauth, office.store, "ann")
    make_private(office.stores.of("of-None").workspace.root)
    office.stores.of("of-None").write(ACCOUNT_FILE, b"{half")
    with pytest.raises(UnknownRequesterError):
        await office.within(None, office.personal.for_run)


async def test_another_login_begins_another_session_once_no_call_is_open(oauth: OAuthServer, tmp_path: Path) -> None:
    office = Office(oauth, tmp_path)
    await login_at_terminal(oauth, office.store, "ann")
    connection = await office.count("ann")
    before = connection._link
    await login_at_terminal(oauth, office.store, "ann")
    await office.count("ann")
    assert connection._link is before  # the first token still works, and is not read again before its end
    oauth.families[0].is_revoked = True
    accepted = (await connection.tools(refresh=True))["stock"].sha256  # as before each call
    await connection.call("stock", {"article": "mug"}, 10.0, (accepted,), OpenCall("key"))
    assert connection._link is not before
    assert oauth.seen[-1].family is oauth.families[1]
    assert len({"", *(call.session for call in oauth.seen)}) == 3
    await office.personal.close()
