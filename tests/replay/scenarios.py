"""What a run can go through, one entry for each way. Their histories are recorded by `record`, and replayed for ever.

To add one: an entry in `SCENARIOS`, then `make histories`.
"""

from datetime import timedelta
from functools import partial

from perdure.activities.providers.prices import Price
from perdure.contracts.agent import Agent
from perdure.contracts.people import NoticeKind
from perdure.contracts.tool import Effect
from perdure.testkit.message_batches import ScriptedBatches
from perdure.testkit.model_server import calls, fails, says, slow
from perdure.testkit.tools import ScriptedTool
from tests.replay import lane_plays, mail_plays
from tests.replay.batch_plays import (
    AT_ONCE,
    LATER,
    PACED,
    a_busy_pool,
    a_pool,
    a_pool_that_is_left,
    is_stopped_in_a_batch,
)
from tests.replay.budget_plays import begins_budgeted, begins_budgets, begins_over_runs
from tests.replay.delegation_plays import (
    ANY,
    ASKED,
    BESIDE,
    CIRCLE,
    DELEGATE,
    OUTSIDE,
    PEERS,
    SOON,
    A,
    begins_with,
    finds_its_delegation,
    leading,
    stops_a_delegation,
    stops_while_delegating,
)
from tests.replay.follow_up_plays import (
    REPLIES,
    a_follow_up_of_an_open_run,
    bothers_a_follow_up,
    ends_watched,
    follows,
    gives_up,
    is_resumed_under_a_used_id,
    its_run_ends,
    meets,
    replies_and_answers,
    sends_a_message_beside,
    topic_of_a_follow_up,
    topic_without_a_subscriber,
)
from tests.replay.pause_plays import (
    a_held_run,
    is_paused_beyond_its_deadline,
    pauses_of_a_held_run,
    pauses_that_move,
)
from tests.replay.people_plays import (
    begins_announced,
    begins_event,
    begins_notice,
    begins_push,
    begins_question,
    begins_shared_calls,
)
from tests.replay.place_plays import begins_placed, begins_places
from tests.replay.queue_plays import WEIGH, elsewhere, lost_at_first, unattended, weighs, weighs_much, weighs_once
from tests.replay.run_plays import (
    BUSY,
    GIVEN_UP,
    ROUNDS,
    accepts_a_policy,
    answers,
    answers_by_signal,
    begins_with_a_broken_ledger,
    bothers,
    delivers,
    forks,
    mends_the_ledger,
    moves_and_gets_its_result,
    moves_and_is_approved,
    resumes,
    resumes_edited,
    sends,
    stops,
    stops_a_model_call,
    stops_a_summary,
    votes_and_answers,
)
from tests.replay.scenario import GOAL, Scenario
from tests.replay.scripts import (
    ASK,
    CHARGE,
    CUT_OFF,
    FINISH,
    JOURNAL,
    LOOK,
    OUTAGE,
    RATE_LIMIT,
    REFRAME,
    RESULT,
    TOO_LONG,
    VOTE,
    WORK,
    circling,
    reading,
    unforced,
)
from tests.replay.tools import (
    endless,
    failing,
    flaky,
    guarded,
    large,
    late_vote,
    look,
    lost_after_its_record,
    lost_once,
    pages,
    redefined,
    save,
    search,
    vote,
    vote_again,
    working,
)

PRICED = {"prices": {"scripted": Price(input=1, output=5, cache_read=0.1, cache_write=1.25)}}
TYPED = {**GOAL, "payload": {"goal": "do it", "output_schema": {"type": "object", "required": ["total"]}}}
CHECKED = [Agent(name="default", tools=(), accept="tests.workflows.checks:has_good_outcome")]
SMALL = {"window": 20_000, "max_steps": 50}
SOON_OVER = {"soft_limit": "1ms", "hard_limit": "1h"}

# What the scenarios of one kind have in common.
lane = partial(
    Scenario, ends="cancelled", script=lane_plays.asks_or_says, type="Conversation", begins=lane_plays.a_lane
)
turn = partial(Scenario, ends="completed", script=lane_plays.asks_or_says)
follow_up = partial(Scenario, script=[], type="FollowUp", begins=follows(REPLIES))
topic = partial(Scenario, script=[], type="EventTopic")
delegation = partial(Scenario, type="Delegation", begins=begins_with("/delegation:1"), limits=PEERS)

