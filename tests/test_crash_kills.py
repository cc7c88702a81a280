"""The kills for a history, and the comparison of a killed play with the whole one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.tool import Effect
from perdure.features.proof.contract import PlayFacts, PlayTool, Target
from perdure.features.proof.rules import find_differences, kill_points, plan_kills, tools_in


def history(*events: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": number, "type": kind, **fields} for number, (kind, fields) in enumerate(events, 1)]


def scheduled(activity: str, name: str = "call_tool", **request: Any) -> tuple[str, dict[str, Any]]:
    fields = {"activity_id": activity, "activity_type": {"name": name}, "input": [request], "summary": name}
    return "activity_task_scheduled", fields


RUN = history(
    ("workflow_execution_started", {}),
    ("workflow_task_scheduled", {}),
    ("workflow_task_started", {}),
    ("workflow_task_completed", {}),
    scheduled("1", tool="charge", effect="once"),
    ("activity_task_started", {"scheduled_event_id": 5, "attempt": 1}),
    ("activity_task_completed", {"scheduled_event_id": 5}),
    ("workflow_task_scheduled", {}),
    ("workflow_task_started", {}),
    ("workflow_task_completed", {}),
    ("workflow_execution_completed", {}),
)


def test_each_event_of_a_history_has_the_kills_just_before_and_just_after_it() -> None:
    shown = [
        (row.type, row.before and row.before.name, row.after and row.after.name, row.server and row.server.name)
        for row in plan_kills(RUN)
    ]
    assert shown == [
        ("workflow_execution_started", None, "worker-event-2", "server-event-2"),
        ("workflow_task_scheduled", None, "worker-event-2", "server-event-2"),
        ("workflow_task_started", "worker-event-2", "worker-event-3", "server-event-3"),
        ("workflow_task_completed", "worker-task-4", "worker-event-5", "server-event-5"),
        ("activity_task_scheduled", "worker-task-4", "worker-event-5", "server-event-5"),
        ("activity_task_started", "worker-event-5", "worker-begin-1", None),
        ("activity_task_completed", "worker-end-1", "worker-event-8", "server-event-8"),
        ("workflow_task_scheduled", "worker-event-6", "worker-event-8", "server-event-8"),
        ("workflow_task_started", "worker-event-8", "worker-event-9", "server-event-9"),
        ("workflow_task_completed", "worker-task-10", "worker-event-11", "server-event-11"),
        ("workflow_execution_completed", "worker-task-10", "worker-event-11", "server-event-11"),
    ]


def test_the_kills_of_a_subtask_are_its_own() -> None:
    own, subtask = (set(kill_points(plan_kills(RUN, name), Target)) for name in ("", "1-look"))
    assert len(own) == len(subtask)
    assert not own & subtask
    assert {point.name for point in subtask} == {f"{point.name}-of-1-look" for point in own}


def test_a_kill_that_several_events_share_is_played_once() -> None:
    names = [point.name for point in kill_points(plan_kills(RUN), Target)]
    assert len(names) == len(set(names))
    assert {point.target for point in kill_points(plan_kills(RUN), [Target.server])} == {Target.server}


def test_the_tools_of_a_history_are_those_of_its_activities_with_their_attempts() -> None:
    events = history(
        scheduled("1", tool="look"),
        scheduled("2", name="read_and_reflect", reads=[{"tool": "look"}, {"tool": "list"}]),
        scheduled("3", name="plan", turn=1),
        ("activity_task_started", {"scheduled_event_id": 1, "attempt": 2}),
    )
    assert [(tool.tool, tool.effect, tool.attempts) for tool in tools_in(events)] == [
        ("look", Effect.read, 2),
        ("look", Effect.read, 1),
        ("list", Effect.read, 1),
    ]


WHOLE = PlayFacts(status="completed", text="done", requests={"turn 1": 1, "turn 2": 1}, check="1 charge")


def test_a_play_that_only_repeats_the_lost_request_of_the_model_is_the_same() -> None:
    assert find_differences(WHOLE, WHOLE.evolve(requests={"turn 1": 2, "turn 2": 1})) == ()


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"status": "failed"}, "status: 'failed' and not 'completed'"),
        ({"text": "other"}, "text: 'other' and not 'done'"),
        ({"result": {"total": 3}}, "result: \"{'total': 3}\" and not 'no result'"),
        ({"result": None}, "result: 'None' and not 'no result'"),
        ({"artifacts": {"artifacts/a.md": "0"}}, "artifact artifacts/a.md: unexpected"),
        ({"requests": {"turn 1": 3, "turn 2": 1}}, "model: turn 1 was requested 3 times"),
        ({"requests": {"turn 1": 1}}, "model: 1 turns and not 2"),
        ({"check": "2 charges"}, "check: '2 charges' and not '1 charge'"),
        ({"error": "stuck"}, "stuck"),
        ({"was_killed": False}, "the play did not come to this moment: it took another way before the kill"),
    ],
)
def test_each_difference_of_a_play_is_found(change: dict[str, Any], finding: str) -> None:
    assert find_differences(WHOLE, WHOLE.evolve(**change)) == (finding,)


@pytest.mark.parametrize(
    ("effect", "attempts", "words"),
    [
        (Effect.read, 2, "pay is declared read, was repeated, and changed something"),
        (Effect.keyed, 2, "pay is declared keyed, was repeated, and does not honour its key"),
        (Effect.once, 1, "pay: declared once, and answered before it was done"),
    ],
)
def test_the_declaration_that_explains_a_difference_outside_is_named(effect: Effect, attempts: int, words: str) -> None:
    tools = (PlayTool(tool="pay", effect=effect, scheduled=5, attempts=attempts),)
    (finding,) = find_differences(WHOLE, WHOLE.evolve(check="other", tools=tools))
    assert words in finding


@given(st.lists(st.sampled_from(["timer_fired", "marker_recorded", "workflow_task_completed", "timer_started"])))
def test_the_kills_of_any_history_are_in_it(kinds: list[str]) -> None:
    events = history(("workflow_execution_started", {}), *((kind, {}) for kind in kinds))
    for row in plan_kills(events):
        assert row.after is not None
        assert row.event <= row.after.moment.at <= len(events)
        assert row.before is None or 1 <= row.before.moment.at <= row.event
