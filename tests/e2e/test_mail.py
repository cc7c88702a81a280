"""Messages as files, by processes: `perdure mail` beside a folder."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure.features.mailbox.activities.message import parse_message
from perdure.features.mailbox.contract import ReplyHead, ReplyStatus
from perdure.testkit.model_server import Reply, ScriptedModel, calls
from tests.e2e.projects import CommandResult, MakeProject, Project, serve_with_worker, use_model
from tests.waiting import until


def script(body: dict[str, Any]) -> Reply:
    """Says what it was asked, or asks a person if the message says so."""
    texts = [b["text"] for m in body["messages"] for b in m["content"] if b["type"] == "text"]
    if texts[0].startswith("Ask me."):
        return calls(("ask_human", {"question": "Which one?"}))
    return calls(("finish", {"outcome": f"done: {texts[0][:200]}"}))


def message(number: int, more: str = "", body: str = "Say hello.") -> str:
    head = f"type: task\nmessage_id: m{number}\nplan_id: p\ntask_id: t{number}\nfrom: planner\n{more}"
    return f"---\n{head}---\n{body} {number}\n"


ANSWER_KEY = "k1:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="


@dataclass(frozen=True)
class Box:
    """The mailbox of an agent of the project."""

    project: Project
    agent: str

    @property
    def folder(self) -> Path:
        return self.project.folder / f"box {self.agent}"

    @property
    def command(self) -> tuple[str, ...]:
        return "mail", str(self.folder), "--agent", self.agent

    def mail(self, *options: str) -> CommandResult:
        return self.project.perdure(*self.command, *options)

    def put(self, name: str, text: str) -> Path:
        """As a sender does: written beside, then renamed."""
        path = self.folder / "inbox" / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{name}.tmp").write_text(text, encoding="utf-8")
        return path.with_name(f"{name}.tmp").rename(path)

    def reply_file(self, number: int) -> Path:
        return self.folder / "outbox" / "p" / f"t{number}-reply.md"

    def reply(self, number: int) -> tuple[ReplyHead, str]:
        head, body = parse_message(self.reply_file(number).read_bytes(), "p")
        assert isinstance(head, ReplyHead)
        return head, body

    def read(self, name: str) -> dict[str, Any]:
        path = self.folder / "outbox" / "p" / name
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return content

    def history(self, number: int) -> list[str]:
        return [entry["state"] for entry in self.read(f"task_state_t{number}.json")["history"]]

    def names(self, where: str) -> list[str]:
        """By their own names, without the marks of the claim."""
        folder = self.folder / "inbox" / "p" / where
        return sorted(path.name.partition("~")[2] for path in folder.iterdir()) if folder.exists() else []

    def mode(self) -> str:
        path = self.folder / "agent_state.json"
        return str(json.loads(path.read_text())["mode"]) if path.exists() else ""


@pytest.fixture(scope="module")
def project(make_project: MakeProject) -> Iterator[Project]:
    with ScriptedModel(script) as model:
        yield make_project(**use_model(model))


@pytest.fixture
def box(project: Project, request: pytest.FixtureRequest) -> Box:
    agent = request.node.name[:60]
    project.write(f"agents/{agent}.md", "---\ntools: []\n---\nYou help.")
    return Box(project, agent)


def test_tasks_get_replies_acks_and_states(box: Box) -> None:
    box.put("one.md", message(1))
    box.put("two.md", message(2))
    box.put("again.md", message(2))
    box.put("junk.md", "no message")
    done = box.mail("--once")
    assert (done.code, done.err) == (0, "")
    for number in (1, 2):
        head, body = box.reply(number)
        assert (head.status, head.in_reply_to, head.sender) == (ReplyStatus.done, f"m{number}", box.agent)
        assert body == f"done: Say hello. {number}\n"
        ack, state = box.read(f"ack_m{number}.json"), box.read(f"task_state_t{number}.json")
        assert [each["status"] for each in ack["history"]] == ["CONSUMED", "SUCCEEDED"]
        assert box.history(number) == ["CONSUMED", "RUNNING", "SUCCEEDED"]
        assert (ack["status"], state["state"], ack["run_id"]) == ("SUCCEEDED", "SUCCEEDED", head.run_id)
    assert [each["details"] for each in box.read("ack_m2.json")["duplicates"]] == ["SKIPPED_DUPLICATE"]
    assert (box.names(".pending"), box.names(".processed")) == ([], ["again.md", "one.md", "two.md"])
    assert box.names(".deadletter") == ["junk.md", "junk.md.reason.json"]
    assert "status: done" in (box.folder / "tasks" / "t1" / "task.md").read_text()
    assert "expected front matter" in box.mail("--dead").out
    assert sorted(path.name for path in (box.folder / "archive" / "p").iterdir()) == [
        "t1-reply.md", "t1.md", "t2-reply.md", "t2.md",
    ]  # fmt: skip


def test_a_task_that_is_done_is_answered_again(box: Box) -> None:
    box.put("one.md", message(1))
    assert box.mail("--once").code == 0
    before = box.reply(1)
    box.reply_file(1).unlink()
    box.put("two.md", message(1).replace("message_id: m1", "message_id: m9"))
    assert box.mail("--once").code == 0
    assert box.reply(1) == before
    assert box.read("ack_m9.json")["details"] == "RESULT_SENT_AGAIN"


def test_a_dead_letter_comes_again_where_it_is_asked_for(box: Box) -> None:
    box.put("one.md", message(1, more="inputs: [{name: data, match: data.csv}]\nwait_for_inputs: false\n"))
    assert box.mail("--once").code == 0
    head, body = box.reply(1)
    assert head.status is ReplyStatus.failed
    assert box.read("ack_m1.json")["status"] == "FAILED"
    (box.folder / "inputs" / "data.csv").write_text("1,2")
    os.utime(box.folder / "inputs" / "data.csv", (1, 1))
    assert box.mail("--redeliver", "m1", "--once").code == 0
    head, body = box.reply(1)
    assert (head.status, "artifacts/inputs/data/data.csv" in body) == (ReplyStatus.done, True)
    assert box.history(1) == ["FAILED", "CONSUMED", "RUNNING", "SUCCEEDED"]
    assert box.names(".deadletter") == []


async def test_a_killed_bridge_loses_nothing_and_a_dormant_one_wakes(box: Box) -> None:
    async with serve_with_worker(box.project):
        for number in range(20):
            box.put(f"{number}.md", message(number))
        command = (*box.command, "--dormant-after", "2s")
        with box.project.running(*command) as first:
            await until(lambda: len(box.names(".processed")) > 2)
            first.popen.send_signal(signal.SIGKILL)
        with box.project.running(*command) as second:
            await until(lambda: len(box.names(".processed")) == 20)
            assert all(box.reply_file(number).exists() for number in range(20))
            await until(lambda: box.mode() == "DORMANT")
            box.put("late.md", message(99))
            await until(box.reply_file(99).exists)
            done = second.send_signal(signal.SIGTERM)
    assert done.code == 0
    assert [path for path in (box.folder / "outbox/p").glob("ack_*") if "FAILED" in path.read_text()] == []


async def test_a_person_picks_one_of_several_files(box: Box) -> None:
    there = {"PERDURE_ANSWER_KEY": ANSWER_KEY}
    async with serve_with_worker(box.project, **there):
        (box.folder / "inputs").mkdir(parents=True)
        box.put("one.md", message(1, more="inputs: [{name: data, match: '*.csv'}]\n"))
        with box.project.running(*box.command, **there):
            await until(lambda: box.read("task_state_t1.json").get("state") == "BLOCKED_WAITING_INPUT")
            assert not (box.folder / "tasks/t1/human_intervention_request.json").exists()
            for name in ("a.csv", "b.csv"):
                (box.folder / "inputs" / f"{name}.tmp").write_text(name)
                (box.folder / "inputs" / f"{name}.tmp").rename(box.folder / "inputs" / name)
            request = box.folder / "tasks/t1/human_intervention_request.json"
            await until(request.exists)
            asked = json.loads(request.read_text())
            assert asked["choices"] == [{"name": "data", "options": ["a.csv", "b.csv"]}]
            asked["pick"]["data"] = "b.csv"
            request.write_text(json.dumps(asked))
            await until(lambda: box.names(".processed") == ["one.md"])
        record = json.loads(box.project.perdure("trace", asked["run_id"], "--export", **there).out)
    assert [each["sender"] for each in record["received"]] == [{"door": "mailbox"}] * 2
    assert record["questions"][0]["answers"][0]["signature"].startswith("k1:")
    assert not request.exists()
    assert box.history(1) == ["BLOCKED_WAITING_INPUT", "CONSUMED", "BLOCKED_WAITING_INPUT", "RUNNING", "SUCCEEDED"]


def test_once_leaves_what_waits_for_a_person_or_for_inputs(box: Box) -> None:
    box.put("one.md", message(1, body="Ask me."))
    box.put("two.md", message(2))
    box.put("three.md", message(3, more="inputs: [{name: data, match: data.csv}]\n"))
    done = box.mail("--once")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "bridge stopped; open messages: 2 (1 waits for inputs, 1 waits for a person)"
    assert box.reply_file(2).exists()


def test_once_leaves_with_1_where_a_plan_lets_nothing_go(box: Box) -> None:
    box.put("one.md", message(1))
    bad = box.folder / "inbox" / "bad"
    bad.mkdir()
    for name in ("a.md", ".pending"):
        (bad / name).write_text("x")
        os.utime(bad / name, (1, 1))
    done = box.mail("--once")
    assert done.code == 1
    assert "bad/.pending: expected a folder, not a link or a device" in done.out
    assert box.reply_file(1).exists()
    assert (bad / "a.md").exists()


def test_another_agents_folder_is_refused_in_one_line(box: Box) -> None:
    box.folder.mkdir()
    (box.folder / ".mailbox.json").write_text('{"id": "x", "agent": "somebody"}')
    assert "is the mailbox of agent 'somebody'" in box.mail("--once").error()


def test_help_tells_the_options(project: Project) -> None:
    said = project.perdure("mail", "--help").out
    for option in ("--agent", "--once", "--idle-after", "--dormant-after", "--redeliver", "--dead", "--json"):
        assert option in said


def coordinate(body: dict[str, Any]) -> Reply:
    """Has the peer outside do it, and passes on what that says."""
    results = [b for m in body["messages"] for b in m["content"] if b["type"] == "tool_result"]
    if results:
        return calls(("finish", {"outcome": f"It says: {json.dumps(results[-1]['content'])}"}))
    subtask = {"id": "s1", "agent": "outsider", "instructions": "Count the words of: a b c."}
    return calls(("delegate", {"subtasks": [subtask]}))


async def test_a_peer_outside_gets_a_task_and_answers_it_by_files(make_project: MakeProject) -> None:
    with ScriptedModel(coordinate) as model:
        project = make_project(**use_model(model))
        project.write("agents/outsider.md", "---\nmailbox: true\n---\n")
        project.write("agents/boss.md", "---\ntools: []\npeers: [outsider]\n---\nYou coordinate.")
        boss, peer = Box(project, "boss"), project.folder / "peer"
        async with serve_with_worker(project):
            boss.put("one.md", message(1))
            with (
                project.running(*boss.command),
                project.running("mail", str(peer), "--agent", "outsider"),
            ):
                await until(lambda: list(peer.glob("inbox/*/*-s1.md")))
                (asked,) = peer.glob("inbox/*/*-s1.md")
                head, body = parse_message(asked.read_bytes(), asked.parent.name)
                assert (head.subtask_id, head.sender, "a b c" in body) == ("s1", "boss", True)
                assert asked.read_text().count("message_id") == 1
                page = boss.folder / "tasks" / "t1" / "task.md"
                await until(lambda: "status: executing" in page.read_text())
                assert "| s1 | outsider | dispatched |" in page.read_text()
                ids = {"type": "reply", "message_id": "r1", "plan_id": head.plan_id, "task_id": head.task_id}
                reply = {**ids, "subtask_id": "s1", "from": "outsider", "status": "done", "body": "Three."}
                out = peer / "outbox" / asked.parent.name
                out.mkdir(exist_ok=True, parents=True)
                (out / "reply.tmp").write_text(json.dumps(reply))
                (out / "reply.tmp").rename(out / "reply.json")
                await until(lambda: boss.names(".processed") == ["one.md"])
                await until(lambda: "| s1 | outsider | done |" in page.read_text())
                await until((peer / "inbox" / asked.parent.name / "ack_r1.json").exists)
    head, body = boss.reply(1)
    assert "Three." in body
