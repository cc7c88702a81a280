"""A question of the project at the terminal and over HTTP: shown, listed with the runs that wait, and answered."""

import asyncio
import os
import sys
from pathlib import Path

import httpx
import pytest

from perdure.client.runs import submit_answer
from perdure.contracts.run.signals import HumanInput
from perdure.features.project_questions.contract import ProjectAnswer
from perdure.gateway.app import make_app
from perdure.gateway.auth import Gateway
from perdure.gateway.tokens import Scope, new_token, read_tokens
from perdure.session import Session
from perdure.settings import load_settings
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.test_project_questions import Waiting, asks, look_once, new_name, started, until_waiting

PEOPLE = '[people]\nops = ["ann"]\n'


async def perdure(it: World, folder: Path, *words: str) -> tuple[int, str]:
    """The command in a project that uses the test's server and task queue."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_"))}
    own = {"TEMPORAL_ADDRESS": it.client.service_client.config.target_host, "PERDURE_TASK_QUEUE": it.queue}
    ran = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure.cli", *words),
        cwd=folder,
        env={**plain, **own, "COLUMNS": "200", "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await ran.communicate()
    return ran.returncode or 0, out.decode()


@pytest.mark.slow
async def test_the_commands_list_show_and_answer_it(world: MakeWorld, tmp_path: Path) -> None:
    name = f"question:{new_name()}"
    (tmp_path / "perdure.toml").write_text(PEOPLE)
    tool = Waiting(asks(name.removeprefix("question:"), approvers=("ops",)))
    async with world(look_once, tool) as it:
        runs = await started(it, 2)
        await until_waiting(it, name, 2)
        _, listed = await perdure(it, tmp_path, "list")
        assert f"{name}" in listed
        assert "asks: may it go on? (2 runs wait)" in listed
        assert f"perdure show {name}" in listed
        _, asked = await perdure(it, tmp_path, "questions", "--kind", "project")
        assert f"perdure answer {name} yes|no" in asked
        assert "2 runs asked for it" in asked
        code, shown = await perdure(it, tmp_path, "show", name)
        assert (code, "may it go on?" in shown, f"perdure answer {name} yes" in shown) == (0, True, True)
        code, refused = await perdure(it, tmp_path, "answer", name, "yes", "--by", "eve")
        assert code == 1
        assert "is for ops; eve is in none of these groups" in refused
        code, refused = await perdure(it, tmp_path, "answer", "run-1", "yes", "--text", "x")
        assert (code, "--text adds something" in refused) == (2, True)
        code, said = await perdure(it, tmp_path, "answer", name, "yes", "--text", "for today", "--by", "ann")
        assert (code, said.strip()) == (0, "accepted")
        await asyncio.gather(*(run.result() for run in runs))
        assert {(each.option, each.text, each.by) for each in tool.answers} == {("yes", "for today", "ann")}
        _, shown = await perdure(it, tmp_path, "show", name)
        assert "answered by ann: yes: for today" in shown
        it.started.append(name)


async def test_http_lists_it_once_and_takes_one_answer(world: MakeWorld, tmp_path: Path) -> None:
    name = f"question:{new_name()}"
    (tmp_path / "perdure.toml").write_text(PEOPLE)
    settings = load_settings({"PERDURE_HOME": str(tmp_path / "home")}, tmp_path)
    settings.home.mkdir()
    tokens, written = read_tokens(settings.home, {}), dict[str, str]()
    for person in ("ann", "eve"):
        written[person], token = new_token(person, (Scope.answer, Scope.read), None)
        tokens.add(token)
    tool = Waiting(asks(name.removeprefix("question:"), approvers=("ops",)))
    async with world(look_once, tool) as it:
        run = await it.start()
        await until_waiting(it, name, 1)
        gateway = Gateway(Session(it.client, settings, None), tokens)
        transport = httpx.ASGITransport(make_app(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway.test", timeout=30) as http:
            eve, ann = ({"Authorization": f"Bearer {written[who]}"} for who in ("eve", "ann"))

            async def rows(**only: str) -> list[dict[str, object]]:
                gateway.lists.clear()
                answer = await http.get("/v1/questions", params={"kind": "project", **only}, headers=ann)
                found: list[dict[str, object]] = answer.json()["questions"]
                return [row for row in found if row["run_id"] == name]

            async def is_listed() -> bool:
                return bool(await rows())

            await it.until(is_listed)
            (row,) = await rows(for_me="true")
            assert row["runs"] == 1
            path, body = f"/v1/runs/{name}/answer", {"option": "yes", "text": "once"}
            assert (await http.post(path, headers=eve, json=body)).status_code == 409
            assert (await http.post(path, headers=ann, json={"option": "perhaps"})).status_code == 409
            assert (await http.post(path, headers=ann, json=body)).status_code == 200
            await run.result()
            given: ProjectAnswer = await it.client.get_workflow_handle(name, result_type=ProjectAnswer).result()
            assert (given.option, given.text, given.by) == ("yes", "once", "ann")
            assert (await http.post(path, headers=ann, json=body)).status_code == 409
        it.started.append(name)


async def test_an_encrypted_question_shows_no_text_in_lists(world: MakeWorld, tmp_path: Path) -> None:
    from tests.workflows.conftest import connect_encrypted  # noqa: PLC0415 - one test needs it

    name = f"question:{new_name()}"
    tool = Waiting(asks(name.removeprefix("question:")))
    async with world(look_once, tool, works=False) as it:
        hidden = await connect_encrypted(it.client)
        it.client = hidden
        async with it.worker():
            run = await it.start()
            await until_waiting(it, name, 1)
            described = await hidden.get_workflow_handle(name).describe()
            shown = str(described.typed_search_attributes)
            assert "human: a question (1 run waits)" in shown
            assert "may it go on" not in shown
            await submit_answer(hidden, name, HumanInput(option="yes"))
            await run.result()
