"""A mailbox's rules, without a server: one end each, order, fairness, bounds (C2, C3, C5, C7, C8, D2)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pydantic_core import to_json

from contracts.conversation import TurnEnd
from contracts.mail.commands import BridgeBatch, BridgeResult, BridgeResults, BridgeTaskKind
from contracts.mail.delivery import Ack, InboxMessage, MessageResult, Stage, TaskState
from contracts.mail.mailbox import Delivery, GiveUp, MailboxState, Redeliver, TurnEnded, TurnLookup
from contracts.mail.message import ReplyHead, TaskHead
from contracts.mail.peers import Dispatch
from decisions import ids
from decisions.mailbox import capacity, commands, peers
from decisions.mailbox import state as mailbox
from decisions.mailbox import view as mailbox_told
from decisions.mailbox.delivery import ending_of, may_try_again, new_letter, run_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EMPTY = MailboxState(agent="ada")
FAILED = MessageResult(ack=Ack.failed, details="no")
SENT = Dispatch(delegation="run:r/delegation:1", plan_id="p", task_id="r.1", subtask_id="a", sender="lead")


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def message(
    name: str, *, plan: str = "p", task: str = "", file: str = "", content: str = "a", **fields: Any
) -> Delivery:
    head = {"message_id": name, "plan_id": plan, "task_id": task or f"t-{name}", "from": "bob"}
    return Delivery(
        file=file or f"{name}.md",
        plan=plan,
        sha256=ids.message_key(name, content) + "0" * 44,
        head=TaskHead.model_validate({"type": "task", **head}),
        **fields,
    )


def reply(name: str, task: str, subtask: str) -> Delivery:
    head = {"type": "reply", "message_id": name, "plan_id": "p", "task_id": task, "subtask_id": subtask, "from": "eve"}
    return Delivery(
        file=f"{name}.md", plan="p", sha256="0" * 64, head=ReplyHead.model_validate({**head, "status": "done"})
    )


def deliver(state: MailboxState, *found: Delivery, folder: str = "f") -> tuple[MailboxState, list[str]]:
    state, answer = mailbox.judge_deliveries(state, folder, found, NOW)
    assert answer.open == len(state.letters)
    return state, [str(each) for each in answer.verdicts]


def admit(*found: Delivery, state: MailboxState = EMPTY) -> MailboxState:
    state, verdicts = deliver(state, *found)
    assert set(verdicts) == {"admitted"}
    return state


def carry(state: MailboxState, now: datetime = NOW, folder: str = "f", **answers: BridgeResult) -> MailboxState:
    """One `carry`, answered as `answers` has it for each kind of order."""
    state, request = commands.issue_batch(state, folder, now)
    return commands.apply_results(state, request, results(request, **answers), now)


def results(request: BridgeBatch, **answers: BridgeResult) -> BridgeResults:
    def done(kind: BridgeTaskKind, letter: InboxMessage) -> BridgeResult:
        if kind in answers:
            return answers[kind]
        is_taken = kind is BridgeTaskKind.take and not letter.is_reply
        return BridgeResult(run_id=run_id_of(letter), at=NOW) if is_taken else BridgeResult()

    return BridgeResults(done=tuple(done(each.kind, each.letter) for each in request.orders))


def run_id_of(letter: InboxMessage) -> str:
    return run_of("ada", letter.task, letter.key, letter.attempt)


def orders(state: MailboxState, now: datetime = NOW, folder: str = "f") -> list[tuple[str, str]]:
    return [(str(each.kind), each.letter.file) for each in commands.next_orders(state, folder, now)]


def turn_end(letter: InboxMessage, end: TurnEnd) -> TurnEnded:
    request_id = ids.mail_request_id(letter.key, letter.attempt)
    return TurnEnded(request_id=request_id, run_id=run_id_of(letter), end=end)


def run_message(name: str = "a", **fields: Any) -> MailboxState:
    return carry(admit(message(name, **fields)))


def finish(state: MailboxState, end: TurnEnd = TurnEnd.completed) -> MailboxState:
    """With the one letter that runs brought to its end."""
    return carry(mailbox.end_letter_turn(state, turn_end(state.letters[0], end), NOW))


def states(letter: InboxMessage) -> list[str]:
    return [str(each.state) for each in letter.transitions]


def test_a_message_is_consumed_before_it_runs_and_ends_once() -> None:
    state = admit(message("a"))
    state, request = commands.issue_batch(state, "f", after(1))
    (take,) = request.orders
    assert (take.kind, states(take.letter)) == (BridgeTaskKind.take, ["CONSUMED"])
    assert (state.letters[0].stage, state.letters[0].run_id) == (Stage.admitted, None)
    state = commands.apply_results(
        state, request, BridgeResults(done=(BridgeResult(run_id="r", at=after(2)),)), after(3)
    )
    assert (state.letters[0].stage, state.letters[0].run_id) == (Stage.running, "r")
    assert orders(state) == []
    state = mailbox.end_letter_turn(state, turn_end(state.letters[0], TurnEnd.completed), after(4))
    (finish,) = commands.next_orders(state, "f", after(4))
    assert states(finish.letter) == ["CONSUMED", "RUNNING", "SUCCEEDED"]
    assert [each.at for each in finish.letter.transitions] == [after(1), after(2), after(4)]
    state = carry(state)
    assert (state.letters, orders(state)) == ((), [])
    assert [(each.message_id, each.ack) for each in state.recent] == [("a", Ack.succeeded)]


def test_a_take_without_the_time_of_its_ack_is_followed_by_the_state() -> None:
    state = carry(admit(message("a")), take=BridgeResult(run_id="r"))
    assert orders(state) == [("write_state", "a.md")]
    assert orders(carry(state)) == []


@pytest.mark.parametrize(
    ("again", "verdict", "ordered"),
    [
        (message("a"), "known", []),
        (message("a", file="b.md"), "duplicate", [("skip", "b.md", "SKIPPED_DUPLICATE")]),
        (message("a", file="b.md", content="b", task="t2"), "admitted", [("take", "b.md", "")]),
        (message("a", content="b", file="b.md"), "task_in_progress", [("skip", "b.md", "SKIPPED_TASK_IN_PROGRESS")]),
        (message("b", task="t-a"), "task_in_progress", [("skip", "b.md", "SKIPPED_TASK_IN_PROGRESS")]),
        (message("b", task="t-a", plan="q"), "admitted", [("take", "b.md", "")]),
        (message("b", fault="bad"), "dead", [("finish", "b.md", "")]),
        (message("b", task="t-a", fault="bad"), "task_in_progress", [("skip", "b.md", "SKIPPED_TASK_IN_PROGRESS")]),
        (message("b", missing=("x",)), "blocked", [("write_state", "b.md", "")]),
        (Delivery(file="b.md", plan="p", sha256="", fault="no head"), "dead", [("bury", "b.md", "no head")]),
    ],
)
def test_what_comes_while_a_message_runs(again: Delivery, verdict: str, ordered: list[tuple[str, str, str]]) -> None:
    state, verdicts = deliver(run_message(), again)
    assert verdicts == [verdict]
    due = commands.next_orders(state, "f", NOW)
    assert [(str(each.kind), each.letter.file, each.why) for each in due] == ordered
    twice, verdicts = deliver(state, again)
    assert commands.next_orders(twice, "f", NOW) == due, "what is ordered is ordered once"


@pytest.mark.parametrize(
    ("again", "verdict", "ordered"),
    [
        (message("a"), "duplicate", [("skip", "a.md", "")]),
        (message("a", file="b.md"), "duplicate", [("skip", "b.md", "SKIPPED_DUPLICATE")]),
        (message("b", task="t-a"), "task_done", [("resend", "b.md", "RESULT_SENT_AGAIN")]),
        (message("b", task="t-b"), "admitted", [("take", "b.md", "")]),
    ],
)
def test_what_comes_when_the_task_is_done(again: Delivery, verdict: str, ordered: list[tuple[str, str, str]]) -> None:
    state = finish(run_message())
    run_id = state.recent[0].run_id
    state, verdicts = deliver(state, again)
    assert verdicts == [verdict]
    due = commands.next_orders(state, "f", NOW)
    assert [(str(each.kind), each.letter.file, each.why) for each in due] == ordered
    assert [each.run_id for each in due if each.kind is BridgeTaskKind.resend] == [run_id] * (verdict == "task_done")
    assert orders(carry(state)) == []


def test_another_run_than_the_usual_is_remembered_as_the_one_that_did_it() -> None:
    state = finish(carry(admit(message("a")), take=BridgeResult(run_id="another", at=NOW)))
    assert (
        state.tasks[ids.task_key("p", "t-a", None)[: capacity.BY]].run_id is None
    )  # the word of its end names the run
    state = carry(admit(message("b")), take=BridgeResult(run_id="another", at=NOW))
    state = commands.apply_look(state, state.letters, TurnLookup(ends=(TurnEnd.completed,)), NOW)
    state, _ = deliver(carry(state), message("c", task="t-b"))
    assert [each.run_id for each in state.orders] == ["another"]


def test_a_failed_task_is_done_again_by_another_message() -> None:
    state = finish(run_message(), TurnEnd.failed)
    assert orders(state) == []
    assert [each.why for each in state.dead] == ["the run failed"]
    state, verdicts = deliver(state, message("b", task="t-a"), message("a"), message("a", file="a2.md"))
    assert verdicts == ["admitted", "duplicate", "duplicate"]
    assert orders(state) == [("bury", "a.md"), ("take", "b.md"), ("skip", "a2.md")]


def test_files_that_are_no_messages_die_once_each() -> None:
    bad = Delivery(file="x", plan="p", sha256="", fault="no front matter")
    state, verdicts = deliver(EMPTY, bad, bad, bad.model_copy(update={"file": "y"}))
    assert verdicts == ["dead"] * 3
    assert orders(state) == [("bury", "x"), ("bury", "y")]
    state, verdicts = deliver(carry(state), bad)
    assert [each.file for each in state.dead] == ["x", "y"]
    assert orders(state) == [("bury", "x")]


def test_a_faulty_message_is_answered_and_becomes_a_dead_letter() -> None:
    state, verdicts = deliver(EMPTY, message("a", fault="two files fit"))
    assert verdicts == ["dead"]
    assert state.dead == ()
    (finish,) = commands.next_orders(state, "f", NOW)
    assert finish.letter.ending == MessageResult(ack=Ack.failed, details="two files fit", fault="BadMessage")
    after = carry(state)
    assert [each.key for each in mailbox.newly_dead(state, after)] == [state.letters[0].key]


def test_a_blocked_message_is_taken_when_its_inputs_are_there() -> None:
    state, _ = deliver(EMPTY, message("a", missing=("x", "y")))
    assert (state.letters[0].stage, states(state.letters[0])) == (Stage.blocked, ["BLOCKED_WAITING_INPUT"])
    state = carry(state)
    assert orders(state) == []
    state, verdicts = deliver(state, message("a", missing=("y",)))
    assert (verdicts, orders(state)) == (["blocked"], [])
    state, verdicts = deliver(state, message("a", undecided=("y",)))
    assert (verdicts, orders(state)) == (["admitted"], [("take", "a.md")])
    state = carry(state, take=BridgeResult(run_id="r", is_blocked=True, at=NOW))
    letter = state.letters[0]
    blocked = "BLOCKED_WAITING_INPUT"
    assert (states(letter), letter.undecided) == ([blocked, "CONSUMED", blocked], ("y",))
    state = mailbox.record_pick(state, letter.key, NOW)
    assert (states(state.letters[0])[-1], orders(state)) == ("RUNNING", [("write_state", "a.md")])
    assert mailbox.record_pick(state, letter.key, NOW).notices == (
        f"input_picked: no message {letter.key} waits for it",
    )


def test_a_blocked_message_may_turn_out_faulty() -> None:
    state, _ = deliver(EMPTY, message("a", missing=("x",)))
    state, verdicts = deliver(state, message("a", fault="two files fit"))
    assert (verdicts, orders(state)) == (["dead"], [("finish", "a.md")])


def test_a_person_gives_up_what_would_wait_for_ever() -> None:
    state, _ = deliver(run_message(), message("b", missing=("x",)), message("c"))
    state = mailbox.give_up_letters(state, GiveUp(message_id="b", by="eva"), NOW)
    state = mailbox.give_up_letters(state, GiveUp(message_id="c"), NOW)
    assert orders(state) == [("finish", "b.md"), ("finish", "c.md")]
    assert mailbox.give_up_letters(state, GiveUp(message_id="a"), NOW).letters == state.letters, "that has a run"
    state = carry(state)
    assert [(each.message_id, each.why) for each in state.dead] == [("b", "given up by eva"), ("c", "given up")]
    assert deliver(state, message("d", task="t-b"))[1] == ["admitted"]
    assert mailbox.give_up_letters(state, GiveUp(message_id="b"), NOW).notices == (
        "give_up: no message b waits for anything",
    )


def test_a_word_that_overtakes_the_bridge_counts() -> None:
    state, request = commands.issue_batch(admit(message("a")), "f", NOW)
    state = mailbox.end_letter_turn(state, turn_end(state.letters[0], TurnEnd.completed), NOW)
    state = commands.apply_results(state, request, results(request), NOW)
    assert states(state.letters[0]) == ["CONSUMED", "RUNNING", "SUCCEEDED"]
    assert orders(state) == [("finish", "a.md")]


def test_words_that_are_late_or_about_nothing_change_nothing() -> None:
    state = run_message()
    word = turn_end(state.letters[0], TurnEnd.completed)
    over = finish(state)
    for each, held in ((over, word), (state, word.model_copy(update={"request_id": "mail:x:1"}))):
        assert mailbox.end_letter_turn(each, held, NOW) is each
    waiting = admit(message("a"))
    assert mailbox.end_letter_turn(waiting, word, NOW) is waiting, "nobody took it yet"


@pytest.mark.parametrize("end", [end for end in TurnEnd if end is not TurnEnd.completed])
def test_every_other_end_is_a_failure_that_says_why(end: TurnEnd) -> None:
    ending = ending_of(end)
    assert (ending.ack, ending.fault) == (Ack.failed, end)
    assert ending.details


@pytest.mark.parametrize(
    ("fault", "steps", "attempt", "may"),
    [
        ("RateLimited", 0, 1, True),
        ("ModelUnavailable", 0, 2, True),
        ("ModelUnavailable", 0, 3, False),
        ("RateLimited", 1, 1, False),
        ("HardLimit", 0, 1, False),
        (None, 0, 1, False),
    ],
)
def test_only_what_has_done_nothing_and_may_pass_is_tried_again(
    fault: str | None, steps: int, attempt: int, *, may: bool
) -> None:
    assert may_try_again(fault, steps, attempt) is may


def test_a_run_that_did_nothing_is_tried_again_after_a_pause() -> None:
    state = mailbox.end_letter_turn(run_message(), turn_end(run_message().letters[0], TurnEnd.failed), NOW)
    state = carry(state, finish=BridgeResult(again=True))
    (letter,) = state.letters
    assert (letter.attempt, states(letter), state.failed) == (2, ["CONSUMED", "RUNNING"], 0)
    assert commands.next_change(state, NOW) == after(10)
    assert (orders(state, after(9)), orders(state, after(10))) == ([], [("take", "a.md")])
    state = mailbox.end_letter_turn(carry(state, after(10)), turn_end(letter, TurnEnd.completed), after(11))
    state = carry(state, after(11))
    state, _ = deliver(state, message("b", task="t-a"))
    assert state.orders[0].run_id == run_id_of(letter)


def test_what_could_not_be_taken_is_taken_later() -> None:
    state = carry(admit(message("a")), take=BridgeResult())
    assert (orders(state), orders(state, after(5))) == ([], [("take", "a.md")])


def test_what_could_not_be_done_is_done_later_and_holds_up_nothing_else() -> None:
    state = mailbox.end_letter_turn(run_message(), turn_end(run_message().letters[0], TurnEnd.completed), NOW)
    state, _ = deliver(state, message("a", file="a2"), message("b", missing=("x",)))
    assert [kind for kind, _ in orders(state)] == ["skip", "finish", "write_state"]
    now, pauses = NOW, []
    for _ in range(8):
        state = carry(
            state,
            now,
            finish=BridgeResult(later=True),
            skip=BridgeResult(later=True),
            write_state=BridgeResult(later=True),
        )
        assert orders(state, now) == []
        due = commands.next_change(state, now)
        assert due is not None
        pauses.append((due - now).total_seconds())
        now = due
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    state = admit(message("c"), state=state)
    assert len(orders(state, now)) == 4
    state = carry(state, now)
    assert [each.message_id for each in state.letters] == ["b", "c"]
    assert [(each.not_before, each.tries) for each in state.letters] == [(None, 0)] * 2


def test_what_is_to_be_done_with_one_file_keeps_its_order() -> None:
    bad = Delivery(file="x", plan="p", sha256="", fault="bad")
    state = carry(deliver(EMPTY, bad)[0], bury=BridgeResult(later=True))
    state = mailbox.redeliver_dead_letters(state, Redeliver(), NOW)
    assert orders(state) == []
    assert orders(state, after(5)) == [("bury", "x"), ("restore", "x")]


def test_the_bridge_has_the_last_word_about_an_end() -> None:
    state = mailbox.end_letter_turn(run_message(), turn_end(run_message().letters[0], TurnEnd.completed), NOW)
    assert [each.why for each in carry(state, finish=BridgeResult(ending=FAILED)).dead] == ["no"]
    state = carry(admit(message("a")), take=BridgeResult(ending=FAILED))
    assert orders(state) == [("finish", "a.md")]


def test_dead_letters_come_back_as_new_files_of_the_same_message() -> None:
    state = finish(run_message(), TurnEnd.failed)
    bad = Delivery(file="x", plan="p", sha256="", fault="bad")
    state = carry(deliver(state, bad)[0])
    assert mailbox.redeliver_dead_letters(state, Redeliver(message_id="nobody"), NOW).notices
    one = mailbox.redeliver_dead_letters(state, Redeliver(message_id="a"), NOW)
    assert (orders(one), [each.file for each in one.dead]) == ([("restore", "a.md")], ["x"])
    state = mailbox.redeliver_dead_letters(one, Redeliver(), NOW)
    assert (orders(state), state.dead) == ([("restore", "a.md"), ("restore", "x")], ())
    state, verdicts = deliver(carry(state), message("a", file="back.md"))
    assert (verdicts, state.letters[0].attempt) == (["admitted"], 2)
    assert deliver(state, message("a", file="third.md"))[1] == ["duplicate"]


def test_replies_are_taken_whatever_else_is_about_their_task() -> None:
    state = admit(reply("a", "r.1", "s"), reply("b", "r.1", "s"))
    state = carry(state, take=BridgeResult(ending=MessageResult(ack=Ack.succeeded, details="ALREADY_DONE")))
    state = carry(state)
    assert (state.letters, state.tasks, [each.details for each in state.recent]) == ((), {}, ["ALREADY_DONE"] * 2)


def test_a_subtask_for_an_outside_peer_waits_for_a_folder_and_ends_with_its_reply() -> None:
    state = peers.add_dispatch(EMPTY, SENT, NOW)
    state = peers.add_dispatch(state, SENT, NOW)
    assert list(commands.folders_with_work(state)) == []
    state = carry(mailbox.attach_folder(state, "f"))
    assert [each.stage for each in state.letters] == [Stage.sent]
    state = admit(reply("x", "r.1", "a"), state=state)
    state = carry(state, take=BridgeResult(ending=MessageResult(ack=Ack.succeeded, details="RESOLVED")))
    assert [each.is_reply for each in state.letters] == [True]
    assert carry(state).letters == ()


def test_a_subtask_is_taken_back_wherever_it_is() -> None:
    outgoing = mailbox.attach_folder(peers.add_dispatch(EMPTY, SENT, NOW), "f")
    for state in (outgoing, carry(outgoing), mailbox.attach_folder(EMPTY, "f")):
        taken = peers.withdraw_dispatch(peers.withdraw_dispatch(state, SENT, NOW), SENT, NOW)
        assert (taken.letters, [kind for kind, _ in orders(taken)]) == ((), ["withdraw"])
        again = peers.add_dispatch(taken, SENT, NOW)
        assert [kind for kind, _ in orders(again)] == ["dispatch"]
    assert peers.withdraw_dispatch(peers.add_dispatch(EMPTY, SENT, NOW), SENT, NOW) == EMPTY
    assert carry(outgoing, dispatch=BridgeResult(ending=FAILED)).letters == ()
    state = mailbox.attach_folder(EMPTY, "f")
    for n in range(1000):
        state = peers.withdraw_dispatch(state, SENT.model_copy(update={"subtask_id": f"a{n}"}), NOW)
    assert (state.orders[-1].letter.subtask_id, 20 < len(state.orders) < 100) == ("a999", True)
    assert state.notices[-1] == f"withdraw: not done: r.1-a{999 - len(state.orders)}"
    long = SENT.model_copy(update={"task_id": "x" * 5000})
    assert peers.withdraw_dispatch(EMPTY, long, NOW).notices
    assert peers.add_dispatch(EMPTY, long, NOW).notices


def test_a_flood_in_one_plan_does_not_starve_another() -> None:
    flood = [message(f"a{n}", plan="A") for n in range(200)]
    few = [message(f"b{n}", plan="B") for n in range(5)]
    state = admit(*flood, *few)
    takes = [each.letter.plan for each in commands.next_orders(state, "f", NOW)]
    assert len(takes) == commands.MAX_BATCH
    assert takes[:10].count("B") == 5


def test_tasks_of_one_plan_take_turns_too() -> None:
    flood = [message(f"a{n}", task="flood") for n in range(1)]
    head = TaskHead.model_validate
    many = [
        each.model_copy(
            update={
                "head": head(
                    {
                        "type": "task",
                        "message_id": f"s{n}",
                        "plan_id": "p",
                        "task_id": "big",
                        "subtask_id": f"{n}",
                        "from": "bob",
                    }
                ),
                "file": f"s{n}.md",
            }
        )
        for n, each in enumerate(message("x") for _ in range(50))
    ]
    state = admit(*many, *flood)
    assert ("take", "a0.md") in orders(state)[:2]


@given(plans=st.lists(st.sampled_from("abcdefghijklmnopqrstuvwxyzäöüABCDEFG"), min_size=40, max_size=120))
def test_every_plan_is_served_within_a_round_even_if_others_refill(plans: list[str]) -> None:
    state = admit(*(message(str(n), plan=plan) for n, plan in enumerate(plans)))
    wanted = set(plans)
    for batch in range(len(plans)):
        state, request = commands.issue_batch(state, "f", NOW)
        taken = [each.letter.plan for each in request.orders]
        wanted -= set(taken)
        state = commands.apply_results(
            state, request, BridgeResults(done=(BridgeResult(ending=FAILED),) * len(taken)), NOW
        )
        state = state.model_copy(update={"letters": tuple(x for x in state.letters if x.stage is Stage.admitted)})
        refill = [message(f"{batch}-{n}", plan=plan) for n, plan in enumerate(taken)]
        state = admit(*refill, state=state)
        if not wanted:
            break
    assert batch <= len(set(plans)) // commands.MAX_BATCH


def test_so_many_run_at_once_and_replies_are_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_RUNNING", 3)
    state = admit(*(message(str(n)) for n in range(5)))
    state, request = commands.issue_batch(state, "f", NOW)
    assert len(request.orders) == 3
    assert len(orders(state)) == 3, "what was lost in between is taken again, and nothing beyond it"
    state = commands.apply_results(state, request, results(request), NOW)
    assert orders(state) == []
    state = admit(reply("r", "t", "s"), state=state)
    assert orders(state) == [("take", "r.md")]
    state = mailbox.end_letter_turn(state, turn_end(state.letters[0], TurnEnd.completed), NOW)
    assert sorted(orders(state)) == [("finish", "0.md"), ("take", "3.md"), ("take", "r.md")]


def test_a_plan_that_has_nothing_at_work_is_not_held_up_by_one_whose_work_takes_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "MAX_RUNNING", 3)
    state = carry(admit(*(message(f"{n}", plan="p") for n in range(5))))
    state = admit(message("b", plan="q"), message("c", plan="q"), state=state)
    assert orders(state) == [("take", "b.md")]
    assert orders(carry(state)) == []


def fill(plan: str = "p", folder: str = "f", **fields: Any) -> MailboxState:
    state = EMPTY
    for n in range(capacity.MAX_OPEN + 1):
        state, verdicts = deliver(state, message(f"full-{n}", plan=plan, **fields), folder=folder)
        if verdicts == ["full"]:
            return state
    raise AssertionError("it takes everything")


def test_what_waits_for_inputs_leaves_room_for_what_does_not() -> None:
    state = fill(missing=("x",))
    state, verdicts = deliver(state, *(message(str(n)) for n in range(100)), message("b", missing=("x",)))
    assert verdicts == ["admitted"] * 100 + ["full"]
    assert deliver(state, message("full-0"))[1] == ["admitted"]


def test_a_flood_of_one_plan_or_one_folder_leaves_room_for_another() -> None:
    state = fill()
    found = message("x", plan="q"), message("y", plan="q"), message("z")
    assert deliver(state, *found)[1] == ["admitted", "full", "full"]
    assert deliver(state, *found, folder="g")[1] == ["admitted", "full", "admitted"]


def test_orders_that_no_bridge_carries_out_leave_room_for_another_folder() -> None:
    state = run_message()
    for n in range(capacity.MAX_ORDERS + 1):
        state, verdicts = deliver(state, message("a", file=f"{n}"))
    assert verdicts == ["full"]
    assert deliver(state, message("a", file="x"), folder="g")[1] == ["duplicate"]


def test_runs_that_are_silent_are_looked_at_later_and_later() -> None:
    state = carry(admit(message("a"), message("b")))
    assert commands.stale_letters(state, after(59)) == ()
    pauses, now = [], NOW
    for _ in range(6):
        due = commands.next_change(state, now)
        assert due is not None
        pauses.append((due - now).total_seconds())
        now = due
        silent = commands.stale_letters(state, now)
        assert len(silent) == 2
        state = commands.apply_look(state, silent, TurnLookup(ends=(None, None)), now)
    assert pauses == [60, 120, 240, 480, 900, 900]
    state = commands.apply_look(state, state.letters, TurnLookup(ends=(TurnEnd.completed, TurnEnd.dropped)), now)
    assert [each.ending and str(each.ending.ack) for each in state.letters] == ["SUCCEEDED", "FAILED"]
    assert commands.next_change(state, now) is None


def test_a_look_that_failed_is_a_look() -> None:
    state = run_message()
    assert commands.apply_look(state, state.letters, None, after(60)).letters[0].looks == 1
    request = commands.build_look_request(state, state.letters)
    assert (request.run_ids, len(request.lanes)) == ((run_id_of(state.letters[0]),), 1)


def test_a_full_mailbox_takes_nothing_but_what_it_knows() -> None:
    state = EMPTY
    for n in range(capacity.MAX_OPEN + 2):
        state, verdicts = deliver(state, message(str(n)))
        if verdicts == ["full"]:
            break
    assert verdicts == ["full"]
    assert len(state.letters) > 200
    assert deliver(state, message("0"), message("new"))[1] == ["known", "full"]
    assert deliver(state, reply("r", "t", "s"))[1] == ["admitted"], "work that is in hand may wait for it"
    before = state
    for n in range(capacity.MAX_ORDERS + 2):
        state, verdicts = deliver(state, message("0", file=f"{n}"))
    assert verdicts == ["full"]
    assert len(state.orders) < capacity.MAX_ORDERS + 1
    first = peers.add_dispatch(before, SENT, NOW)
    state = carry(mailbox.attach_folder(first.model_copy(update={"letters": first.letters[-1:]}), "f"))
    state = state.model_copy(update={"letters": (*state.letters, *before.letters)})
    for n in range(capacity.WAITED_FOR + 2):
        state = peers.add_dispatch(state, SENT.model_copy(update={"subtask_id": f"b{n}"}), NOW)
    away = [each.subtask_id for each in state.letters if each.delegation]
    assert (away[0], len(state.notices) > 0) == ("b0", True), "what was sent goes first, and then it is told"


def test_all_that_a_mailbox_can_know_fits_into_one_mebibyte() -> None:
    long = "ä" * 200
    state = EMPTY
    for n in range(5100):
        found = message(f"{n}-{long}"[:200], plan=long, task=f"{n}-{long}"[:200])
        end = TurnEnd.completed if n % 2 else TurnEnd.failed
        letter = new_letter("f", found, found.head, NOW) if found.head else None
        assert letter is not None
        state = mailbox._accept_letter(state, letter)
        state = mailbox.finish_letter(state, letter, ending_of(end), NOW)
        state = mailbox._remember_task(state, letter)
    assert len(to_json(state.model_copy(update={"letters": (), "dead": ()}))) < 420 * 1024, "of an ordinary one"
    for n in range(800):
        state, _ = deliver(state, message(f"open {n}"), reply(f"reply {n}", "t", str(n)))
        if n < 300:
            state, _ = deliver(state, message(f"{n}-{long}"[:190], file=f"{n}-{long}"))
    assert (len(state.seen), len(state.tasks)) == (capacity.MAX_SEEN, capacity.MAX_TASKS)
    assert len(state.letters) > 200
    assert len(to_json(state)) < 1024 * 1024
    assert MailboxState.model_validate_json(to_json(state)) == state


def test_what_is_in_hand_is_known_however_many_came_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "MAX_SEEN", 3)
    state = admit(message("a"), *(message(f"later {n}") for n in range(5)))
    assert state.letters[0].key[: capacity.BY] not in state.seen
    state, verdicts = deliver(state, message("a"), message("a", file="a2"))
    assert verdicts == ["known", "duplicate"]
    assert [(str(each.kind), each.letter.file, each.why) for each in state.orders] == [
        ("skip", "a2", "SKIPPED_DUPLICATE")
    ]


def test_what_people_see_of_a_mailbox() -> None:
    state = finish(run_message(), TurnEnd.failed)
    state, _ = deliver(state, message("b", missing=("x",)), message("c"))
    view = mailbox_told.mailbox_view(capacity.add_mailbox_notice(state, "`odd`"))
    assert [(each.message_id, each.stage, each.ack) for each in view.open] == [
        ("b", Stage.blocked, None),
        ("c", Stage.admitted, None),
    ]
    assert (view.accepted, view.skipped, view.failed, view.orders) == (3, 0, 1, 2)
    assert view.open[0].state is TaskState.blocked
    text = mailbox_told.format_mailbox_details(capacity.add_mailbox_notice(state, "odd"))
    for words in ("1 blocked · 1 admitted", "3 accepted · 0 skipped · 1 failed", "FAILED `a`", "odd"):
        assert words in text
    assert "empty" in mailbox_told.format_mailbox_details(EMPTY)


NAMES = [f"m{n}" for n in range(8)]


class MailboxMachine(RuleBasedStateMachine):
    """Bridges deliver, carry, die and come again; runs end; words get lost or come twice."""

    def __init__(self) -> None:
        super().__init__()
        self.state = EMPTY
        self.now = NOW
        self.accepted: list[str] = []
        self.ended: list[str] = []
        self.flying: BridgeBatch | None = None
        self.restored: list[str] = []

    def became(self, state: MailboxState) -> None:
        before = {each.key for each in self.state.letters}
        after = {each.key for each in state.letters}
        self.accepted += sorted(after - before)
        self.ended += sorted(before - after)
        self.state = state

    @rule(
        name=st.sampled_from(NAMES),
        file=st.sampled_from("xy"),
        plan=st.sampled_from("pq"),
        fields=st.sampled_from([{}, {}, {"missing": ("i",)}, {"fault": "bad"}, {"undecided": ("i",)}]),
    )
    def deliver(self, name: str, file: str, plan: str, fields: dict[str, Any]) -> None:
        found = message(name, plan=plan, task=f"t{int(name[1]) % 5}", file=f"{name}{file}", **fields)
        known = self.state.seen.get(ids.message_key(name, found.sha256)[: capacity.BY])
        state, verdicts = deliver(self.state, found)
        (verdict,) = verdicts
        key = ids.message_key(name, found.sha256)
        is_new = known is None or known.again
        if verdict in ("admitted", "blocked") and is_new:
            assert capacity.find_letter(state, key) is not None
        assert verdict != "full"
        self.became(state)

    @rule()
    def no_message(self) -> None:
        self.became(deliver(self.state, Delivery(file="bad", plan="p", sha256="", fault="bad"))[0])

    @precondition(lambda self: self.flying is None and bool(commands.next_orders(self.state, "f", self.now)))
    @rule()
    def send(self) -> None:
        state, self.flying = commands.issue_batch(self.state, "f", self.now)
        keys = [each.letter.key for each in self.flying.orders if each.letter.stage is not Stage.ending]
        assert len(keys) == len(set(keys)) or self.state.orders
        self.became(state)

    @precondition(lambda self: self.flying is not None)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        assert self.flying is not None
        of_take = [
            BridgeResult(),
            BridgeResult(run_id="r", at=NOW),
            BridgeResult(run_id="r"),
            BridgeResult(run_id="r", is_blocked=True),
            BridgeResult(ending=FAILED),
        ]
        answers = {
            "take": of_take,
            "finish": [BridgeResult(), BridgeResult(later=True), BridgeResult(again=True), BridgeResult(ending=FAILED)],
        }
        done = [
            data.draw(st.sampled_from(answers.get(each.kind, [BridgeResult(), BridgeResult(later=True)])))
            for each in self.flying.orders
        ]
        self.became(commands.apply_results(self.state, self.flying, BridgeResults(done=tuple(done)), self.now))
        self.flying = None

    @precondition(lambda self: self.flying is not None)
    @rule()
    def is_lost(self) -> None:
        self.flying = None

    @rule(name=st.sampled_from(NAMES), end=st.sampled_from(TurnEnd), attempt=st.integers(1, 3))
    def word(self, name: str, end: TurnEnd, attempt: int) -> None:
        for each in self.state.letters:
            if each.message_id == name and each.attempt == attempt:
                self.became(mailbox.end_letter_turn(self.state, turn_end(each, end), self.now))

    @rule(seconds=st.sampled_from([1, 30, 900]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(end=st.sampled_from([None, TurnEnd.completed, TurnEnd.failed]))
    def look(self, end: TurnEnd | None) -> None:
        silent = commands.stale_letters(self.state, self.now)
        self.became(commands.apply_look(self.state, silent, TurnLookup(ends=(end,) * len(silent)), self.now))

    @rule(picked=st.sampled_from(NAMES))
    def pick(self, picked: str) -> None:
        for each in self.state.letters:
            if each.message_id == picked:
                self.became(mailbox.record_pick(self.state, each.key, self.now))

    @rule(name=st.sampled_from(NAMES))
    def give_up(self, name: str) -> None:
        self.became(mailbox.give_up_letters(self.state, GiveUp(message_id=name), self.now))

    @rule()
    def redeliver(self) -> None:
        self.became(mailbox.redeliver_dead_letters(self.state, Redeliver(), self.now))

    @rule()
    def rotates(self) -> None:
        self.flying = None
        self.state = MailboxState.model_validate_json(to_json(self.state))

    @invariant()
    def none_twice(self) -> None:
        keys = [each.key for each in self.state.letters]
        tasks = [each.task for each in self.state.letters]
        assert len(keys) == len(set(keys))
        assert len(tasks) == len(set(tasks)), "one message at a time is about a task"

    @invariant()
    def each_ends_once(self) -> None:
        open_now = [each.key for each in self.state.letters]
        assert sorted(self.accepted) == sorted([*self.ended, *open_now])

    @invariant()
    def nothing_is_stuck(self) -> None:
        """Each letter has an order, a run, a time, or waits for inputs."""
        due = {each.letter.key for each in commands.next_orders(self.state, "f", self.now)}
        for each in self.state.letters:
            waits = each.stage in (Stage.running, Stage.blocked) or (each.not_before or NOW) > self.now
            assert waits or each.key in due or len(self.state.orders) > 5

    def teardown(self) -> None:
        """With bridges that work and runs that end, everything ends."""
        self.flying = None
        for _ in range(60):
            self.now += timedelta(hours=1)
            for each in self.state.letters:
                if each.stage is Stage.blocked:
                    self.became(mailbox.to_end(self.state, each, FAILED, self.now))
            self.became(carry(self.state, self.now))
            silent = commands.stale_letters(self.state, self.now)
            self.became(
                commands.apply_look(self.state, silent, TurnLookup(ends=(TurnEnd.completed,) * len(silent)), self.now)
            )
        assert (self.state.letters, orders(self.state, self.now)) == ((), [])
        self.each_ends_once()


TestBox = MailboxMachine.TestCase


def test_the_timeline_shows_what_a_bridge_is_to_do() -> None:
    state, request = commands.issue_batch(admit(message("a"), message("b")), "f", NOW)
    assert mailbox_told.summarize_orders(request.orders) == "take 2"
    assert len(state.letters) == 2
