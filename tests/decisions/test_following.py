"""What the `workflow_*` tools ask for: ids from the step, defaults from the run, errors that say what to do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.conversation import Headers
from perdure.contracts.run.limits import Share, Spent
from perdure.contracts.run.state import Call, Inheritance, RunState
from perdure.contracts.run.turn import Usage
from perdure.contracts.tool import ToolOutcome
from perdure.decisions import ids
from perdure.decisions.run.limits import DEFAULTS, apply_requested, limits_in_force
from perdure.decisions.tools import FOLLOW_UP_TOOLS
from perdure.features.follow_ups.contract import CreateCommand, FollowUpCommands, TaskData
from perdure.features.follow_ups.rules.tools import (
    build_follow_up_commands,
    follow_up_share,
    format_command_ids,
    smaller_share,
)
from tests.decisions.runs import new_call, new_state

REPLY = {"description": "B", "channelId": "c", "messageId": "m"}
DEFINITION = {"definition": {"summary": "Lunch."}}
WAIT = {"kind": "wait", "description": "d", "input": {"delayMs": 5}}


def commands_of(state: RunState, call: Call) -> FollowUpCommands:
    commands = build_follow_up_commands(state, call)
    assert isinstance(commands, FollowUpCommands), commands
    return commands


def create_of(state: RunState, **fields: Any) -> CreateCommand:
    """The command by which a run opens a follow-up."""
    create = commands_of(state, new_call("workflow_create", **{"arguments": DEFINITION, **fields})).create
    assert create is not None
    return create


def task_of(**arguments: Any) -> TaskData:
    """The task of a run's wait for a reply."""
    task = commands_of(new_state(), new_call("workflow_wait_for_reply", arguments={**REPLY, **arguments})).task
    assert task is not None
    return task.data


def rejection(state: RunState, call: Call) -> str:
    outcome = build_follow_up_commands(state, call)
    assert isinstance(outcome, ToolOutcome)
    assert outcome.error is not None
    return outcome.error.message


def test_without_more_a_follow_up_is_the_runs_own() -> None:
    create = create_of(new_state())
    own = Headers(request_id="R1", session_id="R1", request_client="perdure")
    assert (create.headers, create.data.definition.origin, create.data.run_id) == (own, own, "R1")
    target = create.data.definition.resume_target
    assert (target.session_id, target.request_client, target.mention_user_id) == ("R1", "perdure", None)


def test_runs_whose_long_ids_begin_alike_go_on_apart() -> None:
    sessions = set()
    for ending in "ab":
        state = new_state(run_id=f"{'x' * 300}.1-{ending}")
        create = create_of(state)
        sessions.add(create.data.definition.resume_target.session_id)
    assert len(sessions) == 2


def test_a_turn_of_a_conversation_gives_its_requests_headers() -> None:
    headers = Headers(request_id="discord:x:1", session_id="x", request_client="discord", user_id="A")
    state = new_state(headers=headers, conversation_id="x", sessions=("y",))
    target = {"definition": {"summary": "s", "resumeTarget": {"session_id": "y"}}}
    create = create_of(state, arguments=target)
    assert (create.headers, create.data.definition.origin) == (headers, headers)
    assert create.data.definition.resume_target.session_id == "y"
    assert create.data.definition.resume_target.request_client == "discord"


def test_a_resumed_run_asks_for_the_same_follow_up_and_task() -> None:
    heir = new_state(run_id="R1.r2", inherited=(Inheritance(run_id="R1", through=3),))
    for tool, arguments in (("workflow_create", DEFINITION), ("workflow_wait_for_reply", REPLY)):
        call = new_call(tool, step=2, arguments=arguments)
        assert format_command_ids(commands_of(heir, call)) == format_command_ids(commands_of(new_state(), call))
        later = new_call(tool, step=4, arguments=arguments)
        assert format_command_ids(commands_of(heir, later)) != format_command_ids(commands_of(new_state(), later))


