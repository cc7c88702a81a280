from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.contracts.run.limits import SubtaskStatus
from perdure.contracts.run.state import RunStatus, RunView
from perdure.contracts.run.turn import Usage
from perdure.features.delegation.contract import DelegationState, DelegationStatus, SubtaskState
from perdure.features.mailbox.contract import Ack, InboxMessage, MessageResult, Stage
from perdure.features.mailbox.rules.files import is_of_another, render_task_page, status_of

AT = datetime(2026, 1, 1, tzinfo=UTC)


def message(**more: Any) -> InboxMessage:
    fields = {"key": "k", "task": "t", "plan": "p", "message_id": "m", "plan_id": "p", "task_id": "t1"}
    return InboxMessage.model_validate({**fields, "sender": "a", "stage": Stage.running, **more})


def view(status: RunStatus = RunStatus.running, turns: int = 1) -> RunView:
    return RunView(
        run_id="r",
        status=status,
        goal="g",
        agent="w",
        model="m",
        created_at=AT,
        updated_at=AT,
        step=0,
        max_steps=1,
        turns=turns,
        reframes=0,
        max_reframes=1,
        pending=(),
        completed_steps=(),
        workspace="",
        resumable=True,
        resume_from=None,
        artifacts=(),
        question=None,
        usage=Usage(),
        cost_usd=None,
        active_seconds=0,
        ignored=(),
    )


def delegation(status: DelegationStatus, *subtasks: SubtaskStatus) -> DelegationState:
    named = (
        SubtaskState(id=f"s{n}", agent="b", run_id=f"r{n}", status=each, outcome="found | it" if n == 0 else "")
        for n, each in enumerate(subtasks)
    )
    return DelegationState(status=status, subtasks=tuple(named))


RUNNING = delegation(DelegationStatus.running, SubtaskStatus.running, SubtaskStatus.waiting)
DONE = delegation(DelegationStatus.done, SubtaskStatus.done)
WELL = MessageResult(ack=Ack.succeeded, details="")
BAD = MessageResult(ack=Ack.failed, details="")


@pytest.mark.parametrize(
    ("of", "run", "delegations", "status"),
    [
        (message(), None, [], "planning"),
        (message(), view(turns=0), [], "planning"),
        (message(), view(), [], "in-progress"),
        (message(), view(), [RUNNING], "executing"),
        (message(), view(), [DONE, RUNNING], "executing"),
        (message(), view(), [DONE], "aggregating"),
        (message(), view(RunStatus.completed), [DONE], "done"),
        (message(), view(RunStatus.failed), [], "failed"),
        (message(ending=WELL), view(), [], "done"),
        (message(ending=BAD), None, [], "failed"),
    ],
)
def test_a_tasks_status_follows_from_its_run(
    of: InboxMessage, run: RunView | None, delegations: list[DelegationState], status: str
) -> None:
    assert status_of(of, run, delegations) == status


def test_the_page_of_a_task_that_is_delegated() -> None:
    page = render_task_page(message(), "Do it.\n", view(), [RUNNING], "")
    assert "mode: coordinating\nstatus: executing\n" in page
    assert "| s0 | b | dispatched |\n| s1 | b | pending |" in page
    assert "### s0\n\nfound | it" in page


def test_the_page_of_a_task_that_is_done() -> None:
    page = render_task_page(message(ending=WELL, sender='x"\ny'), "Do it.", view(), [], "Here it is.")
    assert page.startswith('---\ntask_id: t1\nplan_id: p\nfrom: "x\\" y"\nmode: direct\nstatus: done\n')
    assert page.endswith("## Result\n\nHere it is.\n")


@pytest.mark.parametrize(
    ("other", "is_another"),
    [
        ({}, False),
        ({"run_id": "r2", "sender": "b", "message_id": "m2"}, False),
        ({"plan_id": "q"}, True),
        ({"plan_id": "p 1"}, True),
        ({"subtask_id": "s"}, True),
        ({"task_id": "t1\nplan_id: p"}, True),
    ],
)
def test_a_page_says_whose_it_is(other: dict[str, str], is_another: bool) -> None:
    written = render_task_page(message(run_id="r"), "x", None, (), "").encode()
    assert is_of_another(written, message(**other)) is is_another
    assert not is_of_another(render_task_page(message(**other), "x", None, (), "").encode(), message(**other))


@pytest.mark.parametrize("text", [b"", b"my notes", b"---\nnotes: 1\n---\n"])
def test_an_invalid_page_is_not_of_another_task(text: bytes) -> None:
    assert not is_of_another(text, message())
