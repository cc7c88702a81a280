"""A project with the doors for front ends: a gateway as a process, a worker and a scripted model."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import httpx
import pytest

from perdure.testkit.model_server import Reply, ScriptedAnswer, calls, fails, says, slow
from tests.e2e.conftest import make_project, site
from tests.e2e.projects import MakeProject
from tests.gateway.conftest import Gateway, Gateways, make_token, serve_gateways

__all__ = ["make_project", "site"]  # fixtures

Json = dict[str, Any]
HERE = Path(__file__).parent
PROJECT = """
[features]
use = ["web_ui", "ag_ui"]

[web_ui]
version = %d

[tools.pay]
kind = "python"
target = "desk:pay"
effect = "once"
approval = "always"

[people]
two = ["tester", "second"]

[tools.vote]
kind = "python"
target = "desk:vote"
effect = "keyed"

[tools.ship]
kind = "python"
target = "desk:ship"
effect = "once"

[tools.look]
kind = "python"
target = "desk:look"
effect = "read"

[tools.parcel]
kind = "signal"
effect = "read"
description = "Look a parcel up outside."
input_schema = { type = "object", properties = { number = { type = "integer" } }, required = ["number"] }
"""
AGENT = """---
name: default
description: Tests.
tools: [pay, vote, ship, look, parcel]
peers: [peer]
---
You are tested.
"""
POLICY = '[[rule]]\ntools = ["vote"]\nthen = "ask"\napprovers = ["two"]\nquorum = 2\n'
PEER = """---
name: peer
description: Looks.
tools: [look]
---
You look.
"""
DESK = """
import time
from pathlib import Path

def pay(amount: int) -> dict:
    '''Pay.'''
    with open(Path(__file__).parent / "paid.txt", "a") as file:
        file.write(f"{amount}\\n")
    return {"paid": amount}

def vote(on: str) -> str:
    '''Vote.'''
    return "both agreed"

def ship(number: int) -> str:
    '''Ship.'''
    with open(Path(__file__).parent / "sent.txt", "a") as file:
        file.write(f"{number}\\n")
    time.sleep(60)
    return "on its way"

def look(what: str) -> str:
    '''Look something up.'''
    return f"{what} is here"
