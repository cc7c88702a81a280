"""The command line as a person and a program use it: real processes, the embedded server, the rehearsal model."""

import asyncio
import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from perdure.client.errors import RunNotFoundError
from perdure.client.run_list import find_run
from tests.e2e.projects import CommandResult, Served, until_asked
from tests.e2e.terminal import at_terminal

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])(?:;\d+)*m")
Printed = dict[tuple[str, ...], CommandResult]
AS_JSON = (("list",), ("show", "worked"), ("trace", "worked"), ("tools",), ("doctor",))


async def events(served: Served, run_id: str) -> list[Any]:
    handle = served.client.get_workflow_handle(f"run:{run_id}")
    return [event async for event in handle.fetch_history_events()]


async def completions(served: Served, run_id: str) -> list[dict[str, Any]]:
    """The payloads of the completion events in a run's history."""
    ended = [
        e for e in await events(served, run_id) if e.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED
    ]
    payloads = [e.workflow_execution_completed_event_attributes.result.payloads[0].data for e in ended]
    said = [json.loads(data) for data in payloads]
    return [event["payload"] for event in said if event["type"] == "agent.completed"]


@pytest.fixture(scope="module")
def printed(served: Served, critique: str) -> Printed:
    """The worked example, and the output of each command about it, for a person and as JSON."""
    run = served.project.perdure
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(run, "run", "--id", "worked", critique)
        second = pool.submit(run, "run", "--id", "worked-json", "--json", critique)
        done = {("run",): first.result(), ("run", "--json"): second.result()}
        wanted = [(*command, *json_) for command in AS_JSON for json_ in ((), ("--json",))]
        done |= dict(zip(wanted, pool.map(lambda command: run(*command), wanted), strict=True))
    return done


async def test_the_worked_example_goes_from_goal_to_one_artifact_in_one_completion_event(
    served: Served, printed: Printed
) -> None:
    done = printed["run",]
    assert (done.code, done.err) == (0, "")
    assert "completed" in done.out
    assert "2 steps · 3 turns" in done.out
    assert "→ .perdure/runs/worked/artifacts/critique.md" in done.out
    assert [event["artifacts"] for event in await completions(served, "worked")] == [["artifacts/critique.md"]]
    written = (served.project.home / "runs/worked/artifacts/critique.md").read_text(encoding="utf-8")
    assert "Marrow Quay Tide Mill" in written
    called = [
        json.loads(event.activity_task_scheduled_event_attributes.input.payloads[0].data)["tool"]
        for event in await events(served, "worked")
        if event.activity_task_scheduled_event_attributes.activity_type.name == "call_tool"
    ]
    assert called == ["fetch", "write_file"]


def test_a_run_with_its_own_worker_does_not_ask_for_one(printed: Printed) -> None:
    assert "no worker" not in printed["run",].out


def test_run_json_prints_the_end_and_nothing_else(printed: Printed, critique: str) -> None:
    done = printed["run", "--json"]
    assert (done.code, done.err) == (0, "")
    said = json.loads(done.out)
    assert (said["run_id"], said["status"]) == ("worked-json", "completed")
    assert said["event"]["type"] == "agent.completed"
    assert said["event"]["payload"]["goal"] == critique
    assert said["event"]["payload"]["steps_taken"] == 2


@pytest.mark.parametrize("command", AS_JSON, ids=lambda command: command[0])
def test_each_command_that_shows_prints_text_or_json(printed: Printed, command: tuple[str, ...]) -> None:
    plain, as_json = printed[command], printed[*command, "--json"]
    assert [plain.code, plain.err, as_json.code, as_json.err] == [0, "", 0, ""]
    assert plain.out.strip()
    assert not plain.out.startswith(("{", "["))
    for line in as_json.out.splitlines():
        assert isinstance(json.loads(line), dict | list)