SCENARIOS = (
    # in batches
    Scenario("batched", "completed", [LOOK, FINISH], (look,), limits=AT_ONCE),
    Scenario("batched-refused", "failed ModelRefused", [fails(400)], limits=AT_ONCE),
    Scenario("batched-without-batches", "failed ModelRefused", [FINISH], args=(PACED,)),
    Scenario("batched-cancelled", "cancelled", [FINISH], play=is_stopped_in_a_batch, limits=LATER),
    Scenario("pool", "over", [FINISH], begins=a_pool, limits=AT_ONCE, type="ModelBatches"),
    Scenario("pool-left", "over", [FINISH], begins=a_pool_that_is_left, limits=LATER, type="ModelBatches"),
    Scenario(
        "pool-refused",
        "over",
        [FINISH],
        begins=a_pool,
        limits={**AT_ONCE, "batches": ScriptedBatches(max_requests=0)},
        type="ModelBatches",
    ),
    Scenario(
        "pool-rotated",
        "over",
        [FINISH],
        begins=a_busy_pool,
        limits={**AT_ONCE, "batches": ScriptedBatches(seconds=None)},
        type="ModelBatches",
        rotates=True,
    ),
    # held
    Scenario("held", "completed", [FINISH], begins=a_held_run),
    Scenario(
        "held-beyond-a-deadline",
        "completed",
        [CHARGE, FINISH],
        (partial(guarded, approval_timeout=timedelta(seconds=3)),),
        is_paused_beyond_its_deadline,
    ),
    Scenario("pauses", "over", [FINISH], begins=pauses_of_a_held_run, type="Pauses"),
    Scenario("pauses-rotated", "over", [FINISH], begins=pauses_that_move, type="Pauses", rotates=True),
    # completed
    Scenario("finished", "completed", [LOOK, FINISH], (look,)),
    Scenario("finished-in-plain-text", "completed", [says("It is 4.")]),
    Scenario("many-steps", "completed", [LOOK, calls(("save", {"n": 1})), LOOK, REFRAME, FINISH], (look, save)),
    Scenario(
        "reads-fused",
        "completed",
        [LOOK, calls(("look", {"n": 1}), ("look", {"n": 2})), FINISH],
        (look,),
        limits={"fuses": True},
    ),
    Scenario("reads-in-parallel", "completed", [calls(*[("look", {"n": n}) for n in range(4)]), FINISH], (look,)),
    Scenario(
        "reads-and-effects-in-one-turn",
        "completed",
        [calls(("look", {}), ("look", {}), ("save", {}), ("save", {}), ("look", {})), FINISH],
        (look, save),
    ),
    Scenario("large-arguments", "completed", [calls(("look", {"text": "x" * 20_000})), FINISH], (look,)),
    Scenario("large-result", "completed", [LOOK, FINISH], (partial(large, 100_000),)),
    Scenario("tool-retried", "completed", [LOOK, FINISH], (flaky,)),
    Scenario("tool-failed", "completed", [CHARGE, FINISH], (partial(failing, Effect.keyed),)),
    Scenario("effect-failed", "completed", [CHARGE, FINISH], (partial(failing, Effect.once),)),
    Scenario("unknown-tool", "completed", [calls(("no_such_tool", {})), FINISH]),
    Scenario("empty-reply", "completed", lambda body: FINISH if "empty" in str(body["messages"]) else says("")),
    Scenario("model-retried", "completed", [fails(529, retry_after=0.02, then=LOOK), FINISH], (look,)),
    # escalated
    Scenario("escalated", "escalated asked", [calls(("escalate", {"reason": "not my trade"}))]),
    Scenario("steps-used-up", "escalated step_budget", lambda _: LOOK, (look,), limits={"max_steps": 2}),
    Scenario("turns-used-up", "escalated turn_budget", lambda _: LOOK, (look,), limits={"max_turns": 2}),
    Scenario("reframes-used-up", "escalated reframe_budget", lambda _: REFRAME, limits={"max_reframes": 1}),
    Scenario("step-never-issued", "escalated step_never_issued", [VOTE], (vote,), sends({}, step=2)),
    Scenario("wrong-tool", "escalated wrong_tool", [VOTE], (vote,), sends({}, tool="fetch")),
    Scenario("tokens-used-up", "escalated token_budget", lambda _: LOOK, (look,), limits={"budget_tokens": 1}),
    Scenario(
        "money-used-up",
        "escalated money_budget",
        lambda _: LOOK,
        (look,),
        limits={"budget_usd": 1e-9, "prices": {"scripted": Price(input=1, output=1, cache_read=1, cache_write=1)}},
    ),
    Scenario("context-too-long", "escalated context", [TOO_LONG], play=answers({"decision": "continue"})),
    Scenario("no-valid-result", "escalated result_invalid", lambda _: says("Done."), args=(TYPED,)),
    Scenario("not-accepted", "escalated not_accepted", lambda _: says("Done."), limits={"agents": CHECKED}),
    Scenario("accepted", "completed", [says("Done."), says("A good one.")], limits={"agents": CHECKED}),
    Scenario("typed-result", "completed", [FINISH, RESULT], args=(TYPED,)),
    Scenario("model-declined", "escalated model_declined", [says("I will not.", stop_reason="refusal")]),
    # failed
    Scenario("invalid-input", "failed InvalidInput", [], args=({"type": "agentic.start"},)),
    Scenario("no-input", "failed InvalidInput", [], args=()),
    Scenario("unknown-agent", "failed UnknownAgent", [], args=({**GOAL, "payload": {"goal": "x", "agent": "nobody"}},)),
    Scenario("unknown-workflow-type", "failed UnknownWorkflowType", [], type="AgentRum"),
    Scenario("model-refused", "failed ModelRefused", [LOOK, fails(401)], (look,)),
    Scenario("model-refused-at-once", "failed ModelRefused", [fails(401)]),
    Scenario("rate-limited", "failed RateLimited", [RATE_LIMIT]),
    Scenario("model-unavailable", "failed ModelUnavailable", [LOOK, OUTAGE], (look,)),
    Scenario(
        "out-of-time",
        "timed_out HardLimit",
        [WORK, FINISH],
        (partial(working, Effect.keyed),),
        limits={"soft_limit": "1ms", "hard_limit": "2ms"},
    ),
    Scenario(
        "turn-without-end",
        "failed TurnLimit",
        [slow(says("word " * 400), 60)],
        limits={"turn_timeout": "1s", "turn_limit": "2s"},
    ),
    Scenario("model-unusable", "failed ModelUnusable", lambda _: CUT_OFF),
    # cancelled
    Scenario("cancelled-while-asking", "cancelled", [ASK], play=stops("signal", question=True)),
    Scenario("cancelled-natively-while-asking", "cancelled", [ASK], play=stops("native", question=True)),
    Scenario("cancelled-before-approval", "cancelled", [CHARGE], (guarded,), stops("signal", question=True)),
    Scenario("cancelled-in-doubt", "cancelled", [CHARGE], (lost_once,), stops("signal", question=True)),
    Scenario("cancelled-while-voting", "cancelled", [VOTE], (vote,), stops("native", status="waiting_on_tool")),
    Scenario("cancelled-during-a-read", "cancelled", [WORK], (partial(working, Effect.read),), stops("signal", step=2)),
    Scenario(
        "cancelled-during-an-effect", "cancelled", [WORK], (partial(working, Effect.once),), stops("signal", step=2)
    ),
    Scenario(
        "cancelled-natively-during-an-effect",
        "cancelled",
        [WORK],
        (partial(working, Effect.keyed),),
        stops("native", step=2),
    ),
    Scenario("cancelled-during-a-model-call", "cancelled", [slow(says("long"), 60)], play=stops_a_model_call),
    Scenario("cancelled-with-the-start", "cancelled", [LOOK], (look,), options={"start_signal": "cancel"}),
    Scenario(
        "cancelled-while-summarising",
        "cancelled",
        reading(slow(says("long"), 60)),
        (partial(pages, 4_000),),
        stops_a_summary,
        limits=SMALL,
    ),
    Scenario("stopped-in-circles", "cancelled", circling, (search,), answers({"decision": "stop"})),
    # ladders and limits
    Scenario("in-circles", "completed", circling, (search,), answers({"text": "look in the attic"})),
    Scenario("in-circles-unforced", "completed", unforced, (search,), answers({"decision": "continue"})),
    Scenario("compacted", "completed", reading(says("So far: lorem.")), (partial(pages, 4_000),), limits=SMALL),
    Scenario(
        "pruned-and-asked",
        "completed",
        reading(says("So far: lorem.")),
        (partial(pages, 20_000),),
        answers({"text": "look in the attic"}),
        limits=SMALL,
    ),
    Scenario("out-of-time-partly", "completed", [LOOK, says("Half of it.")], (partial(large, 10),), limits=SOON_OVER),
    Scenario("journaled", "completed", [JOURNAL, LOOK, FINISH], (look,)),
    Scenario(
        "approval-expired", "completed", [CHARGE, FINISH], (partial(guarded, approval_timeout=timedelta(seconds=0.2)),)
    ),
    # people
    Scenario("answered-by-signal", "completed", [ASK, FINISH], play=answers_by_signal),
    Scenario("answered-by-update", "completed", [ASK, FINISH], play=answers({"text": "b", "by": "eva"})),
    Scenario(
        "approved",
        "completed",
        [CHARGE, CHARGE, FINISH],
        (guarded,),
        answers({"decision": "approve"}, {"decision": "approve"}),
    ),
    Scenario(
        "approved-for-the-run", "completed", [CHARGE, CHARGE, FINISH], (guarded,), answers({"decision": "approve_tool"})
    ),
    Scenario(
        "changed-while-approved",
        "completed",
        [CHARGE, FINISH],
        (guarded,),
        answers({"decision": "approve", "arguments": {"eur": 3}}),
    ),
    Scenario("policy-accepted", "completed", [CHARGE, FINISH], (guarded,), accepts_a_policy),
    Scenario(
        "redefined-tool", "completed", [CHARGE, CHARGE, FINISH], (redefined,), answers({"decision": "approve_tool"})
    ),
    Scenario("redefined-tool-denied", "completed", [CHARGE, FINISH], (redefined,), answers({"decision": "deny"})),
    Scenario("denied", "completed", [CHARGE, FINISH], (guarded,), answers({"decision": "deny", "text": "too dear"})),
    Scenario("in-doubt-run-again", "completed", [CHARGE, FINISH], (lost_once,), answers({"decision": "run_again"})),
    Scenario(
        "in-doubt-use-result",
        "completed",
        [CHARGE, FINISH],
        (lost_once,),
        answers({"decision": "use_result", "text": "receipt 7"}),
    ),
    Scenario("in-doubt-give-up", "completed", [CHARGE, FINISH], (lost_once,), answers({"decision": "give_up"})),
    Scenario("effect-out-of-time", "completed", [CHARGE, FINISH], (partial(endless, Effect.once),)),
    Scenario("read-out-of-time", "completed", [CHARGE, FINISH], (partial(endless, Effect.read),)),
    Scenario("lost-after-its-record", "completed", [CHARGE, FINISH], (lost_after_its_record,)),
    Scenario(
        "ledger-broken-for-a-while",
        "completed",
        [CHARGE, FINISH],
        (partial(ScriptedTool, "charge", effect=Effect.once),),
        mends_the_ledger,
        begins=begins_with_a_broken_ledger,
    ),
    # beside the runs
    Scenario("reconciled", "reported", [], args=({"after": ""},), type="Reconcile"),
    # conversations
    lane("lane", play=lane_plays.everything_is_said_to_it),
    lane("lane-rotated", play=lane_plays.it_rotates, rotates=True),
    lane(
        "lane-rotated-signalled", play=lane_plays.it_rotates, rotates=True
    ),  # of the end of the turn that it rotated with
    turn("turn", begins=lane_plays.a_turn, play=lane_plays.it_is_steered),
    turn("turn-reads-later", begins=lane_plays.a_turn_that_cannot_read, play=lane_plays.it_can_read_again),
    lane("lane-closes", ends="over", begins=lane_plays.a_closing_lane, play=lane_plays.a_choice_is_made),
    turn("turn-chooses", begins=lane_plays.a_turn_that_chooses, play=lane_plays.its_choice_is_made),
    # peers outside
    delegation(
        "delegation-outside",
        "done",
        [calls(("delegate", {"subtasks": ASKED, "join": "any"})), FINISH],
        play=mail_plays.a_peer_outside_replies,
        limits=OUTSIDE,
    ),
    # follow-ups, and the topics where they meet events
    Scenario(
        "waits-for-a-reply",
        "completed",
        [calls(("workflow_wait_for_reply", {"description": "B", "channelId": "c", "messageId": "m"})), FINISH],
        limits={"follow_ups": ()},
    ),
    follow_up("follow-up-resumed", "completed", begins=follows(REPLIES, "nobody"), play=replies_and_answers),
    follow_up(
        "follow-up-of-an-open-run",
        "completed",
        script=[ASK, says("done"), says("done")],
        begins=a_follow_up_of_an_open_run,
        play=its_run_ends,
    ),
    Scenario("watched", "completed", [ASK, says("done")], play=ends_watched),
    follow_up("follow-up-timed-out", "completed", begins=follows(REPLIES, timeoutMs=50)),
    follow_up("follow-up-notified", "completed", begins=follows("notify", channelId="c", text="x")),
    follow_up("follow-up-sends-beside", "completed", begins=follows("wait", delayMs=2000), play=sends_a_message_beside),
    follow_up("follow-up-without-tasks", "failed NoTasks", begins=follows("", "nobody")),
    follow_up("follow-up-refused", "failed Refused", script=[says("done")], play=is_resumed_under_a_used_id),
    follow_up("follow-up-cancelled", "cancelled", play=gives_up("signal")),
    follow_up("follow-up-cancelled-natively", "cancelled", play=gives_up("native")),
    follow_up("follow-up-rotated", "completed", play=bothers_a_follow_up, rotates=True),
    topic("topic-met", "cancelled", begins=topic_of_a_follow_up, play=meets),
    topic("topic-over", "over", begins=topic_without_a_subscriber),
    # delegated
    Scenario("delegated", "completed", leading(DELEGATE), limits=PEERS),
    Scenario("delegated-to-a-stranger", "completed", leading(calls(("delegate", {"subtasks": [A]})))),
    Scenario("delegated-in-a-circle", "completed", leading(CIRCLE), limits=PEERS),
    Scenario("delegation-found", "completed", leading(SOON), begins=finds_its_delegation, limits=PEERS),
    Scenario(
        "cancelled-while-delegating",
        "cancelled",
        leading(BESIDE, a=slow(says("late"), 60)),
        play=stops_while_delegating,
        limits=PEERS,
    ),
    Scenario("subtask", "completed", leading(DELEGATE), begins=begins_with(".1-b"), limits=PEERS),
    delegation("joined", "done", leading(DELEGATE)),
    delegation("joined-any", "done", leading(ANY, a=slow(says("late"), 60))),
    delegation("subtask-failed", "failed", leading(BESIDE, a=slow(says("late"), 60), b=fails(401))),
    delegation("subtask-timed-out", "failed", leading(SOON, a=slow(says("late"), 60))),
    delegation("delegation-cancelled", "cancelled", leading(BESIDE, a=slow(says("late"), 60)), play=stops_a_delegation),
    # from other runs
    Scenario("resumed", "completed", [LOOK, fails(401, then=FINISH)], (look,), begins=resumes),
    Scenario("forked", "completed", [LOOK, FINISH], (look,), begins=forks),
    Scenario(
        "not-resumable", "failed NotResumable", [], args=({"type": "agentic.resume", "payload": {"run_id": "nobody"}},)
    ),
    *[
        Scenario(
            f"definition-changed-{decision.replace('_', '-')}",
            "cancelled" if decision == "stop" else "completed",
            [LOOK, fails(401, then=FINISH)],
            (look,),
            answers({"decision": decision}),
            begins=resumes_edited,
        )
        for decision in ("use_new", "keep_old", "stop")
    ],
    # results from outside
    Scenario("voted", "completed", [VOTE, FINISH], (vote,), sends({"result": {"votes": 3}})),
    Scenario("voted-over-http", "completed", [VOTE, FINISH], (vote,), delivers),
    Scenario("voted-again", "completed", [VOTE, FINISH], (vote_again,), sends(BUSY, {"result": "now"})),
    Scenario("vote-failed", "completed", [VOTE, FINISH], (vote,), sends(GIVEN_UP)),
    Scenario("vote-never-came", "completed", [VOTE, FINISH], (late_vote,)),
    Scenario("bothered", "completed", [VOTE, VOTE, FINISH], (vote,), bothers),
    # calls of another worker
    Scenario("queued", "completed", [WEIGH, FINISH], (weighs,), elsewhere("scales", lambda _: {"grams": 12})),
    Scenario(
        "queued-large",
        "completed",
        [WEIGH, FINISH],
        (weighs_much,),
        elsewhere("large scales", lambda _: "12 g " * 20_000),
    ),
    Scenario("queued-for-nobody", "completed", [WEIGH, FINISH], (unattended,)),
    Scenario(
        "queued-and-settled",
        "completed",
        [WEIGH, FINISH],
        (weighs_once,),
        elsewhere("single scales", lost_at_first, {"decision": "run_again"}),
    ),
    # people
    Scenario("announced", "completed", [ASK, FINISH], play=answers({"text": "b"}), begins=begins_announced),
    Scenario("notice", "over", [FINISH], type="Notify", begins=begins_notice(NoticeKind.waiting)),
    Scenario("notice-to-no-channel", "cancelled", [FINISH], type="Notify", begins=begins_notice(NoticeKind.ended, "x")),
    Scenario("pushed", "over", [FINISH], type="Push", begins=begins_push(is_run=True)),
    Scenario("pushed-of-no-run", "cancelled", [], type="Push", begins=begins_push(is_run=False)),
    Scenario("event-begins-a-run", "over", [FINISH], type="Inbound", begins=begins_event("run")),
    Scenario("event-begins-a-turn", "over", [FINISH], type="Inbound", begins=begins_event("turn")),
    Scenario("event-begins-nothing", "cancelled", [FINISH], type="Inbound", begins=begins_event("unusable")),
    Scenario("project-question", "over", [], type="ProjectQuestion", begins=begins_question(is_settled=False)),
    Scenario("project-question-settled", "over", [], type="ProjectQuestion", begins=begins_question(is_settled=True)),
    Scenario("shared-calls", "cancelled", [], type="SharedCalls", begins=begins_shared_calls),
    # shared budgets
    Scenario(
        "budget-used-up",
        "escalated shared_budget",
        lambda _: LOOK,
        (look,),
        limits=PRICED,
        begins=begins_budgeted(usd=0.012),
    ),
    Scenario("budget-of-runs-used-up", "escalated shared_budget", [FINISH], limits=PRICED, begins=begins_over_runs),
    Scenario(
        "budget-waited-for", "completed", [FINISH], limits=PRICED, begins=begins_budgeted(usd=1e-6, when_used_up="wait")
    ),
    Scenario("budgets", "cancelled", [], type="Budgets", begins=begins_budgets()),
    Scenario("places", "cancelled", [], type="Places", begins=begins_places),
    Scenario("placed", "completed", [ASK, FINISH], begins=begins_placed),
    Scenario("budgets-rotated", "cancelled", [], type="Budgets", begins=begins_budgets(60), rotates=True),
    # rotated
    Scenario(
        "rotated",
        "completed",
        [*[calls(("look", {"n": n}), text=f"turn {n}") for n in range(ROUNDS)], FINISH],
        (look,),
        limits={"max_steps": ROUNDS},
        rotates=True,
    ),
    Scenario(
        "rotated-while-people-and-tools-speak",
        "completed",
        [*[calls((("vote", "ask_human")[n % 2], {"question": f"Which one, {n}?"})) for n in range(ROUNDS)], FINISH],
        (vote,),
        votes_and_answers,
        limits={"max_steps": ROUNDS},
        rotates=True,
    ),
    Scenario(
        "moved-while-a-person-is-awaited",
        "completed",
        [CHARGE, FINISH],
        (guarded,),
        moves_and_is_approved,
        rotates=True,
    ),
    Scenario(
        "moved-while-a-result-is-awaited",
        "completed",
        [calls(("vote", {"n": 1})), FINISH],
        (vote,),
        moves_and_gets_its_result,
        rotates=True,
    ),
)
