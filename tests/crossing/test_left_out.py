"""No command, route, event or kind of question is left out of the crossing: one that is new needs a shape or a door."""

import json
from typing import get_args

from perdure.cli import commands
from perdure.client import run_events
from perdure.contracts.run.signals import QuestionKind
from perdure.gateway.app import ROUTERS
from perdure.registry import event_readers, load, optional
from tests.crossing.doors import DOORS
from tests.crossing.shapes import SHAPES, Crossing

# With the place where it is tried beside the other features.
COMMANDS_ELSEWHERE = {
    "completion": "reads no run",
    "new": "reads no run",
    "dev": "tests/e2e/test_operations.py",
    "redeliver": "tests/e2e/test_people.py",
    "schedule": "tests/e2e/test_schedule.py",
    "deny": "the same code as approve",
    "demo": "has a project of its own: tests/e2e/test_demo.py",
}
EVENTS_ELSEWHERE = {
    "partial_text": "only while a reply is streamed",
    "rate_limited": "only while a provider refuses",
    "batch_wait": "only while a batch is open",
    "run_held": "only while a run is held; looked for there",
    "activity_retrying": "only while an attempt is awaited",
    "unreadable_event": "none is written by this version",
    "follow_up_commanded": "tests/workflows/test_watch.py",
    "activity_failed": "needs a failure of the worker's disk or code",
}
QUESTIONS_ELSEWHERE = {
    "resume_unsafe": "needs a killed worker: tests/chaos",
    "definition_changed": "needs a resume by another project: tests/workflows",
    "choice": "needs a start that asks: tests/workflows",
    "recovery": "needs a context that fills up again and again: tests/workflows",
}
ROUTES_ELSEWHERE = {
    "/.well-known/oauth-protected-resource/v1/mcp": "reads no run",
    "/a2a/{agent}": "tests/a2a, as the next one",
    "/a2a/{agent}/.well-known/agent-card.json": "",
    "/healthz": "reads no run",
    "/readyz": "reads no run",
    "/v1/ag-ui": "tests/ag_ui, as the next one",
    "/v1/ag-ui/{thread_id}/stream": "",
    "/v1/budgets": "tests/gateway/test_budgets.py, as the next two",
    "/v1/budgets/{name}/raise": "",
    "/v1/budgets/{name}/reset": "",
    "/v1/conversations": "tests/gateway/test_lists.py",
    "/v1/conversations/{conversation_id}/turns/{run_id}": "drops a turn before it begins",
    "/v1/agents": "reads no run",
    "/v1/dead-letters": "tests/gateway/test_lists.py",
    "/v1/events": "tests/gateway/test_webhooks.py",
    "/v1/follow-ups": "tests/gateway/test_lists.py",
    "/v1/mcp": "tests/mcp/test_tasks.py",
    "/v1/mcp/callback": "tests/gateway/test_mcp_logins.py and test_mcp_requesters.py, as the next one",
    "/v1/mcp/{name}/login": "",
    "/v1/mailboxes": "tests/gateway/test_lists.py",
    "/v1/overview": "tests/gateway/test_lists.py",
    "/v1/runs/{run_id}/fork": "tests/gateway/test_runs.py, as the next three",
    "/v1/runs/{run_id}/record": "",
    "/v1/runs/{run_id}/resume": "",
    "/v1/runs/{run_id}/steer": "",
    "/v1/schedules": "tests/gateway/test_lists.py",
    "/v1/ui/chat": "tests/web_ui, as the next three",
    "/v1/ui/chat/{chat_id}/messages": "",
    "/v1/ui/chat/{chat_id}/stream": "",
    "/v1/ui/runs/{run_id}/messages": "",
}


async def test_each_command_is_used(crossing: Crossing) -> None:
    assert set(commands()) - crossing.project.used - set(COMMANDS_ELSEWHERE) == set()


async def test_each_event_of_a_run_is_shown_by_some_shape(crossing: Crossing) -> None:
    seen: set[str] = set()
    for name in SHAPES:
        text = await DOORS["client stream()"].read(crossing, crossing.run_ids[name])
        seen |= {json.loads(line)["type"] for line in text.splitlines()}
    for reader in event_readers().values():
        load(reader)  # with the events of its feature
    kinds = {*get_args(run_events.RunEvent), *run_events.FeatureEvent.__subclasses__()} - {run_events.FeatureEvent}
    known = {kind.type for kind in kinds}
    assert known - seen - set(EVENTS_ELSEWHERE) == set()


async def test_each_kind_of_question_is_asked(crossing: Crossing) -> None:
    assert set(QuestionKind) - crossing.asked - set(QUESTIONS_ELSEWHERE) == set()


async def test_each_route_is_requested(crossing: Crossing) -> None:
    lines = (crossing.project.folder / "gateway.log").read_text(encoding="utf-8").splitlines()
    requested = {json.loads(line).get("route") for line in lines if line.startswith("{")}
    optional_ones = [load(row.routes) for row in optional().values() if row.routes]
    routes = {getattr(route, "path", "") for router in (*ROUTERS, *optional_ones) for route in router.routes}
    assert routes - requested - set(ROUTES_ELSEWHERE) == set()