def test_json_output_has_a_runs_rows_state_events_and_tools(printed: Printed) -> None:
    rows = {row["run_id"]: row for row in map(json.loads, printed["list", "--json"].out.splitlines())}
    assert {"worked", "worked-json"} <= rows.keys()
    assert rows["worked"]["status"] == "completed"
    shown = json.loads(printed["show", "worked", "--json"].out)
    assert (shown["step"], shown["completed_steps"], shown["artifacts"]) == (2, [1, 2], ["artifacts/critique.md"])
    assert shown["end"]["status"] == "completed"
    happened = [json.loads(line)["type"] for line in printed["trace", "worked", "--json"].out.splitlines()]
    turn, call = ["model_call_started", "model_replied"], ["tool_call_started", "tool_call_finished"]
    assert happened == ["run_started", *turn, *call, *turn, *call, *turn, "run_ended"]
    tools = {tool["tool"]: tool["effect"] for tool in json.loads(printed["tools", "--json"].out)}
    assert tools == {"fetch": "read", "read_file": "read", "write_file": "keyed", "list_files": "read"}
    checks = [json.loads(line) for line in printed["doctor", "--json"].out.splitlines()]
    assert all(check["ok"] for check in checks)


async def test_a_question_is_asked_in_the_terminal_and_answered_by_typing(served: Served, site: str) -> None:
    with at_terminal(served.project, "run", "--id", "asked", "produce a 2 para critique") as terminal:
        terminal.until("Which page should I fetch?")
        terminal.until("answer> ")
        terminal.type(f"{site}\n")
        assert terminal.wait() == 0
    assert "artifacts/critique.md" in terminal.written
    assert COLOUR.search(terminal.written)
    assert len(await completions(served, "asked")) == 1


def test_no_color_is_honoured_at_a_terminal(served: Served, printed: Printed) -> None:
    with at_terminal(served.project, "list", NO_COLOR="1") as terminal:
        assert terminal.wait() == 0
    assert "completed" in terminal.written
    assert not COLOUR.search(terminal.written)


async def test_another_process_answers_while_run_waits(served: Served, site: str) -> None:
    with served.project.running("run", "--id", "answered", "produce a 2 para critique") as run:
        await asyncio.to_thread(run.until, "Which page should I fetch?")
        waiting = await asyncio.to_thread(served.project.perdure, "list", "--waiting", "--json")
        assert "answered" in [json.loads(line)["run_id"] for line in waiting.out.splitlines()]
        stale = await asyncio.to_thread(served.project.perdure, "answer", "answered", "--question", "q7", site)
        assert stale.code == 1
        assert len(stale.err.splitlines()) == 1
        accepted = await asyncio.to_thread(served.project.perdure, "answer", "answered", site)
        assert (accepted.code, accepted.out.strip()) == (0, "accepted")
        done = await asyncio.to_thread(run.wait)
    assert done.code == 0
    assert len(await completions(served, "answered")) == 1


async def test_cancel_from_another_process_ends_both_commands(served: Served) -> None:
    with served.project.running("run", "--id", "cancelled", "--json", "produce a 2 para critique") as run:
        await until_asked(served.client, "cancelled")
        asked = await asyncio.to_thread(served.project.perdure, "cancel", "cancelled", "--reason", "not needed")
        done = await asyncio.to_thread(run.wait)
    assert (asked.code, asked.err) == (0, "")
    assert asked.out.splitlines()[-1] == "cancelled"
    assert done.code == 4
    assert json.loads(done.out)["status"] == "cancelled"


def test_two_starts_with_one_dedupe_key_are_one_run(served: Served) -> None:
    detached = ("run", "--detach", "--json", "--dedupe-key", "order 17", "produce a critique")
    first, second = served.project.perdure(*detached), served.project.perdure(*detached)
    assert (first.code, second.code) == (0, 0)
    started = json.loads(first.out)["run_id"]
    assert json.loads(second.out)["run_id"] == started
    rows = [json.loads(line)["run_id"] for line in served.project.perdure("list", "--json").out.splitlines()]
    assert rows.count(started) == 1


