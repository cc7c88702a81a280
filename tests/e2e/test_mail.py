"""Messages as files, by processes: `perdure mail` beside a folder."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from activities.mailbox.message import parse_message
from contracts.mail.message import ReplyHead, ReplyStatus
from devserver import embedded_server
from perdure.testkit.model_server import Reply, ScriptedModel, calls


def script(body: dict[str, Any]) -> Reply:
    """Says what it was asked, or asks a person where it is told to."""
    texts = [b["text"] for m in body["messages"] for b in m["content"] if b["type"] == "text"]
    if texts[0].startswith("Ask me."):
        return calls(("ask_human", {"question": "Which one?"}))
    return calls(("finish", {"outcome": f"done: {texts[0][:200]}"}))


def message(number: int, plan: str = "p", more: str = "", body: str = "Say hello.") -> str:
    head = f"type: task\nmessage_id: m{number}\nplan_id: {plan}\ntask_id: t{number}\nfrom: planner\n{more}"
    return f"---\n{head}---\n{body} {number}\n"


ANSWER_KEY = "k1:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="


class Box:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, text: str, plan: str = "p") -> Path:
        """As whoever sends does: written beside, then renamed in."""
        path = self.folder / "inbox" / plan / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{name}.tmp").write_text(text, encoding="utf-8")
        return path.with_name(f"{name}.tmp").rename(path)

    def reply(self, number: int, plan: str = "p") -> tuple[ReplyHead, str] | None:
        path = self.folder / "outbox" / plan / f"t{number}-reply.md"
        if not path.exists():
            return None
        head, body = parse_message(path.read_bytes(), plan)
        assert isinstance(head, ReplyHead)
        return head, body

    def told(self, name: str, plan: str = "p") -> dict[str, Any]:
        path = self.folder / "outbox" / plan / name
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def names(self, where: str, plan: str = "p") -> list[str]:
        """By their own names, without the marks of the claim."""
        folder = self.folder / "inbox" / plan / where
        return sorted(each.name.partition("~")[2] for each in folder.iterdir()) if folder.exists() else []

    def mode(self) -> str:
        path = self.folder / "agent_state.json"
        return str(json.loads(path.read_text())["mode"]) if path.exists() else ""


@pytest.fixture(scope="module")
def project(make_project: Any) -> Any:
    with ScriptedModel(script) as model:
        yield make_project(ANTHROPIC_API_KEY="sk-none", PERDURE_MODEL="scripted", ANTHROPIC_BASE_URL=model.base_url)


@pytest.fixture
def box(project: Any, request: pytest.FixtureRequest) -> Box:
    project.write(f"agents/{request.node.name[:60]}.md", "---\ntools: []\n---\nYou help.")
    return Box(project.folder / f"box {request.node.name[:60]}")


def agent_of(box: Box) -> str:
    return box.folder.name.removeprefix("box ")


def mail(project: Any, box: Box, *more: str) -> Any:
    return project.perdure("mail", str(box.folder), "--agent", agent_of(box), *more)


def test_tasks_get_replies_acks_and_states(project: Any, box: Box) -> None:
    box.put("one.md", message(1))
    box.put("two.md", message(2))
    box.put("again.md", message(2))
    box.put("junk.md", "no message")
    done = mail(project, box, "--once")
    assert (done.code, done.err) == (0, "")
    for number in (1, 2):
        found = box.reply(number)
        assert found is not None
        head, body = found
        assert (head.status, head.in_reply_to, head.sender) == (ReplyStatus.done, f"m{number}", agent_of(box))
        assert body == f"done: Say hello. {number}\n"
        ack, state = box.told(f"ack_m{number}.json"), box.told(f"task_state_t{number}.json")
        assert [each["status"] for each in ack["history"]] == ["CONSUMED", "SUCCEEDED"]
        assert [each["state"] for each in state["history"]] == ["CONSUMED", "RUNNING", "SUCCEEDED"]
        assert (ack["status"], state["state"], ack["run_id"]) == ("SUCCEEDED", "SUCCEEDED", head.run_id)
    assert [each["details"] for each in box.told("ack_m2.json")["duplicates"]] == ["SKIPPED_DUPLICATE"]
    assert (box.names(".pending"), box.names(".processed")) == ([], ["again.md", "one.md", "two.md"])
    assert box.names(".deadletter") == ["junk.md", "junk.md.reason.json"]
    assert "status: done" in (box.folder / "tasks" / "t1" / "task.md").read_text()
    assert "expected front matter" in mail(project, box, "--dead").out
    assert sorted(path.name for path in (box.folder / "archive" / "p").iterdir()) == [
        "t1-reply.md", "t1.md", "t2-reply.md", "t2.md",
    ]  # fmt: skip


def test_a_task_that_is_done_is_answered_again(project: Any, box: Box) -> None:
    box.put("one.md", message(1))
    assert mail(project, box, "--once").code == 0
    before = box.reply(1)
    (box.folder / "outbox/p/t1-reply.md").unlink()
    box.put("two.md", message(1).replace("message_id: m1", "message_id: m9"))
    assert mail(project, box, "--once").code == 0
    assert box.reply(1) == before
    assert box.told("ack_m9.json")["details"] == "RESULT_SENT_AGAIN"


def test_a_dead_letter_comes_again_where_it_is_asked_for(project: Any, box: Box) -> None:
    box.put("one.md", message(1, more="inputs: [{name: data, match: data.csv}]\nwait_for_inputs: false\n"))
    assert mail(project, box, "--once").code == 0
    found = box.reply(1)
    assert found is not None
    assert found[0].status is ReplyStatus.failed
    assert box.told("ack_m1.json")["status"] == "FAILED"
    (box.folder / "inputs" / "data.csv").write_text("1,2")
    os.utime(box.folder / "inputs" / "data.csv", (1, 1))
    assert mail(project, box, "--redeliver", "m1", "--once").code == 0
    found = box.reply(1)
    assert found is not None
    assert (found[0].status, "artifacts/inputs/data/data.csv" in found[1]) == (ReplyStatus.done, True)
    states = [each["state"] for each in box.told("task_state_t1.json")["history"]]
    assert states == ["FAILED", "CONSUMED", "RUNNING", "SUCCEEDED"]
    assert box.names(".deadletter") == []


async def test_a_killed_bridge_loses_nothing_and_a_dormant_one_wakes(project: Any, box: Box, until: Any) -> None:
    async with embedded_server(project.home) as server:
        there = {"TEMPORAL_ADDRESS": server.address}
        with project.running(script="worker.py", **there) as worker:
            worker.until("worker ready")
            for number in range(20):
                box.put(f"{number}.md", message(number))
            command = ("mail", str(box.folder), "--agent", agent_of(box), "--dormant-after", "2s")
            with project.running(*command, **there) as first:
                await until(lambda: len(box.names(".processed")) > 2)
                first.popen.send_signal(signal.SIGKILL)
            with project.running(*command, **there) as second:
                await until(lambda: len(box.names(".processed")) == 20)
                assert all(box.reply(number) for number in range(20))
                await until(lambda: box.mode() == "DORMANT")
                box.put("late.md", message(99))
                await until(lambda: box.reply(99))
                done = second.signalled(signal.SIGTERM)
    assert done.code == 0
    assert [path for path in (box.folder / "outbox/p").glob("ack_*") if "FAILED" in path.read_text()] == []


async def test_a_person_picks_one_of_several_files(project: Any, box: Box, until: Any) -> None:
    async with embedded_server(project.home) as server:
        there = {"TEMPORAL_ADDRESS": server.address, "PERDURE_ANSWER_KEY": ANSWER_KEY}
        with project.running(script="worker.py", **there) as worker:
            worker.until("worker ready")
            (box.folder / "inputs").mkdir(parents=True)
            box.put("one.md", message(1, more="inputs: [{name: data, match: '*.csv'}]\n"))
            with project.running("mail", str(box.folder), "--agent", agent_of(box), **there):
                await until(lambda: box.told("task_state_t1.json").get("state") == "BLOCKED_WAITING_INPUT")
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
        record = json.loads(project.perdure("trace", asked["run_id"], "--export", **there).out)
    assert [each["sender"] for each in record["received"]] == [{"door": "mailbox"}] * 2
    assert record["questions"][0]["answers"][0]["signature"].startswith("k1:")
    assert not request.exists()
    states = [each["state"] for each in box.told("task_state_t1.json")["history"]]
    assert states == ["BLOCKED_WAITING_INPUT", "CONSUMED", "BLOCKED_WAITING_INPUT", "RUNNING", "SUCCEEDED"]


def test_once_leaves_what_waits_for_a_person_or_for_inputs(project: Any, box: Box) -> None:
    box.put("one.md", message(1, body="Ask me."))
    box.put("two.md", message(2))
    box.put("three.md", message(3, more="inputs: [{name: data, match: data.csv}]\n"))
    done = mail(project, box, "--once")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "bridge stopped; open messages: 2 (1 waits for inputs, 1 waits for a person)"
    assert box.reply(2) is not None


def test_once_leaves_with_1_where_a_plan_lets_nothing_go(project: Any, box: Box) -> None:
    box.put("one.md", message(1))
    bad = box.folder / "inbox" / "bad"
    bad.mkdir()
    for name in ("a.md", ".pending"):
        (bad / name).write_text("x")
        os.utime(bad / name, (1, 1))
    done = mail(project, box, "--once")
    assert done.code == 1
    assert "bad/.pending: expected a folder, not a link or a device" in done.out
    assert box.reply(1) is not None
    assert (bad / "a.md").exists()


def test_another_agents_folder_is_refused_in_one_line(project: Any, box: Box) -> None:
    box.folder.mkdir()
    (box.folder / ".mailbox.json").write_text('{"id": "x", "agent": "somebody"}')
    done = mail(project, box, "--once")
    assert (done.code, done.out) == (1, "")
    assert "is the mailbox of agent 'somebody'" in done.err
    assert len(done.err.splitlines()) == 1


def test_help_tells_the_options(project: Any) -> None:
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


async def test_a_peer_outside_gets_a_task_and_answers_it_by_files(make_project: Any, until: Any) -> None:
    with ScriptedModel(coordinate) as model:
        project = make_project(ANTHROPIC_API_KEY="sk-none", PERDURE_MODEL="scripted", ANTHROPIC_BASE_URL=model.base_url)
        project.write("agents/outsider.md", "---\nmailbox: true\n---\n")
        project.write("agents/boss.md", "---\ntools: []\npeers: [outsider]\n---\nYou coordinate.")
        boss, peer = Box(project.folder / "boss"), project.folder / "peer"
        async with embedded_server(project.home) as server:
            there = {"TEMPORAL_ADDRESS": server.address}
            with project.running(script="worker.py", **there) as worker:
                worker.until("worker ready")
                boss.put("one.md", message(1))
                with (
                    project.running("mail", str(boss.folder), "--agent", "boss", **there),
                    project.running("mail", str(peer), "--agent", "outsider", **there),
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
                    told = {**ids, "subtask_id": "s1", "from": "outsider", "status": "done", "body": "Three."}
                    out = peer / "outbox" / asked.parent.name
                    out.mkdir(exist_ok=True, parents=True)
                    (out / "reply.tmp").write_text(json.dumps(told))
                    (out / "reply.tmp").rename(out / "reply.json")
                    await until(lambda: boss.names(".processed") == ["one.md"])
                    await until(lambda: "| s1 | outsider | done |" in page.read_text())
                    await until((peer / "inbox" / asked.parent.name / "ack_r1.json").exists)
    found = boss.reply(1)
    assert found is not None
    assert "Three." in found[1]
