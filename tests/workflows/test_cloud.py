"""A namespace as Temporal Cloud has them: rights are missing, search attributes too, API keys expire."""

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import pytest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from perdure.activities.temporal import FREE_VISIBILITY_CALLS, VISIBILITY_RATE
from perdure.client.connection import connect, refresh_api_key, register_search_attributes
from perdure.client.errors import NotSearchableError, TemporalUnavailableError
from perdure.client.run_list import iterate_runs, list_page
from perdure.converter import data_converter
from perdure.features.reconciler.activities import Reconciler
from perdure.features.reconciler.contract import ReconcileReport
from perdure.process.workflows import workflow_interceptors
from perdure.settings.file import WorkerSettings
from perdure.testkit.model_server import calls
from tests.conftest import TEMPORAL, dynamic_config
from tests.proxy import Proxy, proxied
from tests.replaying import replay_history
from tests.workflows.conftest import MakeWorld, Run
from tests.workflows.following import make_follow_ups
from tests.workflows.lane import echo, lane_of, new_id, say, until_idle
from tests.workflows.mail import Mailbox

ASK = calls(("ask_human", {"question": "which one?"}))
FINISH = calls(("finish", {"outcome": "done"}))
DENIED = grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture
async def proxy(client: Client) -> AsyncIterator[Proxy]:
    async with proxied(client.service_client.config.target_host) as found:
        yield found


