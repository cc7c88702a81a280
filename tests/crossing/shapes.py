"""One run of each shape in the project that has everything on: how it begins, what its model says, who acts on it."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from perdure.client.errors import RunNotFoundError
from perdure.client.runs import query_run_state, wait_for_run_end
from perdure.contracts.run.state import RunView
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, fails, says
from tests.crossing.project import BANK, GITHUB_SECRET, WAREHOUSE, CrossedProject, goal_texts
from tests.e2e.projects import Json, turn_of
from tests.media_files import image_bytes
from tests.waiting import PATIENCE, until

PREFIX = "shape "
OCCUPANT = "placed before"  # the run that has the place which another one waits for
THOUGHT = {"type": "thinking", "thinking": "a thought of the model", "signature": "signed"}


T = TypeVar("T")


async def until_some(ask: Callable[[], Awaitable[T | None]]) -> T:
    """The first answer: a busy worker does not answer each time."""
    found: list[T] = []

    async def is_answered() -> bool:
        answer = await ask()
        found.extend(() if answer is None else (answer,))
        return answer is not None

    await until(is_answered)
    return found[0]


@dataclass
class Crossing:
    """The project at work: a worker, the gateway, and clients of people in different groups."""

    project: CrossedProject
    client: Client
    address: str
    gateway: str
    people: dict[str, httpx.AsyncClient]
    run_ids: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # the kinds of the questions that people were asked

    @property
    def http(self) -> httpx.AsyncClient:
        return self.people["root"]

    def perdure(self, *args: str, typed: str = "") -> str:
        """The output of a command that succeeds."""
        done = self.project.perdure(*args, typed=typed)
        assert done.code in (0, 3), (args, done)
        return done.out

    async def state_of(self, run_id: str) -> RunView | None:
        try:
            return await query_run_state(self.client, run_id)
        except RunNotFoundError:
            return None

    async def wait_for_question(self, run_id: str, after: str = "") -> Json:
        """The open question of a run, another than the one with the digest `after`."""
        found: list[Json] = []

        async def is_open() -> bool:
            state = await self.state_of(run_id)
            question = state.question if state else None
            if question is None or (after and question.call == after):
                return False
            found.append(question.model_dump(mode="json"))
            return True

        await until(is_open)
        self.asked.add(found[-1]["kind"])
        return found[-1]

    async def answer(self, person: str, run_id: str, **body: Any) -> httpx.Response:
        async def post() -> httpx.Response | None:
            answer = await self.people[person].post(f"/v1/runs/{run_id}/answer", json=body)
            return None if answer.status_code == 503 else answer

        return await until_some(post)


Act = Callable[[Crossing, str], Awaitable[None]]


@dataclass(frozen=True)
class Shape:
    """`begin` returns the run's id; by default it is started by the gateway. `act` is what people and programs do."""

    agent: str
    script: Sequence[ScriptedAnswer]
    status: str = "completed"
    start: Json = field(default_factory=dict)  # more of the payload
    act: Act | None = None
    begin: Callable[[Crossing, str], Awaitable[str]] | None = None
    shown: str = ""  # a text of the story that a reader of events shows


async def approve_twice(it: Crossing, run_id: str) -> None:
    question = await it.wait_for_question(run_id)
    forged = {"decision": "approve", "by": "ann", "call": question["call"]}
    await it.client.get_workflow_handle(f"run:{run_id}").signal("human_input", forged)  # which is not signed
    refused = await it.answer("cleo", run_id, decision="approve", call=question["call"])
    assert refused.status_code == 409, refused.text
    taken = await it.answer("ann", run_id, decision="approve", call=question["call"])
    assert taken.status_code == 200, taken.text
    vote = {"question_id": question["id"], "call": question["call"], "decision": "approve"}
    together = await it.people["ben"].post(f"/v1/runs/{run_id}/answers", json={"answers": [vote]})
    assert together.json()["results"][0]["accepted"], together.text


async def approve_changed(it: Crossing, run_id: str) -> None:
    shown = await it.wait_for_question(run_id)
    changed = {"order": "A-1", "cents": 250}
    proposal = await it.answer("ann", run_id, decision="approve", call=shown["call"], arguments=changed)
    assert proposal.status_code == 200, proposal.text
    question = await it.wait_for_question(run_id, after=shown["call"])
    old = await it.answer("ben", run_id, decision="approve", call=shown["call"])
    assert old.status_code == 409, old.text
    taken = await it.answer("ben", run_id, decision="approve", call=question["call"])
    assert taken.status_code == 200, taken.text


