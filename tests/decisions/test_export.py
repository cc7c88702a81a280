"""What events tell of a run, when all goes as usual and when not."""

from datetime import UTC, datetime
from typing import Any

from perdure.client.records.run_facts import RunFacts, collect_facts
from perdure.contracts.run.export import ExportedExecution
from perdure.contracts.run.signals import ANSWER_REPORT, HumanInput, Question, QuestionKind
from perdure.contracts.tool import ToolOutcome
from perdure.decisions.run.question import answer_digest
from perdure.decisions.text.formatting import waiting_for_person

AT = "2026-11-22T09:00:{:02}+00:00"


def fold(*events: dict[str, Any]) -> RunFacts:
    """The facts of these events. An accepted update is completed at once, unless it is `checked` later."""
    numbered: list[dict[str, Any]] = []
    for event in events:
        number = len(numbered) + 1
        numbered.append({"id": number, "at": AT.format(number), **event})
        if event["type"] == "workflow_execution_update_accepted" and not event.get("checked"):
            numbered.append({"id": number + 1, "at": AT.format(number), **completed(number)})
    return collect_facts([ExportedExecution(execution="x", events=numbered)])


def completed(accepted: int, **outcome: Any) -> dict[str, Any]:
    outcome = outcome or {"success": [{"accepted": True}]}
    return {"type": "workflow_execution_update_completed", "accepted_event_id": accepted, "outcome": outcome}


def activity(kind: str, **request: Any) -> dict[str, Any]:
    return {"type": "activity_task_scheduled", "activity_type": {"name": kind}, "input": [request]}


def status(status: str, waiting_for: str | None = None) -> dict[str, Any]:
    fields = {"AgentStatus": status, "WaitingFor": waiting_for}
    return {"type": "upsert_workflow_search_attributes", "search_attributes": {"indexed_fields": fields}}


def signal(body: Any) -> dict[str, Any]:
    return {"type": "workflow_execution_signaled", "signal_name": "human_input", "input": [body], "identity": "cli"}


def reply(scheduled_event_id: int, **more: Any) -> dict[str, Any]:
    result = {"content": [], "model": "m", "usage": {"input": 5, "output": 2}, **more}
    return {"type": "activity_task_completed", "scheduled_event_id": scheduled_event_id, "result": [result]}


def test_what_is_not_known_is_passed_over() -> None:
    assert fold({"type": "nexus_operation_started"}, {"type": "timer_fired"}) == RunFacts()


def test_turns_add_up_and_a_price_that_is_not_known_makes_the_whole_unknown() -> None:
    plan, reflect = activity("plan", turn=1, definition="d"), activity("reflect", turn=2, definition="d")
    known = fold(plan, reply(1, cost_usd=0.5), reflect, reply(3, cost_usd=0.25))
    assert (known.usage.input, known.usage.output, known.cost_usd) == (10, 4, 0.75)
    assert (known.definitions, [turn.turn for turn in known.turns]) == (["d"], [1, 2])
    assert known.turns[0].stop_reason == "tool_use"  # a default, which history omits
    assert fold(plan, reply(1, cost_usd=0.5), reflect, reply(3, cost_usd=None)).cost_usd is None


def test_a_turn_has_its_pieces_and_what_it_cites() -> None:
    citation = {"type": "web_search_result_location", "url": "https://a.example"}
    content = [{"type": "text", "text": "so", "citations": [citation]}]
    (turn,) = fold(activity("plan", turn=1, definition="d"), reply(1, content=content, pieces=2)).turns
    assert (turn.pieces, turn.cites) == (2, ("https://a.example",))


def test_a_turn_that_failed_says_why_and_costs_nothing() -> None:
    failure = {"message": "wrapped", "application_failure_info": {"type": "RateLimited"}, "cause": {"message": "429"}}
    failed = {"type": "activity_task_failed", "scheduled_event_id": 1, "failure": failure}
    (turn,) = fold(activity("plan", turn=1), failed).turns
    assert turn.failure == "RateLimited: wrapped: 429"
    encrypted = failure | {"message": "Encoded failure", "encoded_attributes": {"message": "wrapped"}}
    assert fold(activity("plan", turn=1), failed | {"failure": encrypted}).turns == [turn]
    late = {"type": "activity_task_timed_out", "scheduled_event_id": 1}
    over = fold(activity("plan", turn=1), late)
    assert (over.turns[0].failure, over.cost_usd) == ("timed out", 0)


