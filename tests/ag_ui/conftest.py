"""The door for front ends of AG-UI, of the project that has the one of the AI SDK, too."""

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.e2e.conftest import make_project, site
from tests.gateway.conftest import Gateway
from tests.web_ui.conftest import parts_of, ui_gateway, ui_gateways

__all__ = ["make_project", "site", "ui_gateway", "ui_gateways"]  # fixtures

Json = dict[str, Any]
events_of = parts_of  # of a whole stream


@dataclass(frozen=True)
class Door:
    """The door of a gateway, as a page speaks to it."""

    gateway: Gateway
    thread: str

    def text(self, text: str, message: str = "m1", run: str = "s1") -> Json:
        messages = [{"id": message, "role": "user", "content": text}]
        return {"threadId": self.thread, "runId": run, "messages": messages}

    def answers(self, *entries: Json, run: str = "s2") -> Json:
        return {"threadId": self.thread, "runId": run, "messages": [], "resume": list(entries)}

    async def post(self, body: Json, **headers: str) -> httpx.Response:
        return await self.gateway.post("/v1/ag-ui", body, **headers)

    async def send(self, text: str, message: str = "m1", run: str = "s1") -> list[Json]:
        """Send a text, and return the events of the stretch."""
        return await self.events(self.text(text, message, run))

    async def answer(self, interrupt: Json, payload: Any, run: str = "s2") -> list[Json]:
        return await self.events(self.answers(resolved(interrupt, payload), run=run))

    async def events(self, body: Json) -> list[Json]:
        answer = await self.post(body)
        assert answer.status_code == 200, answer.text
        return events_of(answer.text)

    async def connect(self, **headers: str) -> httpx.Response:
        return await self.gateway.get(f"/v1/ag-ui/{self.thread}/stream", **headers)

    async def messages(self) -> list[Json]:
        """The thread's messages, once its turn waits or is over."""
        listed: list[Json] = one(events_of((await self.connect()).text), "MESSAGES_SNAPSHOT")["messages"]
        return listed


def resolved(interrupt: Json, payload: Any) -> Json:
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}


def one(events: list[Json], kind: str) -> Json:
    """The only event of a kind, or of a name of ours."""
    [event] = [event for event in events if kind in (event["type"], event.get("name"))]
    return event


def interrupts(events: list[Json]) -> list[Json]:
    outcome = events[-1]["outcome"]
    assert outcome["type"] == "interrupt", events[-1]
    asked: list[Json] = outcome["interrupts"]
    return asked


def text_in(events: list[Json]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


def brief(messages: list[Json]) -> list[Any]:
    """Each message as its text, or the tool that it calls."""
    return [each.get("content") or each["toolCalls"][0]["function"]["name"] for each in messages]


@pytest.fixture
def door(ui_gateway: Gateway) -> Door:
    return Door(ui_gateway, f"thread-{uuid4().hex[:8]}")