async def deny(it: Crossing, run_id: str) -> None:
    await it.wait_for_question(run_id)
    taken = await it.answer("ann", run_id, decision="deny", text="not this one")
    assert taken.status_code == 200, taken.text


async def answer_in_the_terminal(it: Crossing, run_id: str) -> None:
    await it.wait_for_question(run_id)
    await asyncio.to_thread(it.perdure, "answer", run_id, "2")


async def answer_in_words(it: Crossing, run_id: str) -> None:
    await it.wait_for_question(run_id)
    await asyncio.to_thread(it.perdure, "answer", run_id, "red")


async def approve_in_the_terminal(it: Crossing, run_id: str) -> None:
    await it.wait_for_question(run_id)
    await asyncio.to_thread(it.perdure, "approve", run_id, "--by", "cleo")


async def stop(it: Crossing, run_id: str) -> None:
    await it.wait_for_question(run_id)
    await asyncio.to_thread(it.perdure, "answer", run_id, "--decision", "stop")


async def cancel(it: Crossing, run_id: str) -> None:
    await it.wait_for_question(run_id)
    await asyncio.to_thread(it.perdure, "cancel", run_id)


async def begin_held(it: Crossing, name: str) -> str:
    await asyncio.to_thread(it.perdure, "pause", "--agent", "paused", "--by", "maria", "--why", "wrong prices")
    payload = {"goal": f"{PREFIX}{name}: do it", "agent": "paused"}
    return str((await it.http.post("/v1/runs", json={"payload": payload})).json()["run_id"])


async def look_and_unpause(it: Crossing, run_id: str) -> None:
    await expect_held(it, run_id, "agent paused paused by maria", "pause")
    await asyncio.to_thread(it.perdure, "unpause", "--agent", "paused")


async def expect_held(it: Crossing, run_id: str, why: str, *commands: str, status: str = "running") -> None:
    """A held run is shown as held at each door."""

    async def is_listed() -> bool:
        rows = map(json.loads, (await asyncio.to_thread(it.perdure, "list", "--json", "--limit", "500")).splitlines())
        return any(row["run_id"] == run_id and row["held"] for row in rows)

    await until(is_listed)
    shown = json.loads(await asyncio.to_thread(it.perdure, "show", run_id, "--json"))
    served = (await it.http.get(f"/v1/runs/{run_id}")).json()
    assert (shown["held_by"]["why"].startswith(why), served["held_by"]) == (True, shown["held_by"])
    assert (shown["status"], shown["held"], served["known"]["held"]) == (status, True, True)
    for command in (("show", run_id), ("doctor",), *((command,) for command in commands)):
        assert why in " ".join((await asyncio.to_thread(it.perdure, *command)).split()), command
    async with it.http.stream("GET", f"/v1/runs/{run_id}/events") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data:") and '"run_held"' in line:
                break


async def begin_second(it: Crossing, name: str) -> str:
    """A run that waits for the only place of its agent, which another one has."""

    async def start(goal: str) -> str:
        payload = {"goal": f"{PREFIX}{goal}: do it", "agent": "narrow"}
        return str((await it.http.post("/v1/runs", json={"payload": payload})).json()["run_id"])

    async def is_at_work() -> bool:
        state = await it.state_of(it.run_ids[OCCUPANT])
        return bool(state and state.pending)

    it.run_ids[OCCUPANT] = await start(OCCUPANT)
    await until(is_at_work)
    return await start(name)


async def wait_for_place(it: Crossing, run_id: str) -> None:
    await expect_held(it, run_id, "agent narrow: 1 of 1 at work", status="queued")
    await send_result(it, it.run_ids[OCCUPANT])


async def raise_the_budget(it: Crossing, run_id: str) -> None:
    """The question about a budget is at each door, and an answer of its group lets the run go on."""
    asked: list[Json] = []

    async def is_asked() -> bool:
        rows = (await it.http.get("/v1/questions")).json()["questions"]
        asked[:] = [row for row in rows if row["run_id"].startswith("question:budget-thrift-") and row["runs"]]
        return bool(asked)

    await until(is_asked)
    [row] = asked
    name, text = row["run_id"], "Budget thrift: 0 of 150 steps used, and what is left does not cover another call."
    assert (row["runs"], row["question"]["text"].startswith(text)) == (1, True)
    it.asked.add(row["question"]["kind"])
    shown_by = {("show", name): text, ("list",): name, ("questions",): "Budget thrift: 0 of 150 steps used"}
    for command, words in shown_by.items():
        assert words in " ".join((await asyncio.to_thread(it.perdure, *command)).split()), command
    shown = json.loads(await asyncio.to_thread(it.perdure, "show", run_id, "--json"))
    assert (shown["held_by"]["by"], shown["held_by"]["activity"]) == (name, "plan")
    listed = json.loads((await asyncio.to_thread(it.perdure, "budget", "list", "--json")).splitlines()[-1])
    assert (listed["name"], listed["is_used_up"]) == ("thrift", True)
    refused = await it.answer("cleo", name, option="raise")
    assert refused.status_code == 409, refused.text
    taken = await it.answer("ann", name, option="raise")
    assert taken.status_code == 200, taken.text


