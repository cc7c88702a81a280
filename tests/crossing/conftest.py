"""The project with everything on, at work: its server rotates runs early, and each shape has been run once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from perdure.client.connection import connect
from perdure.settings import load_settings
from perdure.testkit.model_server import ScriptedModel
from tests.a2a.elsewhere import elsewhere
from tests.conftest import SHORT_HISTORY, server
from tests.crossing.project import ANSWER_KEY_OF_WORKERS, CrossedProject, make_person, take_all, write_project
from tests.crossing.shapes import Crossing, make_run, reply, warehouse, waves

PEOPLE = ("root", "ann", "ben", "cleo")


@pytest.fixture(scope="session")
def sink() -> Iterator[tuple[str, list[bytes]]]:
    with take_all() as address_and_taken:
        yield address_and_taken


@pytest.fixture(scope="session")
async def crossing(tmp_path_factory: pytest.TempPathFactory, sink: tuple[str, list[bytes]]) -> AsyncIterator[Crossing]:
    folder = tmp_path_factory.mktemp("crossing") / "all of it"
    folder.mkdir()
    project = CrossedProject(folder)
    async with AsyncExitStack() as stack:
        environment = await stack.enter_async_context(
            await server(**{"limit.historyCount.suggestContinueAsNew": SHORT_HISTORY})
        )
        address = environment.client.service_client.config.target_host
        model = stack.enter_context(ScriptedModel(reply))
        translator = stack.enter_context(elsewhere(folder / "elsewhere"))
        translator.set("end")
        write_project(project, model.base_url, sink[0], translator.url)
        project.env["TEMPORAL_ADDRESS"] = address
        settings = load_settings(project.environment(), folder)
        client = await connect(address, settings.codec, settings.payloads)
        accepted = await asyncio.to_thread(project.perdure, "tools", "--accept")
        assert accepted.code == 0, accepted
        project.used |= {"worker", "gateway", "mcp"}
        stack.enter_context(project.worker(PERDURE_ANSWER_KEY=ANSWER_KEY_OF_WORKERS))
        await stack.enter_async_context(warehouse(client))
        serving = project.running("gateway", "--port", "0", "--log-file", str(folder / "gateway.log"))
        gateway = stack.enter_context(serving).until("gateway").split()[1]
        people = {name: await stack.enter_async_context(make_person(project, gateway, name)) for name in PEOPLE}
        it = Crossing(project, client, address, gateway, people)
        for names in waves():
            await asyncio.gather(*(make_run(it, name) for name in names))
        yield it
