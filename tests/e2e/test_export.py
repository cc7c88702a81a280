"""`perdure trace --export`: one run as one record, with a worker and without."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from perdure.client.runs import wait_for_run_end
from perdure.contracts.run.export import Export
from perdure.testkit import model_server
from perdure.testkit.model_server import ScriptedModel, calls, fails
from tests.e2e.notes import CODE, PROJECT
from tests.e2e.projects import MakeProject, Served, reply_by_goal, serve, until_asked, use_model

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


@dataclass(frozen=True)
class Exported:
    served: Served
    record: dict[str, Any]
    bare: dict[str, Any]  # of the same run, without a worker
    printed: str  # beside it
    open: dict[str, Any]  # of a run that is open, without a worker


@pytest.fixture(scope="module")
async def exported(make_project: MakeProject) -> AsyncIterator[Exported]:
    with ScriptedModel(reply_by_goal(SCRIPTS)) as model:
        project = make_project(**use_model(model), SHOP_TOKEN=CANARY)
        project.write_all({"perdure.toml": PROJECT, "notes.py": CODE, "agents/clerk.md": AGENT})
        project.write("agents/helper.md", "---\ntools: []\n---\n")
        async with serve(project) as served:
            with project.worker(TEMPORAL_ADDRESS=served.address):
                for run_id in ("whole", "open"):
                    assert served.perdure("run", "-d", "--agent", "clerk", "--id", run_id, "write a list").code == 0
                    await until_asked(served.client, run_id)
                assert served.perdure("answer", "whole", "the corner shop", "--by", "eva").code == 0
                await until_asked(served.client, "whole", "q2")
                handle = served.client.get_workflow_handle("run:whole")
                await handle.signal("human_input", {"decision": "approve", "by": "adam"})
                assert (await wait_for_run_end(served.client, "whole")).status == "completed"
                done = served.perdure("trace", "whole", "--export")
                assert (done.code, done.err) == (0, "")
            bare = served.perdure("trace", "whole", "--export", "whole.json", "--with-subtasks")
            assert bare.code == 0
            of_open = json.loads(served.perdure("trace", "open", "--export", "-").out)
            written = json.loads((project.folder / "whole.json").read_text(encoding="utf-8"))
            yield Exported(served, json.loads(done.out), written, bare.out + bare.err, of_open)


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


def test_costs_and_tokens_are_recorded_for_each_turn_and_add_up(exported: Exported) -> None:
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
    events = [notice["event"] for notice in record["notices"] if notice["event"] != "agent.answer.signal"]
    assert events == ["agent_run.started", "agent.question.closed", "agent.question.closed", "agent_run.completed"]


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
    assert "missing: state: no worker answers" in exported.printed
    assert "written: whole.json" in exported.printed
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
    unknown = exported.served.perdure("trace", "nobody", "--export")
    assert unknown.error() == "perdure: there is no run nobody\n"
    alone = exported.served.perdure("trace", "whole", "--with-subtasks")
    alone.error(2)
    nowhere = exported.served.perdure("trace", "whole", "--export", "no/such/folder/x.json")
    assert nowhere.error() == "perdure: no/such/folder/x.json: No such file or directory\n"
    exported.served.project.folder.joinpath("taken").mkdir()
    for folder in ("/", ".", "taken"):
        taken = exported.served.perdure("trace", "whole", "--export", folder)
        assert taken.error().startswith(f"perdure: {folder}: ")


THOUGHT = "the customer is not to know this"


@pytest.mark.parametrize("recorded", [False, True])
def test_records_have_the_models_thinking_only_if_the_project_says_so(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    original = model_server._message

    def with_thinking(reply: Any, body: Any, turn: int) -> Any:
        message = original(reply, body, turn)
        thought = {"type": "thinking", "thinking": THOUGHT, "signature": "c2lnbmVk"}
        return {**message, "content": [thought, *message["content"]]}

    monkeypatch.setattr(model_server, "_message", with_thinking)
    with ScriptedModel([calls(("finish", {"outcome": "done"}))]) as model:
        project = make_project(**use_model(model))
        project.write("perdure.toml", f"[model]\nrecord_thinking = {json.dumps(recorded)}\n")
        assert project.perdure("run", "--id", "r1", "think").code == 0
        plain = project.perdure("trace", "r1", "--export").out
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        project.write("record.key", pem)
        assert project.perdure("trace", "r1", "--export", "r1.record", "--sign", "record.key").code == 0
        verified = project.perdure("verify", "r1.record")
    signed = (project.folder / "r1.record").read_text()
    assert verified.code == 0, verified
    assert [THOUGHT in text for text in (plain, signed)] == [recorded, recorded]
    assert ["[not recorded]" in text for text in (plain, signed)] == [not recorded, not recorded]
    assert ["c2lnbmVk" in text for text in (plain, signed)] == [recorded, recorded]  # it may hold the thought encrypted