def test_a_call_that_was_run_again_has_both_attempts() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "charge", "input": {"amount": 5}}
    call = {"tool_use_id": "t1", "tool": "charge", "step": 1, "arguments": None, "effect": "once"}
    lost = {"type": "activity_task_timed_out", "scheduled_event_id": 3}
    done = {"type": "activity_task_completed", "scheduled_event_id": 5, "result": [{"result": "paid"}]}
    found = fold(
        activity("plan", turn=1),
        reply(1, content=[use]),
        activity("call_tool", **call),
        lost,
        activity("call_tool", **call, attempt=2),
        done,
    ).calls["t1"]
    assert (found.step, found.effect, found.turn, found.arguments) == (1, "once", 1, {"amount": 5})
    first, second = found.made
    assert (first.generation, first.failure, first.outcome) == (1, "timed out", None)
    assert (second.generation, second.failure) == (2, None)
    assert second.outcome == ToolOutcome(result="paid").model_dump(mode="json")


def test_only_what_came_while_a_question_was_open_is_an_answer_to_it() -> None:
    waiting, running = status("waiting_on_human", "human: approve charge"), status("running")
    early, other, fits = signal({"text": "a"}), signal({"question_id": "q9", "text": "b"}), signal({"text": "c"})
    reports = [report(early, 1, "no question"), report(other, 2, "no q9"), report(fits, 3), report(early, 4, "late")]
    events = (early, waiting, other, signal(7), fits, running, early, waiting)
    unknown = fold(*events).questions[0]
    assert (unknown.answers, unknown.rejected) == ((), ())  # until the run reports on them, nobody knows
    first, second = fold(*events, activity("reflect", turn=2, trace=reports)).questions
    assert (first.id, first.text, [answer.text for answer in first.answers]) == ("q1", "approve charge", ["c"])
    assert (first.answers[0].identity, first.closed_at is None) == ("cli", False)
    assert (second.id, second.answers, second.closed_at) == ("q2", (), None)


def report(sent: dict[str, Any], number: int, reason: str | None = None) -> dict[str, Any]:
    """The run's report on an answer by signal."""
    digest = answer_digest(HumanInput.model_validate(sent["input"][0]))
    line = {"event": ANSWER_REPORT, "key": f"event:{number}", "answer": digest}
    return line if reason is None else {**line, "reason": reason}


def test_an_answer_by_signal_counts_as_the_run_says_and_a_forged_one_never_looks_like_a_taken_one() -> None:
    forged, signed = signal({"question_id": "q1", "decision": "approve", "by": "ann"}), signal({"decision": "deny"})
    reported = activity("reflect", turn=2, trace=[report(forged, 1, "this one is not signed"), report(signed, 2)])
    waiting = status("waiting_on_human", "human: approve pay")
    (question,) = fold(waiting, forged, forged, signed, status("running"), reported, reported).questions
    assert [answer.decision for answer in question.answers] == ["deny"]
    assert [(answer.by, answer.reason) for answer in question.rejected] == [("ann", "this one is not signed")]


def test_a_change_has_the_arguments_before_it() -> None:
    changed = {**update("ann", "q1", arguments={"cents": 900}), "checked": True}
    end = completed(2, success=[{"accepted": True, "before": {"cents": 100}}])
    (question,) = fold(status("waiting_on_human", "human: approve pay"), changed, end).questions
    assert [(answer.before, answer.arguments) for answer in question.answers] == [({"cents": 100}, {"cents": 900})]


def update(by: str, question: str, **fields: Any) -> dict[str, Any]:
    body = {"question_id": question, "decision": "approve", "by": by, **fields}
    request = {"meta": {"identity": "gateway"}, "input": {"name": "answer", "args": [body]}}
    return {"type": "workflow_execution_update_accepted", "accepted_request": request}


