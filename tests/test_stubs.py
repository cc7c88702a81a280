"""The typed shells of `perdure.stubs` have the names, arguments and results of the workflows that they stand for."""

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from temporalio import workflow

from perdure import stubs
from perdure.contracts.conversation import Forgotten, LaneState, Submitted
from perdure.contracts.run.events import BeginEvent, CompletedEvent, EscalatedEvent
from perdure.contracts.run.state import Continuation
from perdure.features.follow_ups.contract import FollowUpState, LifecycleEvent
from perdure.features.follow_ups.workflow import FollowUp, _begin_follow_up
from perdure.registry import features
from perdure.workflows.agent_run.agent_run import AgentRun
from perdure.workflows.agent_run.start import begin_run
from perdure.workflows.conversation import Conversation, begin_lane
from tests.reference.workflow import handlers_of, models_in, models_read

PAIRS: list[tuple[type, type]] = [
    (stubs.AgentRun, AgentRun),
    (stubs.Conversation, Conversation),
    (stubs.FollowUp, FollowUp),
]
# Between Perdure's own workflows and activities, and not for others.
INTERNAL = {
    ("AgentRun", "snapshot"),
    ("AgentRun", "result"),
    ("AgentRun", "watch_end"),
    ("Conversation", "steered"),
    ("Conversation", "run_ended"),
    ("FollowUp", "run_ended"),
}
INTERNAL_STARTS = {BeginEvent, Continuation, LaneState, FollowUpState}
# Handlers answer in plain JSON, which these models describe; the plays of tests/workflows/test_plugin.py read them.
PLAIN_ANSWERS = {("Conversation", "submit"): Submitted, ("Conversation", "forget"): Forgotten}


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())[1:]


def named(shell: type) -> str:
    return workflow._Definition.must_from_class(shell).name or ""


def handlers() -> Iterator[Any]:
    for shell, real in PAIRS:
        theirs = {handler.name: handler for handler in handlers_of(real)}
        for handler in handlers_of(shell):
            name = f"{named(shell)}.{handler.name}"
            yield pytest.param(real, handler, theirs.get(handler.name), id=name)


HANDLERS = pytest.mark.parametrize(("real", "ours", "theirs"), list(handlers()))


@pytest.mark.parametrize(("shell", "real"), PAIRS, ids=lambda each: each.__name__)
def test_a_shell_has_every_public_name_of_its_workflow_and_no_other(shell: type, real: type) -> None:
    ours = {(handler.kind, handler.name) for handler in handlers_of(shell)}
    theirs = {
        (handler.kind, handler.name) for handler in handlers_of(real) if (named(real), handler.name) not in INTERNAL
    }
    assert (named(shell), ours) == (named(real), theirs)


@HANDLERS
def test_a_shells_handler_takes_what_the_workflow_reads(real: type, ours: Any, theirs: Any) -> None:
    hints = typing.get_type_hints(ours.function)
    taken = [model for parameter in parameters_of(ours.function) for model in models_in(hints[parameter.name])]
    assert set(taken) == set(models_read(real, theirs.function))
    assert len(parameters_of(ours.function)) <= 1


def source_of(owner: type, function: Callable[..., Any]) -> str:
    """The code of a handler, and of what it hands its arguments to."""
    code = inspect.getsource(inspect.unwrap(function))
    for helper in re.findall(r"(?<!def )\b(_\w+)\([^()]*\bargs\b", code):
        code += source_of(owner, getattr(owner, helper, None) or getattr(inspect.getmodule(owner), helper))
    return code


@HANDLERS
def test_a_shells_argument_is_optional_where_that_of_the_workflow_is(real: type, ours: Any, theirs: Any) -> None:
    optional = [parameter.default is None for parameter in parameters_of(ours.function)]
    assert optional in ([], ["read_optional_argument(" in source_of(real, theirs.function)])


@HANDLERS
def test_a_shells_handler_answers_what_the_workflow_answers(real: type, ours: Any, theirs: Any) -> None:
    answer = PLAIN_ANSWERS.get((named(real), ours.name))
    declared = typing.get_type_hints(theirs.function)["return"]
    assert typing.get_type_hints(ours.function)["return"] == (answer or declared)
    assert answer is None or declared == dict[str, Any]


@pytest.mark.parametrize(
    ("shell", "begin", "results"),
    [
        (stubs.AgentRun, begin_run, {CompletedEvent, EscalatedEvent}),
        (stubs.Conversation, begin_lane, set()),
        (stubs.FollowUp, _begin_follow_up, {LifecycleEvent}),
    ],
)
def test_a_shell_starts_with_what_the_workflow_reads(shell: Any, begin: Any, results: set[type]) -> None:
    hints = typing.get_type_hints(shell.run)
    end = hints.pop("return")
    (start,) = hints.values()
    assert set(models_in(start)) == set(models_read(begin, begin)) - INTERNAL_STARTS
    assert set(models_in(end)) == results


def test_a_name_of_a_feature_is_found_when_it_is_used_and_no_other_name_is() -> None:
    targets = [target for feature in features().values() for target in feature.stubs]
    assert {target.partition(":")[2] for target in targets} == set(stubs.__all__) - vars(stubs).keys()
    assert [getattr(stubs, name, None) for name in stubs.__all__].count(None) == 0
    assert not hasattr(stubs, "NoSuchWorkflow")
