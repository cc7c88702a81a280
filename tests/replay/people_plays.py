"""Notices to people, and events of theirs that begin work, in the scenarios."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from activities.people.channels import Channel
from contracts.people.inbound import InboundEvent, InboundRequest
from contracts.people.notice import Notice, NoticeKind, NoticeRequest, NoticeRoute
from contracts.sender import Sender
from decisions.people.start_rule import compile_start
from tests.workflows.conftest import Run, World

ROUTE = NoticeRoute(channel="ops", on=tuple(NoticeKind), patience=timedelta(seconds=0.1))
EVENT = InboundEvent(id="e1", kind="order", body={"text": "do it"}, user="U1")
STARTS: dict[str, dict[str, Any]] = {
    "run": {},
    "turn": {"conversation": "lane-{text}"},
    "unusable": {"fields": {"text": "event.missing"}},
}


class SilentSender:
    """Accepts every notice."""

    async def send(self, _notice: Notice, _key: str, _link: str) -> None:
        """Send nothing."""


def _compile(name: str, **changes: Any) -> Any:
    plain: dict[str, Any] = dict.fromkeys(("agent", "conversation", "when", "dedupe"))
    fields = {"text": "event.text"}
    return compile_start(
        plain
        | {"name": name, "webhook": "mine", "on": ("order",), "goal": "{text}", "fields": fields}
        | {"answer": False}
        | changes
    )


def _open_project(it: World) -> None:
    """Give the project, which its worker holds already, a channel and the starts."""
    changes = {
        "channels": (Channel(ROUTE, ("*",), SilentSender()),),
        "starts": tuple(_compile(name, **changes) for name, changes in STARTS.items()),
    }
    for name, value in changes.items():
        object.__setattr__(it.project, name, value)


async def begins_announced(it: World) -> Run:
    """A run whose question and end are announced."""
    _open_project(it)
    return await it.start()


def begins_notice(kind: NoticeKind, channel: str = "ops") -> Callable[[World], Awaitable[Run]]:
    """A notice; about a question that is no longer open if it is one of `waiting`."""

    async def begin(it: World) -> Run:
        _open_project(it)
        run = await it.run_to_end()
        run_id = run.id.removeprefix("run:")
        notice = Notice(kind=kind, run_id=run_id, agent="default", title="t", text="x", question_id="q1")
        request = NoticeRequest(notice=notice, routes=(ROUTE.model_copy(update={"channel": channel}),))
        return await it.start_raw(request, workflow_type="Notify", id=f"notice:{run_id}:played")

    return begin


def begins_event(start: str) -> Callable[[World], Awaitable[Run]]:
    """An event of this start."""

    async def begin(it: World) -> Run:
        _open_project(it)
        request = InboundRequest(start=start, event=EVENT, sender=Sender(door="webhook:mine"))
        return await it.start_raw(request, workflow_type="Inbound", id=f"start:{start}:{it.queue}")

    return begin
