"""Notices to people, and events of theirs that begin work, in the scenarios."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from perdure.contracts.people import NoticeKind, NoticeRoute, Sender
from perdure.features.notices.channels import Channel
from perdure.features.notices.contract import Notice, NoticeRequest
from perdure.features.project_questions.contract import QuestionInput
from perdure.features.pushes.contract import PushStart, PushTarget, StateDelivery
from perdure.features.starts.contract import InboundEvent, InboundRequest
from perdure.features.starts.rules import compile_start
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


class SilentPush:
    """Takes every state."""

    async def send(self, _delivery: StateDelivery) -> None:
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
    parts = {
        "notices": (Channel(ROUTE, ("*",), SilentSender()),),
        "starts": tuple(_compile(name, **changes) for name, changes in STARTS.items()),
        "pushes": SilentPush(),
    }
    object.__setattr__(it.project, "parts", parts)


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
        request = NoticeRequest(notice=notice, routes=(ROUTE.evolve(channel=channel),))
        return await it.start_raw(request, workflow_type="Notify", id=f"notice:{run_id}:played")

    return begin


async def begins_shared_calls(it: World) -> Run:
    """The calls of a request, which two runs reserve one after the other; nobody uses them any more."""
    shared = await it.start_raw({"root": "r1"}, workflow_type="SharedCalls", id=f"calls:{it.queue}")
    for run in ("r1", "r1.1-a"):
        call = {"tool_use_id": f"toolu_{run}", "tool": "refund", "arguments": {"cents": 1}}
        await shared.execute_update("reserve", {"run": run, "calls": [call], "needs_history": True})
    await shared.cancel()
    return shared


def begins_question(*, is_settled: bool) -> Callable[[World], Awaitable[Run]]:
    """A question of the project, which is settled by its feature, or answered by a person."""

    async def begin(it: World) -> Run:
        _open_project(it)
        name = f"q-{it.queue}"
        question = QuestionInput(id=name, subject="gone", text="may it go on?", options=("yes", "no"))
        asked = await it.start_raw(question, workflow_type="ProjectQuestion", id=f"question:{name}")
        await asked.signal("wait", {"workflow_id": "run:waits"})
        if is_settled:
            await asked.signal("human_input", {"option": "perhaps"})
            await asked.signal("settle", {"option": "yes", "by": "ann"})
        else:
            await asked.execute_update("answer", {"option": "yes", "by": "ann"})
        return asked

    return begin


def begins_push(*, is_run: bool) -> Callable[[World], Awaitable[Run]]:
    """The states of a run that has ended, or of none."""

    async def begin(it: World) -> Run:
        _open_project(it)
        run_id = (await it.run_to_end()).id.removeprefix("run:") if is_run else "nobody"
        push = PushStart(run_id=run_id, context="c1", target=PushTarget(id="p1", url="https://example.com/hook"))
        return await it.start_raw(push, workflow_type="Push", id=f"push:{run_id}:{it.queue}")

    return begin


def begins_event(start: str) -> Callable[[World], Awaitable[Run]]:
    """An event of this start."""

    async def begin(it: World) -> Run:
        _open_project(it)
        request = InboundRequest(start=start, event=EVENT, sender=Sender(door="webhook:mine"))
        return await it.start_raw(request, workflow_type="Inbound", id=f"start:{start}:{it.queue}")

    return begin