async def send_result(it: Crossing, run_id: str) -> None:
    pending: list[Any] = []

    async def is_handed_out() -> bool:
        state = await it.state_of(run_id)
        pending[:] = state.pending if state else []
        return bool(pending) and pending[0].nonce is not None

    await until(is_handed_out)
    payload = {"run_id": run_id, "step": 1, "tool": "tell", "status": "ok", "result": "a program's answer"}
    event = {"type": "agentic.tool_result", "payload": payload, "nonce": pending[0].nonce}
    taken = await it.http.post(f"/v1/runs/{run_id}/tool-results", json=event)
    assert taken.status_code == 202, taken.text


async def end_task(it: Crossing, run_id: str) -> None:
    """A task that its server works at is at each door, until the server ends it."""

    async def is_followed() -> bool:
        texts = [await asyncio.to_thread(it.perdure, "show", run_id, *more) for more in ((), ("--json",))]
        texts.append((await it.http.get(f"/v1/runs/{run_id}")).text)
        return all("of server bank: working, paying" in " ".join(text.split()) for text in texts)

    await until(is_followed)
    async with it.http.stream("GET", f"/v1/runs/{run_id}/events") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data:") and '"tool_call_waiting"' in line:
                break
    (it.project.folder / BANK / "end").write_text("")


async def fill_form(it: Crossing, run_id: str) -> None:
    """What the server of a task asks is a question that is for people."""
    question = await it.wait_for_question(run_id)
    assert (question["kind"], "The server bank" in question["text"]) == ("input", True)
    refused = await it.answer("ann", run_id, question_id=question["id"], text="perhaps")
    assert refused.status_code == 409, refused.text
    taken = await it.answer("ann", run_id, question_id=question["id"], text="ok: yes")
    assert taken.status_code == 200, taken.text


async def begin_with_image(it: Crossing, name: str) -> str:
    image = it.project.folder / "picture.png"
    image.write_bytes(image_bytes())
    command = ("run", "--detach", "--id", name, "--agent", "seer", "--attach", str(image), f"{PREFIX}{name}: look")
    await asyncio.to_thread(it.perdure, *command)
    return name


def begin_dry(agent: str, goal: str) -> Callable[[Crossing, str], Awaitable[str]]:
    async def begin(it: Crossing, name: str) -> str:
        run_id = name.replace(" ", "-")
        command = ("run", "--dry-run", "--detach", "--id", run_id, "--agent", agent, f"{PREFIX}{name}: {goal}")
        await asyncio.to_thread(it.perdure, *command)
        return run_id

    return begin


