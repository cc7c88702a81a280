"""The verdict on each file, by the record of its task, and whose turn it is (C2 to C5, C7)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.conversation import TurnEnd
from perdure.contracts.failures import RunFailure
from perdure.decisions import ids
from perdure.features.mailbox.contract import (
    Ack,
    Delivery,
    DeliveryVerdict,
    InboxMessage,
    MailDispatch,
    MessageResult,
    ReplyHead,
    Stage,
    TaskHead,
    TaskRecord,
    TaskState,
)
from perdure.features.mailbox.rules import admission, turns
from perdure.features.mailbox.rules.admission import (
    FileJudgement,
    add_transition,
    allow_again,
    close_message,
    ending_of,
    judge_file,
    may_retry,
    new_message,
    next_attempt,
    put_open,
    request_of,
    sent_message,
    to_end,
)
from perdure.features.mailbox.rules.turns import TurnQueue

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DONE = MessageResult(ack=Ack.succeeded, details="the run is completed")
FAILED = MessageResult(ack=Ack.failed, details="the run failed", fault="failed")
EMPTY = TaskRecord()


def delivery(name: str = "m", file: str = "", content: str = "a", kind: str = "task", **fields: Any) -> Delivery:
    head = {"message_id": name, "plan_id": "p", "task_id": "t", "from": "bob"}
    is_task = kind == "task"
    read = TaskHead.model_validate({**head, "type": "task"}) if is_task else reply_head(head)
    sha256 = ids.message_key(name, content) + "0" * 44
    return Delivery(file=file or f"{name}.md", plan="p", sha256=sha256, head=read, **fields)


def reply_head(head: dict[str, Any]) -> ReplyHead:
    return ReplyHead.model_validate({**head, "type": "reply", "status": "done"})


def judge(record: TaskRecord, found: Delivery) -> tuple[TaskRecord, FileJudgement]:
    assert found.head is not None
    after, judged = judge_file(record, new_message(found, found.head), found, NOW)
    again, same = judge_file(after, new_message(found, found.head), found, NOW)
    assert (again, same.message) == (after, judged.message)  # a bridge that was killed judges it again
    if judged.verdict is DeliveryVerdict.admitted or judged.message.stage is Stage.ending:
        assert same.verdict is DeliveryVerdict.known
    else:
        assert same == judged
    return after, judged


def running(found: Delivery) -> TaskRecord:
    """The record of a task whose message runs."""
    record, judged = judge(EMPTY, found)
    _, _, run_id = request_of("writer", judged.message)
    return put_open(record, judged.message.evolve(stage=Stage.running, run_id=run_id))


def over(found: Delivery, ending: MessageResult = DONE) -> TaskRecord:
    """The record of a task whose message has ended."""
    record = running(found)
    return close_message(record, to_end(record.open[0], ending, NOW))


def test_a_new_message_is_admitted_and_its_file_is_known_from_then_on() -> None:
    record, judged = judge(EMPTY, delivery())
    assert (judged.verdict, judged.message.stage, judged.message.attempt) == ("admitted", Stage.admitted, 1)
    assert record.open == (judged.message,)


@pytest.mark.parametrize(
    ("found", "verdict", "why"),
    [
        (delivery(file="again.md"), "duplicate", "SKIPPED_DUPLICATE"),
        (delivery("other"), "task_in_progress", "SKIPPED_TASK_IN_PROGRESS"),
        (delivery(content="b"), "task_in_progress", "SKIPPED_TASK_IN_PROGRESS"),  # the id of another message
        (delivery(kind="reply", name="r"), "admitted", ""),
    ],
)
def test_what_comes_while_a_message_runs(found: Delivery, verdict: str, why: str) -> None:
    record, judged = judge(running(delivery()), found)
    assert (judged.verdict, judged.why) == (verdict, why)
    assert [message.message_id for message in record.open][:1] == ["m"]


@pytest.mark.parametrize(
    ("found", "verdict", "why"),
    [
        (delivery(), "duplicate", ""),  # its file is back, and only to be put away
        (delivery(file="again.md"), "duplicate", "SKIPPED_DUPLICATE"),
        (delivery("other"), "task_done", "RESULT_SENT_AGAIN"),
        (delivery(content="b"), "task_done", "RESULT_SENT_AGAIN"),
        (delivery(kind="reply", name="r"), "admitted", ""),
    ],
)
def test_what_comes_when_the_task_is_done(found: Delivery, verdict: str, why: str) -> None:
    record = over(delivery())
    _, judged = judge(record, found)
    assert (judged.verdict, judged.why) == (verdict, why)
    assert judged.run_id == (record.done if verdict == "task_done" else "")


def test_a_skipped_message_stays_skipped_whatever_became_of_the_task() -> None:
    record, _ = judge(running(delivery()), delivery("other"))
    record = close_message(record, to_end(record.open[0], FAILED, NOW))
    assert judge(record, delivery("other", file="other2.md"))[1].why == "SKIPPED_DUPLICATE"
    assert judge(record, delivery("other"))[1].why == "SKIPPED_TASK_IN_PROGRESS"


def test_a_failed_task_is_done_again_by_another_message() -> None:
    record = over(delivery(), FAILED)
    assert judge(record, delivery())[1] == FileJudgement(
        DeliveryVerdict.dead, judge(EMPTY, delivery())[1].message, "the run failed"
    )
    assert judge(record, delivery(file="copy.md"))[1].verdict is DeliveryVerdict.duplicate
    assert judge(record, delivery("other"))[1].verdict is DeliveryVerdict.admitted


def test_a_dead_letter_comes_back_as_the_next_attempt_of_its_message() -> None:
    record = over(delivery(), FAILED)
    key = new_message(delivery(), reply_head({"message_id": "m", "plan_id": "p", "task_id": "t", "from": "b"})).key
    again, judged = judge(allow_again(record, key), delivery(file="restored.md"))
    assert (judged.verdict, judged.message.attempt) == (DeliveryVerdict.admitted, 2)
    assert allow_again(again, key) == again  # it is in hand
    assert allow_again(record, "nothing") == record


def test_a_faulty_message_is_answered_and_becomes_a_dead_letter() -> None:
    record, judged = judge(EMPTY, delivery(fault="inputs: two files"))
    assert (judged.verdict, judged.message.stage) == (DeliveryVerdict.dead, Stage.ending)
    assert judged.message.ending == MessageResult(ack=Ack.failed, details="inputs: two files", fault="BadMessage")
    record = close_message(record, judged.message)
    assert (record.open, record.done) == ((), None)
    assert judge(record, delivery())[1].why == "inputs: two files"


def test_a_blocked_message_is_taken_when_its_inputs_are_there() -> None:
    record, judged = judge(EMPTY, delivery(missing=("x", "y")))
    assert (judged.verdict, judged.message.stage) == (DeliveryVerdict.blocked, Stage.blocked)
    record, judged = judge(record, delivery(missing=("y",)))
    assert judged.verdict is DeliveryVerdict.blocked
    record, judged = judge_open(record, delivery(undecided=("x",)))
    assert (judged.verdict, judged.message.undecided) == (DeliveryVerdict.admitted, ("x",))
    assert [transition.state for transition in judged.message.transitions] == [TaskState.blocked]
    assert judge(record, delivery())[1].verdict is DeliveryVerdict.known


def test_a_blocked_message_may_turn_out_faulty() -> None:
    record, _ = judge(EMPTY, delivery(missing=("x",)))
    _, judged = judge_open(record, delivery(fault="its file is gone"))
    assert (judged.verdict, judged.message.stage) == (DeliveryVerdict.dead, Stage.ending)


def judge_open(record: TaskRecord, found: Delivery) -> tuple[TaskRecord, FileJudgement]:
    assert found.head is not None
    return judge_file(record, new_message(found, found.head), found, NOW)


def test_replies_wait_for_no_inputs() -> None:
    assert judge(EMPTY, delivery(kind="reply", missing=("x",)))[1].verdict is DeliveryVerdict.admitted


@pytest.mark.parametrize("end", [end for end in TurnEnd if end is not TurnEnd.completed])
def test_every_other_end_is_a_failure_that_says_why(end: TurnEnd) -> None:
    ending = ending_of(end)
    assert (ending.ack, ending.fault, bool(ending.details)) == (Ack.failed, end, True)


@pytest.mark.parametrize(
    ("error", "steps", "attempt", "again"),
    [
        (RunFailure.rate_limited, 0, 1, True),
        (RunFailure.model_unavailable, 0, 2, True),
        (RunFailure.model_unavailable, 0, 3, False),
        (RunFailure.model_unavailable, 1, 1, False),
        ("ToolError", 0, 1, False),
        (None, 0, 1, False),
    ],
)
def test_only_what_has_done_nothing_and_may_pass_is_tried_again(
    error: str | None, steps: int, attempt: int, *, again: bool
) -> None:
    assert may_retry(error, steps, attempt) is again


def test_a_run_that_did_nothing_is_tried_again_after_a_pause_that_grows() -> None:
    message = judge(EMPTY, delivery())[1].message
    message = add_transition(add_transition(message, TaskState.consumed, NOW), TaskState.running, NOW)
    pauses = []
    for attempt in (2, 3):
        before = request_of("writer", message)
        message = next_attempt(to_end(message, FAILED, NOW), NOW)
        assert (message.attempt, message.stage, message.ending, message.run_id) == (attempt, Stage.admitted, None, None)
        assert TaskState.failed not in {transition.state for transition in message.transitions}
        assert add_transition(message, TaskState.consumed, NOW) == message  # once over all attempts
        assert request_of("writer", message)[0] == before[0]  # in the same lane, as another request
        assert len({before[1:], request_of("writer", message)[1:]}) == 2
        pauses.append(message.not_before)
        message = add_transition(message, TaskState.running, NOW)
    assert pauses == [NOW + timedelta(seconds=10), NOW + timedelta(seconds=20)]


def test_a_subtask_for_an_outside_peer_is_open_until_it_is_answered_and_is_no_task_of_the_folder() -> None:
    sent = sent_message(MailDispatch(delegation="d", plan_id="p", task_id="t", subtask_id="s", sender="lead"))
    record = put_open(EMPTY, sent)
    assert (record.open, record.seen) == ((sent,), {})
    assert judge(record, delivery())[1].verdict is DeliveryVerdict.admitted
    assert close_message(record, sent) == EMPTY


def test_a_record_remembers_the_latest_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_SEEN", 3)
    record = running(delivery())
    for number in range(5):
        record, _ = judge(record, delivery(f"m{number}"))
    assert len(record.seen) == 3
    assert judge(record, delivery("m4", file="copy"))[1].verdict is DeliveryVerdict.duplicate
    assert TaskRecord.model_validate_json(record.model_dump_json()) == record


# turns


def waiting(plan: str, task: str, name: str = "") -> InboxMessage:
    return InboxMessage(
        key=f"{plan}{task}{name}", task=f"{plan}{task}", plan=plan, message_id=name or task, plan_id=plan, task_id=task,
        sender="bob", stage=Stage.admitted,
    )  # fmt: skip


def take_all(queue: TurnQueue, running: tuple[str, ...] = ()) -> list[str]:
    taken = []
    while (message := queue.take(running)) is not None:
        taken.append(message.key)
    return taken


def filled(*messages: InboxMessage) -> TurnQueue:
    queue = TurnQueue()
    for message in messages:
        queue.add(message)
    return queue


def test_a_flood_in_one_plan_does_not_starve_another() -> None:
    queue = filled(*(waiting("many", f"{n:02}") for n in range(50)), *(waiting("few", f"{n}") for n in range(3)))
    assert take_all(queue)[:6] == ["many00", "few0", "many01", "few1", "many02", "few2"]
    assert len(queue) == 0


def test_tasks_of_one_plan_take_turns_too() -> None:
    queue = filled(
        *(waiting("p", "many", str(n)) for n in range(9)), waiting("p", "few", "0"), waiting("p", "few", "1")
    )
    assert take_all(queue)[:4] == ["pmany0", "pfew0", "pmany1", "pfew1"]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30))
def test_every_plan_is_served_within_a_round_even_if_others_refill(plans: list[str]) -> None:
    queue = filled(*(waiting(plan, f"{n}") for n, plan in enumerate(plans)))
    last = waiting("last", "x")
    queue.add(last)
    for number in range(5):
        message = queue.take(())
        assert message is not None
        if message.key == last.key:
            assert number <= len(set(plans))
            return
        queue.add(waiting(message.plan_id, f"more{number}"))
    raise AssertionError("it was not served")


def test_so_many_run_at_once_and_a_plan_that_has_none_running_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_RUNNING", 2)
    queue = filled(waiting("a", "1"), waiting("b", "1"))
    assert queue.take(["a"]) == waiting("a", "1")
    assert queue.take(["a", "a"]) == waiting("b", "1")
    queue.add(waiting("a", "2"))
    assert queue.take(["a", "b"]) is None
    assert take_all(queue, ("a",)) == ["a2"]


def test_a_full_queue_has_room_for_plans_that_have_nothing_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_WAITING", 1)
    queue = filled(waiting("a", "1"))
    assert (queue.has_room("a"), queue.has_room("b")) == (False, True)
