"""Each run of the project that has everything on, read through each door."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser import browsing, needs_browser
from tests.crossing.doors import DOORS, must_be_readable, read_by_mcp
from tests.crossing.project import BANK, read_effects
from tests.crossing.shapes import SHAPES, Crossing
from tests.e2e.test_timestamps import openssl
from tests.waiting import until

AT_A_TIME = 4
REPLAYED = (
    "plain",
    "second",
    "counted",
    "posted",
    "queued",
    "tasked",
    "asked by a task",
)  # whose model says the same by any name


@pytest.fixture(scope="session", autouse=True)
def record_key(crossing: Crossing) -> None:
    openssl(crossing.project.folder, "genpkey", "-algorithm", "ed25519", "-out", "record.key")
    openssl(crossing.project.folder, "pkey", "-in", "record.key", "-pubout", "-out", "record.pub")


@pytest.mark.parametrize("door", DOORS)
async def test_a_door_shows_each_run(crossing: Crossing, door: str) -> None:
    gate = asyncio.Semaphore(AT_A_TIME)

    async def look(name: str) -> str:
        async with gate:
            try:
                text = must_be_readable(await DOORS[door].read(crossing, crossing.run_ids[name]))
            except AssertionError as error:
                return f"{name}: {error}"
        if DOORS[door].tells and SHAPES[name].shown not in " ".join(text.split()):
            return f"{name}: {SHAPES[name].shown!r} is not shown: {text[-1500:]}"
        return ""

    failures = [failure for failure in await asyncio.gather(*map(look, SHAPES)) if failure]
    assert not failures, "\n\n".join(failures)


async def test_the_doors_agree_about_status_steps_and_cost(crossing: Crossing) -> None:
    listed = {
        row["run_id"]: row for row in map(json.loads, crossing.perdure("list", "--json", "--limit", "500").splitlines())
    }
    by_mcp = await read_by_mcp(crossing, {name: crossing.run_ids[name] for name in SHAPES})
    for name, shape in SHAPES.items():
        run_id = crossing.run_ids[name]
        shown, served, state = [
            json.loads(await DOORS[door].read(crossing, run_id))
            for door in ("show --json", "gateway run", "client state()")
        ]
        status = {"show": shown["status"], "gateway": served["known"]["status"], "state": state["status"]}
        status |= {"list": listed[run_id]["status"], "mcp": by_mcp[name]["status"]}
        assert set(status.values()) == {shape.status}, (name, status)
        for field in ("step", "completed_steps", "cost_usd", "usage"):
            assert shown[field] == served["state"][field] == state[field], (name, field)


async def test_a_file_of_a_run_is_had_by_its_hash(crossing: Crossing) -> None:
    image = (crossing.project.folder / "picture.png").read_bytes()
    uploaded = await crossing.http.post("/v1/files?name=picture.png", content=image)
    found = await crossing.http.get(f"/v1/runs/{crossing.run_ids['pictured']}/media/{uploaded.json()['sha256']}")
    assert (found.status_code, found.content) == (200, image)


@pytest.mark.parametrize("command", [("agents",), ("tools",), ("policy", "check"), ("doctor",)])
async def test_a_command_about_the_project_succeeds(crossing: Crossing, command: tuple[str, ...]) -> None:
    must_be_readable(await asyncio.to_thread(crossing.perdure, *command))


async def test_effects_are_those_that_people_approved(crossing: Crossing) -> None:
    made = [line for line in read_effects(crossing.project) if line.startswith("refund")]
    assert sorted(made) == ["refund A-1 250", "refund A-1 300", "refund A-1 300", "refund A-1 50"]


async def test_a_dry_run_follows_the_task_of_a_read_and_makes_no_other(crossing: Crossing) -> None:
    log = (crossing.project.folder / BANK / "log.jsonl").read_text(encoding="utf-8")
    made = [json.loads(line)["tool"] for line in log.splitlines() if '"tools/call"' in line]
    assert sorted(made) == ["ask", "watch", "watch"]
    listed = json.loads(crossing.perdure("show", crossing.run_ids["dry task"], "--json"))
    assert "bank__pay" in json.dumps(listed), listed


async def test_each_end_was_announced_once_but_those_of_trials(
    crossing: Crossing, sink: tuple[str, list[bytes]]
) -> None:
    def ends() -> list[str]:
        notices = [json.loads(body) for body in sink[1]]
        return [row["data"]["run_id"] for row in notices if row["type"] in ("run.ended", "run.failed")]

    def silent() -> list[str]:
        return [name for name in SHAPES if crossing.run_ids[name] not in ends()]

    try:
        await until(lambda: silent() == ["dry", "dry task"])
    except AssertionError:
        raise AssertionError(f"not announced: {silent()}") from None
    assert len(ends()) == len(set(ends()))


async def test_an_open_question_is_the_same_at_each_door(crossing: Crossing) -> None:
    begun = await crossing.http.post("/v1/runs", json={"payload": {"goal": "shape approved: later", "agent": "clerk"}})
    run_id = begun.json()["run_id"]
    call = (await crossing.wait_for_question(run_id))["call"]
    shown = json.loads(await DOORS["show --json"].read(crossing, run_id))["question"]
    served = json.loads(await DOORS["gateway run"].read(crossing, run_id))["state"]["question"]
    assert (shown, served["call"]) == (served, call)

    async def listed(read: Callable[[], list[Any]]) -> Any:
        """The index of runs is a moment behind."""
        rows: list[Any] = []

        async def is_there() -> bool:
            rows[:] = [row for row in await asyncio.to_thread(read) if row["run_id"] == run_id]
            return bool(rows)

        await until(is_there)
        return rows[0]

    by_command = await listed(lambda: [json.loads(row) for row in crossing.perdure("questions", "--json").splitlines()])
    waiting = await listed(
        lambda: [json.loads(row) for row in crossing.perdure("list", "--waiting", "--json").splitlines()]
    )
    by_gateway = (await crossing.http.get("/v1/questions")).json()["questions"]
    assert by_command["question"]["call"] == call, by_command
    assert [row["question"]["call"] for row in by_gateway if row["run_id"] == run_id] == [call]
    assert waiting["status"] == "waiting_on_human"
    for_ann = crossing.perdure("questions", "--for", "ann")
    for_cleo = crossing.perdure("questions", "--for", "cleo")
    assert (run_id in for_ann, run_id in for_cleo) == (True, False)
    assert (await crossing.http.post(f"/v1/runs/{run_id}/cancel", json={})).status_code == 202


@pytest.mark.parametrize("name", REPLAYED)
async def test_a_run_is_replayed_with_another_model(crossing: Crossing, name: str) -> None:
    done = await asyncio.to_thread(
        crossing.project.perdure, "replay", crossing.run_ids[name], "--model", "another", "--json"
    )
    must_be_readable(done.out + done.err)
    assert done.code == 0, done


@pytest.mark.parametrize("options", [("--model", "another", "--limit", "8"), ("--policy", "policy.toml")])
async def test_many_runs_are_replayed_and_those_that_cannot_be_are_named(
    crossing: Crossing, options: tuple[str, ...]
) -> None:
    done = await asyncio.to_thread(crossing.project.perdure, "replay", "--since", "1d", *options, "--json")
    must_be_readable(done.out + done.err)
    replayed = {json.loads(line)["run_id"] for line in done.out.splitlines()}
    assert replayed & set(crossing.run_ids.values())


async def test_runs_become_cases_of_an_evaluation(crossing: Crossing) -> None:
    done = await asyncio.to_thread(
        crossing.project.perdure, "eval", "--from-runs", "--since", "1d", "--output", "golden", "--json"
    )
    must_be_readable(done.out + done.err)
    assert done.code == 0, done
    assert any((crossing.project.folder / "golden").iterdir())


@pytest.mark.parametrize("name", ["approved", "delegated"])
async def test_a_run_becomes_a_crash_test(crossing: Crossing, name: str) -> None:
    case = f"{name}.yaml"
    written = await asyncio.to_thread(crossing.project.perdure, "crashtest", case, "--from-run", crossing.run_ids[name])
    must_be_readable(written.out + written.err)
    assert written.code == 0, written


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browsing(tmp_path_factory.mktemp("chromium"), "1280,1000") as started:
        yield started


@needs_browser
def open_tab(driver: Any, name: str) -> bool:
    """A click is lost if the page is drawn again meanwhile."""
    if any(name in each.text for each in driver.find_elements(By.CSS_SELECTOR, ".tabs [aria-current=page]")):
        return True
    driver.find_element(By.LINK_TEXT, name).click()
    return False


async def test_the_page_shows_each_run(crossing: Crossing, driver: Any) -> None:
    token = crossing.http.headers["Authorization"].removeprefix("Bearer ")
    driver.get(f"{crossing.gateway}/")
    await until(lambda: driver.find_elements(By.ID, "token"))
    driver.find_element(By.ID, "token").send_keys(token + Keys.ENTER)
    await until(lambda: driver.find_elements(By.CSS_SELECTOR, "nav"))
    driver.get_log("browser")  # drops the 401 by which the page knew that it has no session
    for name, shape in SHAPES.items():
        driver.get("about:blank")
        driver.get(f"{crossing.gateway}/#{crossing.run_ids[name]}")

        def is_shown(css: str = ".end h3", words: str = shape.status.replace("_", " ")) -> bool:
            return any(words in each.text for each in driver.find_elements(By.CSS_SELECTOR, css))

        try:
            await until(is_shown)
        except AssertionError:
            raise AssertionError(f"{name}: {driver.find_element(By.TAG_NAME, 'body').text}") from None
        for tab in ("Time", "Conversation", "Calls"):
            await until(partial(open_tab, driver, tab))
            must_be_readable(driver.find_element(By.TAG_NAME, "body").text)
    errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
