"""`perdure trace --export`: one run as one record, with a worker and without."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
from temporalio.client import Client

from contracts.run.export import Export
from devserver import embedded_server
from perdure.client.errors import RunNotFoundError
from perdure.client.runs import query_run_state, wait_for_run_end
from perdure.converter import data_converter
from perdure.testkit.model_server import ScriptedModel, calls, fails
from tests.e2e.notes import CODE, PROJECT

CANARY = "canary-5b1e77aa90"
AGENT = "---\ntools: [note, write_file]\npeers: [helper]\n---\nYou take notes.\n"
QUESTION = "Which shop? " + "Say it well. " * 30
WHOLE = [
    calls(("ask_human", {"question": QUESTION}), text="Plan: ask, note, write."),
    calls(("note", {"text": f"milk {CANARY}"})),
    calls(("write_file", {"path": "artifacts/list.md", "content": "milk\n"})),
    calls(("delegate", {"subtasks": [{"id": "check", "agent": "helper", "instructions": "check the list"}]})),
    calls(("finish", {"outcome": "the list is written", "artifacts": ["artifacts/list.md"]})),
]
SCRIPTS: dict[str, list[Any]] = {
    "write a list": WHOLE,
    "check the list": [calls(("finish", {"outcome": "it is right"}))],
    "break": [fails(401, message="no such key")],
}


def reply(body: dict[str, Any]) -> Any:
    said = body["messages"][0]["content"][0]["text"]
    script = next(script for goal, script in SCRIPTS.items() if goal in said)
    return script[sum(message["role"] == "assistant" for message in body["messages"])]


@dataclass(frozen=True)
class Exported:
    project: Any
    client: Client
    record: dict[str, Any]
    bare: dict[str, Any]  # of the same run, without a worker
    told: str  # beside it
    open: dict[str, Any]  # of a run that is open, without a worker


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(reply) as serving:
        yield serving


@pytest.fixture(scope="module")
async def exported(make_project: Any, model: ScriptedModel, until: Any) -> AsyncIterator[Exported]:
    project = make_project(
        ANTHROPIC_API_KEY="sk-none", PERDURE_MODEL="scripted", ANTHROPIC_BASE_URL=model.base_url, SHOP_TOKEN=CANARY
    )
    for name, text in {"perdure.toml": PROJECT, "notes.py": CODE, "agents/clerk.md": AGENT}.items():
        project.write(name, text)
    project.write("agents/helper.md", "---\ntools: []\n---\n")
    async with embedded_server(project.home) as server:
        client = await Client.connect(server.address, data_converter=data_converter)
        project.env["TEMPORAL_ADDRESS"] = server.address

        async def asks(run_id: str, question: str) -> bool:
            try:
                view = await query_run_state(client, run_id)
            except RunNotFoundError:
                return False
            return view is not None and view.question is not None and view.question.id == question

        with project.running(script="worker.py") as worker:
            worker.until("worker ready")
            for run_id in ("whole", "open"):
                assert project.perdure("run", "-d", "--agent", "clerk", "--id", run_id, "write a list").code == 0
                await until(lambda run_id=run_id: asks(run_id, "q1"))
            assert project.perdure("answer", "whole", "the corner shop", "--by", "eva").code == 0
            await until(lambda: asks("whole", "q2"))
            handle = client.get_workflow_handle("run:whole")
            await handle.signal("human_input", {"decision": "approve", "by": "adam"})
            assert (await wait_for_run_end(client, "whole")).status == "completed"
            done = project.perdure("trace", "whole", "--export")
            assert (done.code, done.err) == (0, "")
        bare = project.perdure("trace", "whole", "--export", "whole.json", "--with-subtasks")
        assert bare.code == 0
        of_open = project.perdure("trace", "open", "--export", "-")
        told = json.loads((project.folder / "whole.json").read_text(encoding="utf-8"))
        yield Exported(project, client, json.loads(done.out), told, bare.out + bare.err, json.loads(of_open.out))


def test_the_record_reads_back_and_lacks_nothing(exported: Exported) -> None:
    record = Export.model_validate(exported.record)
    assert (record.format, record.version, record.run_id, record.status) == ("perdure.run", 1, "whole", "completed")
    assert record.missing == []
    assert record.start["payload"] == {"goal": "write a list", "agent": "clerk"}
    assert record.end is not None
    assert record.end["event"]["payload"]["outcome"] == "the list is written"
    assert record.state is not None
    assert record.state.step == 4


def test_the_conversation_is_whole_and_proven_by_its_hash(exported: Exported) -> None:
    transcript = exported.record["transcript"]
    assert transcript["complete"]
    assert transcript["length"] == len(transcript["parts"])
    assert [part["kind"] for part in transcript["parts"]][:3] == ["goal", "reply", "result"]


def test_each_question_says_who_answered_it_and_when(exported: Exported) -> None:
    first, second = exported.record["questions"]
    assert (first["id"], first["text"]) == ("q1", QUESTION)
    (answer,) = first["answers"]
    assert (answer["via"], answer["by"], answer["text"]) == ("update", "eva", "the corner shop")
    assert first["asked_at"] <= answer["at"] <= first["closed_at"]
    (approval,) = second["answers"]
    assert second["text"] == "approve note"
    assert (approval["via"], approval["by"], approval["decision"]) == ("signal", "adam", "approve")


def test_each_call_says_what_was_called_and_what_came_of_it(exported: Exported) -> None:
    called = {call["tool"]: call for call in exported.record["calls"]}
    assert list(called) == ["ask_human", "note", "write_file", "delegate", "finish"]
    assert [call["step"] for call in called.values()] == [1, 2, 3, 4, None]
    note = called["note"]
    (made,) = note["made"]
    assert (note["effect"], made["approval"], made["attempts"]) == ("once", note["digest"], 1)
    assert made["outcome"]["status"] == "ok"
    assert note["shown"].startswith("noted milk")
    assert called["ask_human"]["made"] == []
    assert called["ask_human"]["shown"] == "the corner shop"


def test_costs_and_tokens_are_told_for_each_turn_and_add_up(exported: Exported) -> None:
    turns = exported.record["turns"]
    assert [turn["activity"] for turn in turns] == ["plan", *["reflect"] * 4]
    assert [turn["turn"] for turn in turns] == [1, 2, 3, 4, 5]
    assert sum(turn["usage"]["output"] for turn in turns) == exported.record["usage"]["output"]
    assert exported.record["cost_usd"] == pytest.approx(exported.record["state"]["cost_usd"])
    assert exported.record["usage"] == exported.record["state"]["usage"]


def test_artifacts_definition_subtasks_and_versions_are_in_it(exported: Exported) -> None:
    record = exported.record
    (file,) = record["artifacts"]
    digest = sha256(b"milk\n").hexdigest()
    assert file == {"path": "artifacts/list.md", "size": 5, "sha256": digest, "content": "milk\n"}
    ((ref, definition),) = record["definitions"].items()
    assert {turn["definition"] for turn in record["turns"]} == {ref}
    assert (definition["agent"], definition["model"]) == ("clerk", "scripted")
    assert [(each["agent"], each["parent"], each["status"]) for each in record["subtasks"]] == [
        ("helper", "whole", "completed")
    ]
    assert {"perdure", "temporalio", "python", "server", "workers", "builds"} == record["versions"].keys()
    assert [notice["event"] for notice in record["notices"]] == ["agent_run.started", "agent_run.completed"]


def test_every_event_of_its_history_is_in_it_and_no_secret(exported: Exported) -> None:
    (execution,) = exported.record["executions"]
    events = execution["events"]
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["type"], events[-1]["type"]) == ("workflow_execution_started", "workflow_execution_completed")
    assert events[0]["input"] == [exported.record["start"]]
    assert CANARY not in json.dumps(exported.record)
    assert "[redacted SHOP_TOKEN]" in json.dumps(exported.record)


def test_without_a_worker_only_what_the_run_says_of_itself_is_missing(exported: Exported) -> None:
    assert exported.bare["missing"] == ["state: no worker answers"]
    assert "missing: state: no worker answers" in exported.told
    assert "written: whole.json" in exported.told
    differing = {name for name in exported.record if exported.bare[name] != exported.record[name]}
    assert differing == {"exported_at", "missing", "state", "subtasks"}
    (subtask,) = exported.bare["subtasks"]
    assert subtask["export"]["start"]["payload"]["goal"].endswith("check the list")
    assert subtask["export"]["transcript"]["complete"]


def test_an_open_run_without_a_worker_says_what_could_not_be_had(exported: Exported) -> None:
    assert exported.open["missing"] == [
        "state: no worker answers",
        "transcript: the run holds its end, and no worker answers",
    ]
    (question,) = exported.open["questions"]
    assert (question["id"], question["closed_at"], question["answers"]) == ("q1", None, [])
    assert (exported.open["end"], exported.open["transcript"]["complete"]) == (None, False)
    assert exported.open["calls"][0]["arguments"]["question"] == question["text"]


def test_what_cannot_be_exported_is_refused_in_one_line(exported: Exported) -> None:
    unknown = exported.project.perdure("trace", "nobody", "--export")
    assert (unknown.code, unknown.out, unknown.err) == (1, "", "perdure: there is no run nobody\n")
    alone = exported.project.perdure("trace", "whole", "--with-subtasks")
    assert (alone.code, alone.out, len(alone.err.splitlines())) == (2, "", 1)
    nowhere = exported.project.perdure("trace", "whole", "--export", "no/such/folder/x.json")
    assert (nowhere.code, nowhere.out) == (1, "")
    assert nowhere.err == "perdure: no/such/folder/x.json: No such file or directory\n"
    exported.project.folder.joinpath("taken").mkdir()
    for folder in ("/", ".", "taken"):
        taken = exported.project.perdure("trace", "whole", "--export", folder)
        assert (taken.code, taken.out, len(taken.err.splitlines())) == (1, "", 1)
        assert taken.err.startswith(f"perdure: {folder}: ")
