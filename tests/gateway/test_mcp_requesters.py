"""Logins of requesters: the calls of a run go with its requester's own token, and no other person completes a login.

A worker and a gateway as processes, a real authorization server and MCP server over HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest

from perdure.client.runs import start_or_get_run
from perdure.contracts.run.events import StartEvent
from perdure.features.mcp.offer import open_grants
from perdure.settings import load_settings
from tests.activities.test_mcp_grants import follow
from tests.e2e.conftest import make_project, site
from tests.e2e.projects import MakeProject
from tests.gateway.conftest import make_token
from tests.mcp.desk import Desk, serve_desk
from tests.mcp.oauth import OAuthServer
from tests.waiting import until

__all__ = ["make_project", "site"]  # fixtures


@pytest.fixture(scope="module")
def oauth() -> Iterator[OAuthServer]:
    with OAuthServer(has_sessions=True) as server:
        yield server


@pytest.fixture(scope="module")
async def desk(make_project: MakeProject, oauth: OAuthServer) -> AsyncIterator[Desk]:
    async with serve_desk(make_project, oauth) as opened:
        yield opened


async def test_two_requesters_at_once_each_with_their_own_login_and_token(desk: Desk) -> None:
    """A login of one is completed by no other, frees no run of another, and its token goes with no other's call."""
    own, other = await desk.start("ann", "meet: a1"), await desk.start("ben", "meet: b1")
    asked, others = await desk.question_of(own), await desk.question_of(other)
    link = asked["question"]["link"]
    assert asked["run_id"] != others["run_id"]
    assert " as ann: no person has logged in. Or: perdure mcp login tickets --for ann" in asked["question"]["text"]
    assert link == "v1/mcp/tickets/login?requester=ann"

    async with desk.http("ben") as ben, desk.http("ann") as ann:
        refused = await ben.post(f"/{link}")
        assert refused.status_code == 403
        assert refused.json()["detail"] == "this login to tickets is for ann; ben is not"
        answered = await ben.post(f"/v1/runs/{asked['run_id']}/answer", json={"option": "refuse"})
        assert answered.status_code == 409
        assert "it is for ann alone" in answered.text
        back = urlsplit(await follow((await ann.post(f"/{link}")).json()["url"]))
        assert (await ben.get(f"{back.path}?{back.query}")).status_code == 400  # in the browser of another one
        begun = await ben.post(f"/{others['question']['link']}")
        assert begun.status_code == 200
        assert (await ben.get(f"{back.path}?{back.query}")).status_code == 400  # with the cookie of another login
    assert len(desk.oauth.families) == 1  # of the operator

    await desk.log_in("ann", link)
    await until(lambda: desk.oauth.met == ["a1"])
    assert await desk.held_by(other) == others["run_id"]
    await desk.log_in("ben", others["question"]["link"])
    assert "pieces" in await desk.outcome_of(own)
    assert "pieces" in await desk.outcome_of(other)
    assert desk.oauth.met == ["a1", "b1"]  # one call waited for the other, on one worker
    assert desk.family_of("a1") is desk.logins["ann"]
    assert desk.family_of("b1") is desk.logins["ben"]
    sessions = {call.arguments["article"]: call.session for call in desk.oauth.seen}
    assert len({sessions["a1"], sessions["b1"], ""}) == 3


async def logged_in(desk: Desk) -> None:
    for person in desk.tokens:
        if person not in desk.logins:
            await desk.log_in(person, "v1/mcp/tickets/login")


async def test_a_fork_uses_the_login_of_who_forks_and_a_subtask_that_of_its_run(desk: Desk) -> None:
    await logged_in(desk)
    own = await desk.start("ann", "stock: a2")
    assert "pieces" in await desk.outcome_of(own)
    before = len(desk.oauth.seen)
    async with desk.http("ben") as ben:
        forked = await ben.post(f"/v1/runs/{own}/fork", json={"step": 0, "say": "once more"})
    assert forked.status_code == 202, forked.text
    await desk.outcome_of(forked.json()["run_id"])
    assert desk.oauth.seen[before - 1].family is desk.logins["ann"]
    assert [call.family for call in desk.oauth.seen[before:]] == [desk.logins["ben"]]
    await desk.outcome_of(await desk.start("ben", "delegate: b2"))
    assert desk.family_of("b2") is desk.logins["ben"]


async def test_a_run_without_a_requester_gets_one_line_and_no_token(desk: Desk) -> None:
    await logged_in(desk)
    seen = len(desk.oauth.seen)
    settings = load_settings(desk.gateway.project.environment(), desk.gateway.project.folder)
    event = StartEvent.model_validate({"type": "agentic.start", "payload": {"goal": "stock: c1 "}})
    run_id = uuid4().hex[:12]
    await start_or_get_run(desk.client, settings.task_queue, event, run_id)
    outcome = await desk.outcome_of(run_id)
    assert "is used with the login of a run's requester, and this run's is unknown: start it with a token" in outcome
    assert len(desk.oauth.seen) == seen


async def test_a_login_at_the_terminal_for_a_requester_frees_their_runs(desk: Desk) -> None:
    project = desk.gateway.project
    desk.tokens["cleo"] = await asyncio.to_thread(make_token, project, "cleo", "runs:start", "runs:read")
    run_id = await desk.start("cleo", "stock: d1")
    await desk.question_of(run_id)
    command = ("mcp", "login", "tickets", "--for", "cleo", "--by", "root", "--no-browser")
    with project.running(*command, TEMPORAL_ADDRESS=desk.gateway.address) as login:
        link = await asyncio.to_thread(login.until, f"{desk.oauth.url}/authorize")
        async with httpx.AsyncClient() as http:
            assert (await http.get(await follow(link.strip()))).status_code == 200
        done = await asyncio.to_thread(login.wait)
    assert (done.code, "logged in to tickets as cleo" in done.out) == (0, True), done
    assert "pieces" in await desk.outcome_of(run_id)
    assert desk.family_of("d1") is desk.oauth.families[-1]
    del desk.tokens["cleo"]  # who may not log in at the gateway


async def test_another_login_of_a_requester_begins_another_session(desk: Desk) -> None:
    await logged_in(desk)
    await desk.outcome_of(await desk.start("ann", "stock: a3"))
    desk.logins["ann"].is_revoked = True
    await desk.log_in("ann", "v1/mcp/tickets/login?requester=ann")
    await desk.outcome_of(await desk.start("ann", "stock: a4"))
    old, new = (next(c for c in desk.oauth.seen if c.arguments["article"] == name) for name in ("a3", "a4"))
    assert old.family is not new.family
    assert len({old.session, new.session, ""}) == 3
    settings = load_settings(desk.gateway.project.environment(), desk.gateway.project.folder)
    grants = [await open_grants(settings).read("tickets", name) for name in ("ann", "ben", "")]
    assert [grant and grant.by for grant in grants] == ["ann", "ben", None]  # none of the project