async def test_what_is_shown_of_a_run_without_a_worker_says_how_old_it_is(served: Served) -> None:
    there = {"TEMPORAL_ADDRESS": served.address, "PERDURE_TASK_QUEUE": "nobody-works-here"}
    assert served.project.perdure("run", "--detach", "--id", "deserted", "produce a critique", **there).code == 0
    shown, as_json = (served.project.perdure("show", "deserted", *more, **there) for more in ((), ("--json",)))
    assert re.search(r"no worker answers now; this is what the server knows, \d+ s old", shown.out)
    row = json.loads(as_json.out)
    assert row["status"] == "queued"
    assert row["as_of"] >= row["started_at"]
    await served.client.get_workflow_handle("run:deserted").terminate("its test is over")


def test_another_goal_under_the_id_of_a_run_is_refused(served: Served) -> None:
    assert served.project.perdure("run", "--detach", "--id", "once", "produce a critique").code == 0
    again = served.project.perdure("run", "--detach", "--id", "once", "a wholly other goal")
    assert (again.code, again.out) == (1, "")
    assert again.err.splitlines() == ["perdure: run once already exists; to follow it: perdure watch once"]


async def test_a_run_killed_in_the_middle_goes_on_in_watch_to_one_completion_event(
    served: Served, printed: Printed, critique: str
) -> None:
    with served.project.running("run", "--id", "killed", critique) as run:
        await asyncio.to_thread(run.until, "✓ fetch")
        run.popen.send_signal(signal.SIGKILL)
        await asyncio.to_thread(run.popen.wait)
    assert await completions(served, "killed") == []
    done = await asyncio.to_thread(served.project.perdure, "watch", "killed")
    assert (done.code, done.err) == (0, "")
    assert "2 steps · 3 turns" in done.out
    killed, worked = await completions(served, "killed"), await completions(served, "worked")
    assert [{**killed[0], "run_id": ""}] == [{**worked[0], "run_id": ""}]
    files = [served.project.home / f"runs/{name}/artifacts/critique.md" for name in ("killed", "worked")]
    assert files[0].read_text(encoding="utf-8") == files[1].read_text(encoding="utf-8")


async def test_ctrl_c_leaves_the_run_and_says_how_to_go_on(served: Served, critique: str) -> None:
    with served.project.running("run", "--id", "left", critique) as run:
        await asyncio.to_thread(run.until, "goal")
        done = await asyncio.to_thread(run.send_signal, signal.SIGINT)
    assert done.code == 130
    assert "Follow it: perdure watch left" in done.err
    assert "Traceback" not in done.err
    assert await completions(served, "left") == []
    assert (await asyncio.to_thread(served.project.perdure, "watch", "left")).code == 0
    assert len(await completions(served, "left")) == 1


def test_without_a_schema_the_output_file_has_the_outcome(served: Served, critique: str) -> None:
    done = served.project.perdure("run", "--json", "--output", "outcome.txt", critique)
    written = (served.project.folder / "outcome.txt").read_text(encoding="utf-8")
    assert (done.code, done.err) == (0, "")
    assert written == json.loads(done.out)["event"]["payload"]["outcome"] + "\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--output", "no/such/folder/a.json"), "no/such/folder is no folder that can be written to"),
        (("--output", "a.json", "--detach"), "--detach does not wait for it"),
        (("--output-schema", "missing.json"), "missing.json"),
        (("--output-schema", "text.json"), "text.json (--output-schema)"),
        (("--output-schema", "list.json"), "output_schema"),
        (("--output-schema", "wrong.json"), "payload.output_schema: not a JSON Schema: 'sentence' is not valid"),
    ],
    ids=["folder", "detach", "missing", "text", "list", "schema"],
)
async def test_a_wrong_output_option_starts_no_run(served: Served, options: tuple[str, ...], reason: str) -> None:
    contents = {"text.json": "{total", "list.json": "[]", "wrong.json": '{"type": "sentence"}'}
    for name, text in contents.items():
        served.project.write(name, text)
    run_id = f"never-{'-'.join(options).strip('-').replace('/', '-')}"
    done = served.project.perdure("run", "--id", run_id, *options, "do it")
    assert done.code != 0
    assert reason in done.err
    assert "Traceback" not in done.err
    with pytest.raises(RunNotFoundError):
        await find_run(served.client, run_id)
