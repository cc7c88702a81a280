from datetime import UTC, datetime, timedelta
from typing import Any

from perdure.features.mailbox.contract import Ack, InboxMessage, Stage, TaskState, Transition
from perdure.features.mailbox.rules.files import add_duplicate, update_ack, update_task_state

AT = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return AT + timedelta(seconds=seconds)


def message(*states: TaskState, first: int = 0, **more: Any) -> InboxMessage:
    passed = tuple(Transition(state=state, at=at(number)) for number, state in enumerate(states, first))
    fields = {"key": "k", "task": "t", "plan": "p", "message_id": "m", "plan_id": "p", "task_id": "t1"}
    return InboxMessage.model_validate(
        {
            **fields,
            "sha256": "a" * 64,
            "sender": "a",
            "stage": Stage.running,
            "transitions": passed,
            **more,
        }
    )


def states(record: dict[str, Any]) -> list[str]:
    return [each["state"] for each in record["history"]]


CONSUMED, RUNNING, BLOCKED = TaskState.consumed, TaskState.running, TaskState.blocked
SUCCEEDED, FAILED = TaskState.succeeded, TaskState.failed


def test_an_ack_is_consumed_and_then_over_however_often_it_is_written() -> None:
    record = update_ack(None, message(), Ack.consumed, AT)
    assert update_ack(record, message(), Ack.consumed, at(1)) == record
    over = update_ack(record, message(run_id="r"), Ack.succeeded, at(2), "well")
    assert update_ack(over, message(run_id="r"), Ack.succeeded, at(3), "well") == over
    assert update_ack(over, message(), Ack.consumed, at(4)) == over
    assert (over["status"], over["details"], over["run_id"]) == ("SUCCEEDED", "well", "r")
    assert [each["status"] for each in over["history"]] == ["CONSUMED", "SUCCEEDED"]


def test_another_attempt_goes_on_in_the_same_ack() -> None:
    record = update_ack(update_ack(None, message(), Ack.consumed, AT), message(), Ack.failed, at(1), "badly")
    record = update_ack(record, message(attempt=2), Ack.consumed, at(2))
    record = update_ack(record, message(attempt=2), Ack.succeeded, at(3))
    assert [each["status"] for each in record["history"]] == ["CONSUMED", "FAILED", "CONSUMED", "SUCCEEDED"]


def test_a_duplicate_is_listed_once_and_changes_nothing_else() -> None:
    record = update_ack(None, message(), Ack.consumed, AT)
    twice = add_duplicate(
        add_duplicate(record, message(file="b.md"), "SKIPPED", at(1)), message(file="b.md"), "SKIPPED", at(2)
    )
    assert {**twice, "duplicates": []} == record
    assert [(each["status"], each["file"]) for each in twice["duplicates"]] == [("SUCCEEDED", "b.md")]
    assert (
        update_ack(add_duplicate(None, message(), "SKIPPED", AT), message(), Ack.consumed, AT)["status"] == "CONSUMED"
    )


def test_states_are_written_once_each_though_times_differ() -> None:
    record = update_task_state(None, message(CONSUMED), Transition(state=RUNNING, at=at(1)))
    assert update_task_state(record, message(CONSUMED), Transition(state=RUNNING, at=at(5))) == record
    over = update_task_state(record, message(CONSUMED, RUNNING, SUCCEEDED))
    assert states(over) == ["CONSUMED", "RUNNING", "SUCCEEDED"]
    assert update_task_state(over, message(CONSUMED, RUNNING, SUCCEEDED)) == over


def test_a_task_that_waits_for_inputs_and_a_person() -> None:
    record = update_task_state(None, message(BLOCKED))
    record = update_task_state(record, message(BLOCKED, CONSUMED), Transition(state=BLOCKED, at=at(7)))
    record = update_task_state(record, message(BLOCKED, CONSUMED, BLOCKED, RUNNING))
    record = update_task_state(record, message(BLOCKED, CONSUMED, BLOCKED, RUNNING, SUCCEEDED))
    assert states(record) == ["BLOCKED_WAITING_INPUT", "CONSUMED", "BLOCKED_WAITING_INPUT", "RUNNING", "SUCCEEDED"]


def test_a_redelivered_message_starts_again_below_its_history() -> None:
    record = update_task_state(None, message(CONSUMED, FAILED))
    record = update_task_state(record, message(CONSUMED, first=10, attempt=2))
    record = update_task_state(record, message(CONSUMED, RUNNING, SUCCEEDED, first=10, attempt=2))
    assert states(record) == ["CONSUMED", "FAILED", "CONSUMED", "RUNNING", "SUCCEEDED"]
    assert record["state"] == "SUCCEEDED"


def test_foreign_text_in_the_file_does_not_break_it() -> None:
    assert states(update_task_state({"history": [1, None, {"state": "X"}]}, message(CONSUMED)))[-1] == "CONSUMED"
    assert update_ack({"history": "?", "duplicates": 3}, message(), Ack.consumed, AT)["status"] == "CONSUMED"