@pytest.fixture(scope="module")
async def bare() -> AsyncIterator[Client]:
    """A client of a namespace without Perdure's search attributes."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=TEMPORAL, dev_server_extra_args=dynamic_config(), data_converter=data_converter
    ) as environment:
        yield environment.client


@pytest.mark.parametrize("status", [DENIED, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND])
async def test_a_client_that_may_not_list_search_attributes_goes_on_with_a_warning(
    proxy: Proxy, status: grpc.StatusCode
) -> None:
    proxy.denied["ListSearchAttributes"] = status
    client = await connect(proxy.address)
    warning = await register_search_attributes(client)
    assert warning is not None
    assert "are not listed (Request unauthorized.): they exist, but their types are not checked" in warning
    proxy.denied["CountWorkflowExecutions"] = DENIED
    warning = await register_search_attributes(client)
    assert warning is not None
    assert "if one is missing, runs hang; needed are AgentName (KEYWORD), AgentStatus (KEYWORD)" in warning


async def test_search_attributes_that_are_missing_are_named_also_where_they_may_not_be_listed(bare: Client) -> None:
    async with proxied(bare.service_client.config.target_host) as proxy:
        proxy.denied["ListSearchAttributes"] = DENIED
        with pytest.raises(
            TemporalUnavailableError, match=r"missing in namespace default: .*AgentName.*or set \[worker\]"
        ):
            await register_search_attributes(await connect(proxy.address))


async def test_a_run_goes_on_where_nothing_but_the_run_itself_is_allowed(world: MakeWorld, proxy: Proxy) -> None:
    proxy.denied = dict.fromkeys(
        ("ListSearchAttributes", "AddSearchAttributes", "CreateSchedule", "DescribeSchedule"), DENIED
    )
    async with world([ASK, FINISH], server=await connect(proxy.address)) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.execute_update("answer", {"text": "this one"})
        assert (await run.result())["type"] == "agent.completed"
    assert proxy.calls["RespondWorkflowTaskCompleted"] > 0


async def attributes_of(run: Run) -> dict[str, Any]:
    return {pair.key.name: pair.value for pair in (await run.describe()).typed_search_attributes}


async def fits(run: Run, *, searchable: bool) -> None:
    """Replays as a worker with this setting would. Raises if the history does not fit."""
    interceptors = workflow_interceptors(run._client, WorkerSettings(search_attributes=searchable))
    await replay_history(await run.fetch_history(), data_converter, interceptors=interceptors)


async def test_a_run_without_search_attributes_works_and_replays_under_either_setting(
    world: MakeWorld, bare: Client
) -> None:
    async with world([ASK, FINISH], server=bare, searchable=False) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        await run.execute_update("answer", {"text": "this one"})
        assert (await run.result())["type"] == "agent.completed"
        assert set(await attributes_of(run)) <= {"BuildIds", "TemporalChangeVersion"}
        for searchable in (True, False):
            await fits(run, searchable=searchable)


async def test_a_run_keeps_to_what_it_began_with_when_the_setting_changes(world: MakeWorld) -> None:
    async with world([ASK, FINISH, ASK, FINISH], works=False) as it:
        for before in (True, False):
            it.searchable = before
            async with it.worker():
                run = await it.start()
                await it.until_state(run, question=True)
            it.searchable = not before
            async with it.worker():
                await run.execute_update("answer", {"text": "this one"})
                await run.result()
            # The start has set it, and only a run that began with search attributes changes it.
            assert (await attributes_of(run))["AgentStatus"] == ("completed" if before else "running")
            assert await it.failed_tasks(run) == 0
            for searchable in (True, False):
                await fits(run, searchable=searchable)


async def test_conversations_mailboxes_and_follow_ups_work_without_search_attributes(
    world: MakeWorld, bare: Client, tmp_path: Path
) -> None:
    chat = new_id()
    async with world(echo, server=bare, searchable=False) as it:
        await say(it, chat, "my name is Ada")
        await until_idle(it, chat, 1)
        box = Mailbox(it, tmp_path / "box")
        async with box.served():
            box.put("a")
            await box.until_over("a")
        workflows = [lane_of(it, chat)]
    async with make_follow_ups(world)(server=bare, searchable=False) as here:
        follow_up = await here.create()
        await here.wait_for_reply(follow_up)
        await here.publish(here.reply())
        await follow_up.result()
        for workflow in (*workflows, follow_up):
            assert set(await attributes_of(workflow)) <= {"BuildIds", "TemporalChangeVersion"}


async def test_lists_name_the_missing_attribute_in_one_line(world: MakeWorld, bare: Client) -> None:
    async with world([ASK], server=bare, searchable=False) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        listed = [found.run_id async for found in iterate_runs(bare, limit=5)]
        assert run.id.removeprefix("run:") in listed
        for waiting in (list_waiting(bare), list_page(bare, waiting=True, limit=5)):
            with pytest.raises(NotSearchableError, match="namespace default has no search attribute AgentStatus: "):
                await waiting


async def list_waiting(client: Client) -> None:
    async for _ in iterate_runs(client, waiting=True):
        pass


async def test_the_reconciler_works_without_search_attributes(
    world: MakeWorld, bare: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world([], server=bare, searchable=False) as it:
        report = await Reconciler(bare, it.project.stores, it.queue).run_pass()
    assert report == ReconcileReport()
    assert "this server does not list these runs" in caplog.text


async def test_a_new_api_key_in_the_configuration_file_is_used_without_a_restart(
    world: MakeWorld, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "temporal.toml"
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))

    def write(key: str) -> None:
        file.write_text(
            f'[profile.default]\naddress = "{proxy.address}"\napi_key = "{key}"\ntls = {{disabled = true}}\n'
        )

    write("first")
    proxy.key = "first"
    client = await connect()
    async with refresh_api_key(client, timedelta(seconds=0.01)), world([ASK, FINISH], server=client) as it:
        monkeypatch.delenv("TEMPORAL_CONFIG_FILE")  # as a worker hides it from tools
        run = await it.start()
        await it.until_state(run, question=True)
        proxy.key = "second"
        with pytest.raises(RPCError, match="the API key is not valid"):
            await run.describe()
        file.write_text("[profile")  # in the middle of being written
        write("second")
        await it.until(lambda: client.api_key == "second")
        await run.execute_update("answer", {"text": "this one"})
        assert (await run.result())["type"] == "agent.completed"


async def test_the_lists_of_a_pass_are_spaced(world: MakeWorld, proxy: Proxy) -> None:
    async with world([], server=await connect(proxy.address), works=False) as it:
        for number in range(14):
            (it.project.workspaces / f"gone-{number}" / ".store").mkdir(parents=True)
        begun = monotonic()
        report = await Reconciler(it.client, it.project.stores, it.queue).run_pass()
        lists, seconds = proxy.calls["ListWorkflowExecutions"], monotonic() - begun
    assert report.unjudged == 14
    assert lists >= 14
    assert seconds >= (lists - FREE_VISIBILITY_CALLS) / VISIBILITY_RATE - 0.1