"""
CALLS: dict[str, tuple[tuple[str, Json], ...]] = {
    "pay": (("pay", {"amount": 42}),),
    "pair": (("pay", {"amount": 1}), ("pay", {"amount": 1})),
    "ask": (("ask_human", {"question": "Red or blue?", "options": ["red", "blue"]}),),
    "look": (("look", {"what": "the key"}),),
    "vote": (("vote", {"on": "x"}),),
    "ship": (("ship", {"number": 1}),),
    "split": (("delegate", {"subtasks": [{"id": "a", "agent": "peer", "instructions": "GOAL look"}]}),),
    "parcel": (("parcel", {"number": 7}),),
}
ODD_IDS = ("a/b", "a\0b", "é" * 100, "../..", "%2e%2e", " x ")
STORY = " ".join(f"word{number}" for number in range(160))


def _last_request(body: Json) -> tuple[str, int]:
    """The last message of a person, and the replies since."""
    texts = [(at, str(m["content"])) for at, m in enumerate(body["messages"]) if m["role"] == "user"]
    at, said = next((at, said) for at, said in reversed(texts) if "GOAL " in said)
    return said, sum(m["role"] == "assistant" for m in body["messages"][at:])


def replies(body: Json) -> ScriptedAnswer:
    """By the word after GOAL, such as `pay`, `ask` or `story`; after a call it says what came."""
    said, turn = _last_request(body)
    if turn == 0:
        for word, uses in CALLS.items():
            if f"GOAL {word}" in said:
                return calls(*uses, text=f"I will {word}.")
    if "GOAL story" in said:
        return slow(says(STORY), 8)
    if "GOAL think" in said:
        cited = [{"type": "web_search_result_location", "url": "https://a.example/", "title": "A", "cited_text": "x"}]
        thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
        return Reply(blocks=(thought, {"type": "text", "text": "It says x.", "citations": cited}))
    if "GOAL fail" in said:
        return fails(400, message="this goal is too strange")
    if "GOAL pause" in said:
        return slow(says("After a pause."), 3)
    last = body["messages"][-1]["content"]
    content = next((b["content"] for b in last if b.get("type") == "tool_result"), "") if isinstance(last, list) else ""
    return says(f"Done: {content}." if content else "Hello, it is done.")


@dataclass(frozen=True)
class Door:
    """The door of a gateway, as a page speaks to it."""

    gateway: Gateway
    chat: str

    def text(self, text: str, message: str = "m1") -> Json:
        parts = [{"type": "text", "text": text}]
        return {"id": self.chat, "messages": [{"id": message, "role": "user", "parts": parts}]}

    async def post(self, body: Json, **headers: str) -> httpx.Response:
        return await self.gateway.post("/v1/ui/chat", body, **headers)

    async def send(self, text: str, message: str = "m1") -> list[Json]:
        """Send a text, and return the parts of the reply."""
        answer = await self.post(self.text(text, message))
        assert answer.status_code == 200, answer.text
        return parts_of(answer.text)

    async def resume(self, **headers: str) -> httpx.Response:
        return await self.gateway.get(f"/v1/ui/chat/{self.chat}/stream", **headers)

    async def messages(self, **headers: str) -> list[Json]:
        answer = await self.gateway.get(f"/v1/ui/chat/{self.chat}/messages", **headers)
        assert answer.status_code == 200, answer.text
        listed: list[Json] = answer.json()["messages"]
        return listed

    def decision(self, run_id: str, *approvals: Json) -> Json:
        parts = [{"type": "dynamic-tool", "state": "approval-responded", "approval": each} for each in approvals]
        return {"id": self.chat, "messages": [{"id": run_id, "role": "assistant", "parts": parts}]}


class ChatDoor(Protocol):
    @property
    def gateway(self) -> Gateway: ...

    def text(self, text: str, message: str = ...) -> Json: ...

    async def post(self, body: Json, **headers: str) -> httpx.Response: ...


async def require_scopes(door: ChatDoor, answer: Json) -> None:
    """Each request needs `runs:read`, a message `runs:start`, and an answer `human:answer`."""
    message = door.text("GOAL look", "m2")
    for scopes, body, missing in (
        (("runs:read",), message, "runs:start"),
        (("runs:start",), message, "runs:read"),
        (("runs:read", "runs:start"), answer, "human:answer"),
    ):
        token = await asyncio.to_thread(make_token, door.gateway.project, f"t-{uuid4().hex[:8]}", *scopes)
        refused = await door.post(body, Authorization=f"Bearer {token}")
        assert refused.status_code == 403
        assert missing in refused.json()["detail"]


async def require_refusal(door: ChatDoor, body: Json, status: int, words: str) -> None:
    answer = await door.post(body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]


def parts_of(text: str) -> list[Json]:
    """The parts of a whole stream."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(event) for event in events if event != "[DONE]"]


def one(parts: list[Json], kind: str) -> Json:
    """The only part of a kind."""
    [part] = [part for part in parts if part["type"] == kind]
    return part


@pytest.fixture(scope="session")
async def ui_gateways(make_project: MakeProject) -> AsyncIterator[Gateways]:
    files = {"perdure.toml": PROJECT % 6, "seven.toml": PROJECT % 7, "desk.py": DESK, "policy.toml": POLICY}
    files |= {"agents/default.md": AGENT, "agents/peer.md": PEER}
    async with serve_gateways(make_project, replies, files) as opened:
        yield opened


@pytest.fixture(scope="session")
async def ui_gateway(ui_gateways: Gateways) -> AsyncIterator[Gateway]:
    with ui_gateways.open() as opened:
        yield opened


@pytest.fixture
def door(ui_gateway: Gateway) -> Door:
    return Door(ui_gateway, f"chat-{uuid4().hex[:8]}")