async def begin_from_event(it: Crossing, name: str) -> str:
    value = {
        "action": "opened",
        "issue": {
            "number": 12,
            "title": f"{PREFIX}{name}",
            "body": None,
            "updated_at": datetime.fromtimestamp(time.time() - 5, UTC).isoformat(),
            "user": {"login": "ann", "id": 3, "type": "User"},
        },
        "repository": {"id": 1, "full_name": "a/b", "private": False},
        "sender": {"login": "ann", "id": 3, "type": "User"},
    }
    body = json.dumps(value).encode()
    signature = hmac.new(GITHUB_SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Event": "issues"}
    async with httpx.AsyncClient(base_url=it.gateway, trust_env=False, timeout=60) as http:
        taken = await http.post("/v1/webhooks/github", content=body, headers=headers)
    assert taken.status_code == 200, taken.text
    report = await it.client.get_workflow_handle(taken.json()["started"][0]).result()
    return str(report["run_id"])


async def begin_from_mail(it: Crossing, name: str) -> str:
    inbox = it.project.folder / "Scribe" / "inbox" / "spring"
    await asyncio.to_thread(inbox.mkdir, parents=True)
    head = "type: task\nmessage_id: m1\nplan_id: spring\ntask_id: t1\nfrom: you"
    task = inbox / "task.tmp"
    task.write_text(f"---\n{head}\n---\n{PREFIX}{name}: write it\n", encoding="utf-8")
    task.rename(inbox / "task.md")
    await asyncio.to_thread(it.perdure, "mail", str(inbox.parents[1]), "--agent", "scribe", "--once")
    # Without the agent, thirty runs that have begun since may be all that is listed.
    listed = await asyncio.to_thread(it.perdure, "list", "--agent", "scribe", "--json")
    return str(json.loads(listed.splitlines()[0])["run_id"])


async def submit_turn(it: Crossing, conversation: str, request: Json) -> str:
    """Submit a conversation's request. Return the id of its turn once the lane has begun it."""
    submitted = await it.http.post(f"/v1/conversations/{conversation}/requests", json=request)
    assert submitted.is_success, submitted.text
    run_id = str(submitted.json()["run_id"])
    await until(lambda: _is_there(it, run_id))
    return run_id


async def begin_turn(it: Crossing, name: str) -> str:
    await asyncio.to_thread(it.perdure, "chat", name, "--agent", "clerk", "-m", f"{PREFIX}{name}: hello")
    return await submit_turn(it, name, {"request_id": "r2", "goal": "and again", "agent": "clerk"})


async def begin_follow_up(it: Crossing, name: str) -> str:
    request = {"request_id": "r1", "goal": f"{PREFIX}{name}: wait", "agent": "waiter", "request_client": "discord"}
    run_id = await submit_turn(it, name, request)
    await wait_for_run_end(it.client, run_id)
    data = {"platform": "discord", "channelId": "dm", "messageId": "m2", "userId": "B", "text": "yes", "ts": 1}
    event = {"type": "evt.adapter.message.created", "data": {**data, "raw": {"discord": {"replyToMessageId": "m1"}}}}
    await asyncio.to_thread(it.perdure, "event", "-", typed=json.dumps(event))
    rows: list[Json] = []

    async def is_resumed() -> bool:
        lane = (await it.http.get(f"/v1/conversations/{name}")).json()
        rows[:] = [turn for turn in lane["recent"] if turn["run_id"] != run_id]
        return bool(rows)

    await until(is_resumed)
    it.run_ids[f"{name} before"] = run_id
    return str(rows[0]["run_id"])


async def begin_from_plan(it: Crossing, name: str) -> str:
    """Make the dry run real, as a person who may start and answer."""
    await until(lambda: _has_ended(it, it.run_ids["dry"]))
    started = await it.http.post(f"/v1/runs/{it.run_ids['dry']}/plan", json={})
    assert started.status_code == 202, (name, started.text)
    return str(started.json()["run_id"])


def begin_after(command: str, origin: str, *options: str) -> Callable[[Crossing, str], Awaitable[str]]:
    """A run that goes on from another one, which it waits for."""

    async def begin(it: Crossing, _: str) -> str:
        await until(lambda: _has_ended(it, it.run_ids[origin]))
        printed = await asyncio.to_thread(it.perdure, command, it.run_ids[origin], *options, "--detach", "--json")
        return str(json.loads(printed.splitlines()[0])["run_id"])

    return begin


async def _is_there(it: Crossing, run_id: str) -> bool:
    return await it.state_of(run_id) is not None


async def _has_ended(it: Crossing, run_id: str) -> bool:
    state = await it.state_of(run_id)
    return state is not None and state.status in ("completed", "failed", "escalated", "cancelled", "timed_out")


def look(order: str = "A-1") -> Reply:
    return calls(("look", {"order": order}), text="Frame: orders\nPlan: look, then say.")


def refund(cents: int) -> Reply:
    return calls(("refund", {"order": "A-1", "cents": cents}))


def mail(to: str) -> Reply:
    return calls(("send_mail", {"to": to, "text": "hello\nyou"}))


SUBTASKS = (
    {"id": "act", "agent": "clerk", "instructions": f"{PREFIX}delegated act: refund"},
    {"id": "give-up", "agent": "counter", "instructions": f"{PREFIX}delegated give up: count"},
)
WAIT = {"channelId": "dm", "messageId": "m1", "fromUserId": "B", "description": "Wait for B to reply"}

SHAPES: dict[str, Shape] = {
    "plain": Shape("clerk", [look(), look("A-2"), says("two orders are open")], shown="two orders are open"),
    "approved": Shape("clerk", [refund(300), says("it is paid back")], act=approve_twice, shown="paid 300 back"),
    "changed": Shape("clerk", [refund(300), says("less is paid back")], act=approve_changed, shown="paid 250 back"),
    "denied": Shape("clerk", [refund(300), says("it stays")], act=deny, shown="not this one"),
    "forbidden": Shape("clerk", [refund(9999), says("the bank does it")], shown="refunds above 50 euro"),
    "reviewed": Shape(
        "clerk", [mail("customer@example.com"), says("it is sent")], act=approve_in_the_terminal, shown="sent"
    ),
    "asked": Shape(
        "clerk",
        [calls(("ask_human", {"question": "Which one?", "options": ["red", "blue"]})), says("the blue one")],
        act=answer_in_the_terminal,
        shown="the blue one",
    ),
    "delegated": Shape(
        "lead",
        [calls(("delegate", {"subtasks": list(SUBTASKS)})), says("one of two is done")],
        shown="one of two is done",
    ),
    "followed": Shape(
        "waiter",
        [
            calls(
                (
                    "workflow_create",
                    {"definition": {"summary": "B is asked.", "resumeTarget": {"session_id": "followed"}}},
                )
            ),
            calls(("workflow_wait_for_reply", WAIT)),
            says("B is asked"),
            says("B said yes"),
        ],
        begin=begin_follow_up,
        shown="B said yes",
    ),
    "batched": Shape("bulk", [look(), says("at half the price")], shown="at half the price"),
    "second": Shape("second", [look(), says("by the second API")], shown="by the second API"),
    "pictured": Shape("seer", [says("a picture of one colour")], begin=begin_with_image, shown="of one colour"),
    "counted": Shape("counter", [calls(("finish", {"outcome": "three", "result": {"total": 3}}))], shown="three"),
    "over MCP": Shape("clerk", [calls(("h__look", {})), says("the server was asked")], shown="the server was asked"),
    "queued": Shape("clerk", [calls(("stock", {"item": "milk"})), says("twelve are left")], shown="twelve are left"),
    "elsewhere": Shape(
        "envoy",
        [calls(("translate", {"message": "choose a colour"})), says("it is translated")],
        act=answer_in_words,
        shown="it is translated",
    ),
    "relayed": Shape("interpreter", [], shown="done: "),
    "answered": Shape("clerk", [calls(("tell", {})), says("it answered")], act=send_result, shown="it answered"),
    "posted": Shape("clerk", [calls(("charge", {"cents": 5})), says("it is charged")], shown="it is charged"),
    "signed": Shape("signer", [says("done"), says("done. yours, the clerk")], shown="the outcome is not signed"),
    "summarised": Shape("clerk", [*(look(f"long-{n}") for n in range(5)), says("all are long")], shown="all are long"),
    "rotated": Shape(
        "clerk",
        [*(calls(("reserve", {"order": f"A-{n}"})) for n in range(14)), says("fourteen are reserved")],
        shown="fourteen are reserved",
    ),
    "written": Shape(
        "clerk",
        [
            calls(("write_file", {"path": "artifacts/list.md", "content": "milk"})),
            calls(("finish", {"outcome": "a list is written", "artifacts": ["artifacts/list.md"]})),
        ],
        shown="a list is written",
    ),
    "tuned": Shape("tuned", [look(), says("in its own way")], start={"context": {"order": "A-1"}}, shown="own way"),
    "held": Shape(
        "paused", [look(), says("the prices are right")], act=look_and_unpause, begin=begin_held, shown="wrong prices"
    ),
    "thrifty": Shape(
        "frugal", [look(), says("nothing is wasted")], act=raise_the_budget, shown="left of its steps does not cover"
    ),
    "placed": Shape(
        "narrow", [says("there is a place")], act=wait_for_place, begin=begin_second, shown="narrow: 1 of 1 at work"
    ),
    "looped": Shape("clerk", [look()], "cancelled", act=stop, shown="look"),
    "mailed": Shape("scribe", [says("it is written")], begin=begin_from_mail, shown="it is written"),
    "started": Shape("clerk", [says("an issue is answered")], begin=begin_from_event, shown="an issue is answered"),
    "turn": Shape("clerk", [says("hello"), look(), says("again")], begin=begin_turn, shown="again"),
    "searched": Shape(
        "searcher",
        [
            calls(("search_tools", {"query": "look at an order"})),
            calls(("call_tool", {"name": "look", "arguments": {"order": "A-7"}})),
            says("found and called"),
        ],
        shown="found and called",
    ),
    "thoughtful": Shape("clerk", [Reply(text="it is thought over", blocks=(THOUGHT,))], shown="it is thought over"),
    "escalated": Shape(
        "clerk", [calls(("escalate", {"reason": "unclear", "detail": "what is wanted?"}))], "escalated", shown="unclear"
    ),
    "failed": Shape(
        "clerk",
        [look(), fails(401, message="no such key", times=2, then=says("the key is back"))],
        "failed",
        shown="no such key",
    ),
    "cancelled": Shape(
        "clerk",
        [calls(("ask_human", {"question": "Go on?"})), says("never")],
        "cancelled",
        act=cancel,
        shown="cancelled",
    ),
    "dry": Shape(
        "clerk",
        [look(), refund(300), says("three would be paid back")],
        begin=begin_dry("clerk", "refund"),
        shown="refund",
    ),
    "tasked": Shape(
        "banker", [calls(("bank__watch", {"what": "rent"})), says("it is seen")], act=end_task, shown="paid"
    ),
    "asked by a task": Shape(
        "banker", [calls(("bank__ask", {"what": "news"})), says("published")], act=fill_form, shown="answered"
    ),
    "dry task": Shape(
        "banker",
        [
            calls(("bank__watch", {"what": "rent"})),
            calls(("bank__pay", {"what": "rent"})),
            says("the rent would be paid"),
        ],
        begin=begin_dry("banker", "pay"),
        shown="the rent would be paid",
    ),
    "made real": Shape(
        "clerk",
        [look(), refund(300), says("never asked")],
        act=approve_twice,
        begin=begin_from_plan,
        shown="300",
    ),
    "resumed": Shape("clerk", [], begin=begin_after("resume", "failed"), shown="the key is back"),
    "forked": Shape("clerk", [], begin=begin_after("fork", "plain", "--step", "1"), shown="two orders are open"),
}
SCRIPTS: dict[str, Sequence[ScriptedAnswer]] = {
    **{name: shape.script for name, shape in SHAPES.items() if shape.script},
    OCCUPANT: [calls(("tell", {})), says("the place is free")],
    "delegated act": [refund(50), says("a small one is paid back")],
    "delegated give up": [calls(("escalate", {"reason": "no numbers", "detail": "nothing to count"}))],
}


def reply(body: Json) -> ScriptedAnswer:
    """What the model of the project says, on both wires and in batches."""
    if any(tool["name"] == "verdict" for tool in body.get("tools", ())):
        return calls(("verdict", {"verdict": "allow", "reason": "it is small"}))
    if "You summarise" in str(body.get("system")):
        return says("So far: long orders.")
    texts = goal_texts(body)
    name = max((name for name in SCRIPTS if f"{PREFIX}{name}" in texts), key=len, default="")
    if not name:
        return fails(400, message=f"no shape is named: {texts[:200]}")
    script = SCRIPTS[name]
    at = turn_of(body)
    return script[min(at, len(script) - 1)]


@asynccontextmanager
async def warehouse(client: Client) -> AsyncIterator[None]:
    """A worker of another team, for the tool of the kind `queue`."""

    @activity.defn
    async def look_up_stock(request: Json) -> Json:
        return {"item": request["payload"]["tool_payload"]["item"], "left": 12}

    async with Worker(client, task_queue=WAREHOUSE, activities=[look_up_stock]):
        yield


async def make_run(it: Crossing, name: str) -> None:
    """Begin the run of a shape, do what people do, and wait for its end."""
    shape = SHAPES[name]
    if shape.begin is not None:
        it.run_ids[name] = run_id = await shape.begin(it, name)
    else:
        payload = {"goal": f"{PREFIX}{name}: do it", "agent": shape.agent, **shape.start}
        begun = await it.http.post("/v1/runs", json={"payload": payload})
        assert begun.status_code == 202, begun.text
        it.run_ids[name] = run_id = begun.json()["run_id"]
    if shape.act is not None:
        await shape.act(it, run_id)
    try:
        end = await asyncio.wait_for(wait_for_run_end(it.client, run_id), PATIENCE)
    except TimeoutError:
        raise AssertionError(f"{name} does not end: {await it.state_of(run_id)}") from None
    assert end.status == shape.status, (name, end)


def waves() -> Iterator[list[str]]:
    """The shapes in two waves: those that go on from another run come last."""
    later = ["made real", "resumed", "forked"]
    yield [name for name in SHAPES if name not in later]
    yield later