def test_each_of_the_people_who_approve_one_call_has_an_answer_also_if_others_are_decided_meanwhile() -> None:
    """`WaitingFor` tells how many questions are open, and not which."""
    waits = ("human: approve transfer", "human: 2 questions", "human: 3 questions")
    one, two, three = (status("waiting_on_human", wait) for wait in waits)
    ann, bob = update("ann", "q1"), update("bob", "q1")
    for events in (
        (three, ann, update("eva", "q2"), two, update("eva", "q3"), one, bob, status("running")),
        (three, ann, update("eva", "q2"), two, bob, one, update("eva", "q3")),
        (three, update("eva", "q3"), two, ann, update("eva", "q2"), one, bob, status("running")),
    ):
        questions = fold(*events).questions
        assert [(q.id, [answer.by for answer in q.answers]) for q in questions] == [
            ("q1", ["ann", "bob"]),
            ("q2", ["eva"]),
            ("q3", ["eva"]),
        ]
        assert questions[0].closed_at is not None
        assert questions[1].closed_at is not None


def test_a_change_that_another_decision_overtakes_leaves_that_decision_in_the_record() -> None:
    changed = {**update("ann", "q1", arguments={"cents": 1}), "checked": True}
    overtaken = completed(2, failure={"message": "no question is open on this run"})
    denies = update("bob", "q1", decision="deny")
    (question,) = fold(status("waiting_on_human", "human: approve pay"), changed, denies, overtaken).questions
    assert [(answer.by, answer.decision) for answer in question.answers] == [("bob", "deny")]
    assert [(answer.by, answer.reason) for answer in question.rejected] == [("ann", "no question is open on this run")]


def test_a_call_of_another_worker_is_one_as_all_others() -> None:
    uses = [{"type": "tool_use", "id": f"t{n}", "name": "weigh", "input": {"what": "salt"}} for n in (1, 2)]
    payload = {"run_id": "r", "step": 1, "tool": "weigh", "tool_payload": {"what": "salt"}}
    key = "agentic:run:r:step:1:request"
    request = {"type": "agentic.tool_request.weigh", "payload": payload, "dedupe_key": key}
    other = {**request, "payload": {**payload, "step": 2}, "dedupe_key": "agentic:run:r:step:2:request"}
    found = fold(
        activity("plan", turn=1),
        reply(1, content=uses),
        activity("plan", **request),  # it may be called whatever it likes
        {"type": "activity_task_timed_out", "scheduled_event_id": 3},
        activity("plan", **{**request, "dedupe_key": f"{key}:2"}),
        {"type": "activity_task_completed", "scheduled_event_id": 5, "result": [12]},
        activity("plan", **other),
        {"type": "activity_task_completed", "scheduled_event_id": 7, "result": ["much"]},
        activity("keep_result", step=2, tool="weigh"),
        {"type": "activity_task_completed", "scheduled_event_id": 9, "result": [{"status": "ok", "result": "file"}]},
    )
    first, second = found.calls["t1"], found.calls["t2"]
    assert len(found.turns) == 1
    assert (first.step, second.step) == (1, 2)
    assert [(each.generation, each.failure) for each in first.made] == [(1, "timed out"), (2, None)]
    assert [each.outcome["result"] for each in first.made if each.outcome] == [12]
    assert [each.outcome["result"] for each in second.made if each.outcome] == ["file"]


def test_a_question_is_shown_whole_and_an_approval_is_not_taken_for_one() -> None:
    asked = "approve charge" + "?" * 300
    use = {"type": "tool_use", "id": "t1", "name": "ask_human", "input": {"question": asked}}
    turn = (activity("plan", turn=1), reply(1, content=[use]))
    attribute = waiting_for_person(
        Question(id="q1", kind=QuestionKind.question, text=asked, asked_at=datetime.now(UTC))
    )
    (question,) = fold(*turn, status("waiting_on_human", attribute)).questions
    assert question.text == asked
    (approval,) = fold(*turn, status("waiting_on_human", "human: approve charge")).questions
    assert approval.text == "approve charge"
