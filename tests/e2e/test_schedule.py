"""`perdure schedule`: runs that begin by the clock, on the real server."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from perdure.client.run_list import RunInfo, find_starter, iterate_runs
from perdure.client.runs import wait_for_run_end
from perdure.contracts.people import SCHEDULE
from perdure.contracts.run.state import RunStatus
from tests.e2e.projects import Served
from tests.waiting import until

QUEUE = "by-the-clock"  # nobody works on it


@pytest.fixture
def schedule(served: Served) -> Callable[..., Any]:
    def command(*args: str) -> Any:
        return served.project.perdure("schedule", *args, PERDURE_TASK_QUEUE=QUEUE)

    return command


def list_schedules(schedule: Callable[..., Any]) -> dict[str, Any]:
    rows = schedule("list", "--json").rows()
    return {row["name"]: row for row in rows}


async def listed(schedule: Callable[..., Any], name: str, **fields: Any) -> dict[str, Any]:
    """The row of a schedule, once it has these fields: the server lists a change some time after it."""

    def row() -> dict[str, Any]:
        found: dict[str, Any] = list_schedules(schedule).get(name, {})
        return found

    await until(lambda: (found := row()) and fields.items() <= found.items())
    return row()


async def test_the_clock_starts_a_run_and_the_next_is_skipped_while_it_is_at_work(
    schedule: Callable[..., Any], served: Served
) -> None:
    added = schedule("add", "often", "--every", "1s", "--goal", "say hello")
    assert (added.code, added.err) == (0, "")
    assert re.search(r"often  every 1s, next: (\w{3} 20\S+ [\d:]+(, )?){3} UTC, overlap skip", added.out)
    assert "only while the embedded server is up" in added.out

    async def skipped() -> bool:
        described = await served.client.get_schedule_handle("schedule:often").describe()
        return bool(described.info.num_actions_skipped_overlap)

    await until(skipped)

    async def at_work() -> list[RunInfo]:
        return [each async for each in iterate_runs(served.client) if each.run_id.startswith("often-")]

    await until(at_work)
    (run,) = await at_work()
    assert re.fullmatch(r"often-\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", run.run_id)
    starter = await find_starter(served.client, run)
    assert starter is not None
    assert starter.sender == SCHEDULE
    row = await listed(schedule, "often", at_work=[run.run_id])
    assert (row["latest"], row["goal"]) == (run.run_id, "say hello")
    assert row["skipped"] >= 1
    assert schedule("remove", "often").out == "removed\n"
    await until(lambda: list_schedules(schedule) == {})


async def test_a_schedule_is_paused_triggered_resumed_and_removed(schedule: Callable[..., Any]) -> None:
    cron = ("--cron", "0 9 1 1 *", "--time-zone", "Asia/Tokyo")
    added = schedule("add", "yearly", *cron, "--goal", "look back", "--jitter", "5m", "--paused")
    when = "0 9 1 1 * (Asia/Tokyo)"
    assert f"yearly {when}, paused; to start it: perdure schedule unpause yearly" in " ".join(added.out.split())
    row = await listed(schedule, "yearly")
    assert (row["when"], row["time_zone"]) == (when, "Asia/Tokyo")
    assert [start[4:10] for start in row["upcoming"]] == ["-01-01"] * 3
    assert (row["is_paused"], row["agent"], row["goal"]) == (True, None, "look back")
    begun = json.loads(schedule("trigger", "yearly", "--json").out)["run_id"]
    assert begun.startswith("yearly-20")
    again = schedule("trigger", "yearly")
    said = f"perdure: not started: {begun} is still active, and the overlap policy of yearly is skip\n"
    assert (again.code, again.err) == (1, said)
    assert schedule("resume", "yearly").out == "unpaused\n"  # an alias
    assert schedule("unpause", "yearly").out == "unpaused\n"
    await listed(schedule, "yearly", is_paused=False, skipped=1)
    shown = " ".join(schedule("list").out.split())
    assert "-01-01 09:0" in shown  # and up to five minutes of jitter
    assert "skip, 1 skipped" in shown
    assert schedule("pause", "yearly").out == "paused\n"
    await listed(schedule, "yearly", is_paused=True)
    assert schedule("remove", "yearly").code == 0


def test_a_run_that_waits_its_turn_is_said_to(schedule: Callable[..., Any]) -> None:
    schedule("add", "one", "--every", "7d", "--goal", "x", "--overlap", "buffer-one", "--paused")
    assert json.loads(schedule("trigger", "one", "--json").out)["run_id"].startswith("one-20")
    assert schedule("trigger", "one").out == "it starts when the previous run has ended\n"
    assert schedule("remove", "one").code == 0


def test_a_schedule_of_another_project_is_left_alone(schedule: Callable[..., Any], served: Served) -> None:
    schedule("add", "ours", "--every", "7d", "--goal", "x", "--paused")
    theirs = served.project.perdure("schedule", "remove", "ours")
    said = f"perdure: schedule ours belongs to another project: task queue {QUEUE}\n"
    assert (theirs.code, theirs.err) == (1, said)
    assert schedule("remove", "ours").code == 0


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("remove", "nobody"), 1, "there is no schedule nobody; to list all: perdure schedule list"),
        (("add", "x", "--goal", "g"), 2, "give either --cron or --every"),
        (("add", "x", "--goal", "g", "--cron", "@daily", "--every", "1h"), 2, "give either --cron or --every"),
        (("add", "x", "--goal", "g", "--every", "1h", "--time-zone", "Asia/Tokyo"), 2, "--time-zone is for --cron"),
        (("add", "x", "--goal", "g", "--every", "soon"), 2, "Invalid value for '--every': 'soon' is not a duration"),
        (("add", "x", "--goal", " ", "--every", "1h"), 2, "goal: the goal is empty"),
        (("add", "x y", "--goal", "g", "--every", "1h"), 1, "'x y' is not a valid schedule name"),
        (("add", "x", "--goal", "g", "--cron", "0 9"), 1, '"0 9" has 2 fields, and a cron line has five: minute'),
        (("add", "x", "--goal", "g", "--cron", "a b c d e"), 1, "the server rejected the schedule: Invalid"),
        (("add", "x", "--goal", "g", "--cron", "0 0 9 * * *"), 1, '"0 0 9 * * *" has 6 fields'),
        (("add", "x", "--goal", "g", "--cron", "*/90 * * * *"), 1, '"*/90" as minute comes only at the first'),
        (("add", "x", "--goal", "g", "--cron", "@every 90m"), 1, '"@every 90m" is an interval: give it as --every'),
        (
            ("add", "x", "--goal", "g", "--cron", "TZ=Asia/Tokyo 0 9 * * *", "--time-zone", "Europe/Berlin"),
            1,
            "the cron line names the time zone Asia/Tokyo, and --time-zone Europe/Berlin: give one of them",
        ),
        (("add", "x", "--goal", "g", "--cron", "0 0 31 2 *"), 1, "0 0 31 2 * (UTC) never occurs"),
        (("add", "x", "--goal", "g", "--agent", "nobody", "--every", "1h"), 1, "there is no agent 'nobody'"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_what_is_no_schedule_is_refused_in_one_line(
    schedule: Callable[..., Any], args: tuple[str, ...], code: int, says: str
) -> None:
    done = schedule(*args)
    assert done.error(code).startswith(f"perdure: {says}")


async def test_a_cron_line_is_shown_as_the_server_reads_it(schedule: Callable[..., Any]) -> None:
    """The zone that holds is the line's own, and a day of the month and a weekday have to meet."""
    added = schedule("add", "tokyo", "--cron", "CRON_TZ=Asia/Tokyo 0 9 13 * FRI", "--goal", "x")
    starts = r"(Fri \d{4}-\d\d-13 09:00:00(, )?){3} Asia/Tokyo,"
    assert re.search(rf"tokyo 0 9 13 \* FRI \(Asia/Tokyo\), next: {starts}", " ".join(added.out.split()))
    row = await listed(schedule, "tokyo")
    assert (row["upcoming"][0], row["time_zone"]) == (row["next"], "Asia/Tokyo")
    assert "Fri" in schedule("list").out
    assert schedule("remove", "tokyo").code == 0


def test_a_name_is_taken_once(schedule: Callable[..., Any]) -> None:
    schedule("add", "once", "--every", "7d", "--goal", "x", "--paused")
    again = schedule("add", "once", "--every", "7d", "--goal", "x")
    said = "perdure: schedule once already exists; to replace it, remove it first: perdure schedule remove once\n"
    assert (again.code, again.err) == (1, said)
    assert schedule("remove", "once").code == 0


async def test_a_worker_does_what_a_schedule_begins(worked: Served, critique: str) -> None:
    run = worked.project.perdure
    assert run("schedule", "add", "daily", "--every", "1d", "--goal", critique).code == 0
    begun = json.loads(run("schedule", "trigger", "daily", "--json").out)["run_id"]
    end = await wait_for_run_end(worked.client, begun)
    assert (end.status, (end.event or {})["payload"]["goal"]) == (RunStatus.completed, critique)
    assert run("schedule", "remove", "daily").code == 0