def test_a_wait_alone_creates_its_follow_up() -> None:
    commands = commands_of(
        new_state(goal="lunch"), new_call("workflow_wait_for_reply", arguments={**REPLY, "timeoutMs": 5})
    )
    assert commands.create is not None
    assert commands.task is not None
    assert commands.create.data.definition.summary.startswith("lunch")
    assert commands.task.data.workflow_id == commands.create.data.workflow_id
    assert commands.task.data.input == {"channelId": "c", "messageId": "m", "timeoutMs": 5}
    own = ids.follow_up_id("R1", 2)
    added = commands_of(
        new_state(), new_call("workflow_wait_for_reply", step=3, arguments={**REPLY, "workflowId": own})
    )
    assert added.create is None
    assert format_command_ids(added)["workflowId"] == own


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        (
            "workflow_create",
            {"definition": {"summary": "s", "resumeTarget": {"request_client": "slack"}}},
            "leave it out",
        ),
        ("workflow_create", {"definition": {"summary": "s", "resumeTarget": {"session_id": "ann"}}}, "not allowed"),
        ("workflow_create", {"definition": {"summary": "s", "origin": {"user_id": "U-CEO"}}}, "`origin.user_id`"),
        ("workflow_create", {"definition": {"summary": "s", "origin": {"session_id": "ann"}}}, "`origin.session_id`"),
        ("workflow_create", {"definition": {"summary": "s", "resumeTarget": {"mention_user_id": "A. Now"}}}, "id of a"),
        ("workflow_task_create", {"workflowId": "f", **WAIT}, "no follow-up of this run"),
        ("workflow_wait_for_reply", {**REPLY, "workflowId": "f"}, "no follow-up of this run"),
    ],
)
def test_ids_of_others_are_refused(tool: str, arguments: dict[str, Any], error: str) -> None:
    assert error in rejection(new_state(sessions=("y",)), new_call(tool, step=3, arguments=arguments))


def test_follow_ups_share_what_their_run_has_left() -> None:
    state = new_state(step=3, follow_ups=1, usage=Usage(input=400))
    state = state.evolve(limits=apply_requested(state.limits, {"max_steps": 9, "budget_tokens": 1000}))
    create = create_of(state)
    assert create.data.share == Share(steps=3, tokens=300, follow_ups=4)
    resumed = limits_in_force(state.evolve(share=create.data.share, requested={}), DEFAULTS)
    assert (resumed.max_steps, resumed.budget_tokens, resumed.max_follow_ups) == (3, 300, 4)


def test_follow_ups_of_subtasks_count_too() -> None:
    used = new_state(follow_ups=4, delegated=Spent(steps=2, follow_ups=6))
    outcome = build_follow_up_commands(used, new_call("workflow_create", arguments=DEFINITION))
    assert isinstance(outcome, ToolOutcome)
    assert follow_up_share(used.evolve(follow_ups=1)).follow_ups == 3


def test_a_chain_ends_where_its_allowance_does() -> None:
    """Each resumed run gets a share of what is left, so no chain and no tree of follow-ups goes on for ever."""
    state, count = new_state(), 0
    while not isinstance(
        made := build_follow_up_commands(state, new_call("workflow_create", arguments=DEFINITION)), ToolOutcome
    ):
        assert made.create is not None
        share = smaller_share(made.create.data.share, follow_up_share(state.evolve(follow_ups=1)))
        state = new_state(share=share)
        state = state.evolve(limits=limits_in_force(state, DEFAULTS))
        count += 1
    assert count == 10
    assert made.error is not None
    assert "max_follow_ups" in made.error.message


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("workflow_create", {**DEFINITION, "workflowId": "x"}),
        ("workflow_wait_for_reply", {**REPLY, "workflowId": None}),
    ],
)
def test_a_workflow_id_beside_a_creation_does_not_lift_the_limit(tool: str, arguments: dict[str, Any]) -> None:
    assert "max_follow_ups" in rejection(new_state(follow_ups=10), new_call(tool, arguments=arguments))


@pytest.mark.parametrize(
    ("platform", "kind", "more"),
    [
        (None, "discord.wait_for_reply", {}),
        ("discord", "discord.wait_for_reply", {}),
        (" Discord", "discord.wait_for_reply", {}),
        ("slack", "wait_for_reply", {"platform": "slack"}),
    ],
)
def test_the_platform_of_a_wait_says_which_kind_of_task_it_is(
    platform: str | None, kind: str, more: dict[str, str]
) -> None:
    task = task_of(platform=platform)
    assert (task.kind, task.input) == (kind, {"channelId": "c", "messageId": "m", **more})


def test_a_wait_is_for_what_comes_after_a_message_on_other_platforms() -> None:
    assert task_of(platform="slack", after="12.5").input["after"] == "12.5"
    wrong = new_call("workflow_wait_for_reply", arguments={**REPLY, "platform": "slack", "after": "the last"})
    assert "after: expected the id of your own message" in rejection(new_state(), wrong)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
OF_WAITS = ("description", "input", "channelId", "platform", "after")
NAMES = ("definition", "summary", "origin", "resumeTarget", "workflowId", "kind", *OF_WAITS)


@pytest.mark.parametrize("tool", FOLLOW_UP_TOOLS)
@given(given_=st.dictionaries(st.sampled_from(NAMES), JSON | st.fixed_dictionaries({"summary": JSON, "origin": JSON})))
def test_whatever_the_model_writes_is_a_command_or_an_error_in_a_line(tool: str, given_: dict[str, Any]) -> None:
    commands = build_follow_up_commands(new_state(), new_call(tool, arguments=given_))
    if isinstance(commands, ToolOutcome):
        assert commands.error is not None
        assert commands.error.kind == "invalid_arguments"
        assert commands.error.message
