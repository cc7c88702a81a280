"""Shared budgets on the real server: what is charged, how runs end or wait, and whose allowance it is."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleSpec
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig
from temporalio.service import RPCError

from perdure.activities.temporal import submit_to_lane
from perdure.contracts.agent import Agent
from perdure.contracts.conversation import SubmitRequest
from perdure.contracts.failures import Escalation
from perdure.contracts.model_settings import Pace
from perdure.contracts.people import NoticeKind, NoticeRoute, Sender
from perdure.contracts.policy import Rubric
from perdure.converter import data_converter
from perdure.decisions.ids import run_workflow_id
from perdure.features.budgets.contract import Every, Window
from perdure.features.notices.channels import Channel
from perdure.features.notices.contract import Notice
from perdure.testkit.model_server import ScriptedAnswer, calls, cut, fails, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.budgeted import Budgeted, budget, budgeted
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import failure_of, result_of
from tests.workflows.script import FINISH

LOOK = calls(("look", {}), text="Plan: look.")
USD = "team/usd/"


async def test_each_reply_is_charged_and_the_sum_is_that_of_the_run(world: MakeWorld, tmp_path: Path) -> None:
    budgets = [budget(usd=1.0, tokens=100_000, steps=1000, runs=5)]
    async with budgeted(world, [LOOK, FINISH], ScriptedTool("look"), budgets=budgets, folder=tmp_path / "b") as has:
        run = await has.it.start()
        await run.result()
        state = await has.it.state(run)
        assert (await has.settled(USD)).used == pytest.approx(state["cost_usd"] * 1e6, abs=2)
        views = await has.views()
        usage = state["usage"]
        assert views["team/tokens/"].used == sum(
            usage[name] for name in ("input", "output", "cache_read", "cache_write")
        )
        assert (views["team/runs/"].used, views["team/steps/"].used) == (1, 2)
        assert views["agents/usd/default"].used == views[USD].used, "the spend of the agent"
        assert views[USD].leased == 0, "what was not used is given back"


async def test_a_run_escalates_once_the_budget_does_not_cover_its_next_call(world: MakeWorld, tmp_path: Path) -> None:
    """A call is at most about 7,000 micro-USD here, by its `max_tokens`."""
    async with budgeted(
        world, lambda _: LOOK, ScriptedTool("look"), budgets=[budget(usd=0.012)], folder=tmp_path / "b"
    ) as has:
        event = await result_of(await has.it.start())
        other = await result_of(await has.it.start())
        view = await has.settled(USD)
        requests = len(has.it.model.requests)
    assert (event["type"], event["payload"]["reason"]) == ("agent.escalated", Escalation.shared_budget)
    assert event["payload"]["detail"] == "budget team: what is left of its usd does not cover another call"
    assert other["payload"]["steps_taken"] == 0, "another run gets none of it"
    assert view.is_used_up
    assert 0 < view.used <= 12_000
    assert view.leased == 0
    assert requests > 1


@pytest.mark.parametrize("pace", [Pace.live, Pace.batch])
async def test_a_run_at_pace_batch_is_refused_where_a_budget_would_not_count_it(
    world: MakeWorld, tmp_path: Path, pace: Pace
) -> None:
    async with budgeted(
        world, lambda _: FINISH, budgets=[budget(usd=1.0, agent="default")], folder=tmp_path / "b"
    ) as has:
        run = await has.it.start(pace=pace)
        if pace is Pace.live:
            assert (await result_of(run))["type"] == "agent.completed"
            return
        failure = await failure_of(run)
        assert "budget team of usd does not count batches: start the run at pace live" in failure.message
        assert has.it.model.requests == []


def in_order(*answers: ScriptedAnswer) -> Callable[[object], ScriptedAnswer]:
    """The answers to the first requests, whatever they are; the last one stays."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


async def held(has: Budgeted, run: Run) -> PendingActivityInfo:
    """The activity of the run that waits on the server, paused."""
    return await has.it.until_activity(run, lambda pending: pending.paused)


async def test_a_run_waits_on_the_server_until_the_budget_is_raised(world: MakeWorld, tmp_path: Path) -> None:
    budgets = [budget(usd=0.000001, every="day", when_used_up="wait")]
    async with budgeted(world, lambda _: FINISH, budgets=budgets, folder=tmp_path / "b") as has:
        run, other = await has.it.start(), await has.it.start()
        for each in (run, other):
            pending = await held(has, each)
            assert pending.pause_info.manual.reason.startswith("budget:team/usd/ budget team: what is left of its usd")
        assert len(has.it.model.requests) == 0
        view = await has.change(USD, 1_000_000)
        assert (view.limit, view.is_used_up) == (1_000_001, False)
        for each in (run, other):
            assert (await result_of(each))["type"] == "agent.completed"
        assert len(has.it.model.requests) == 2


async def test_a_run_that_waits_goes_on_in_the_next_window(
    world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window's calendar is set to seconds: three of them."""

    def window_of_seconds(every: Every | None, now: float) -> Window:
        start = int(now // 3) * 3
        return Window(start=start, seconds=start + 3 - now)

    monkeypatch.setattr("perdure.features.budgets.rules.window_at", window_of_seconds)
    budgets = [budget(usd=0.0085, every="hour", when_used_up="wait")]
    async with budgeted(world, lambda _: FINISH, budgets=budgets, folder=tmp_path / "b") as has:
        runs = [await has.it.start() for _ in range(4)]
        for run in runs:
            assert (await result_of(run))["type"] == "agent.completed"
        started = [
            event.event_time.ToDatetime()
            for run in runs
            async for event in run.fetch_history_events()
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED
        ]
    assert max(started) - min(started) > timedelta(seconds=1), "not all of them in one window"


async def test_runs_are_admitted_as_they_begin(world: MakeWorld, tmp_path: Path) -> None:
    async with budgeted(world, lambda _: FINISH, budgets=[budget(runs=2)], folder=tmp_path / "b") as has:
        events = [await result_of(await has.it.start()) for _ in range(3)]
        assert len(has.it.model.requests) == 2
    assert [event["type"] for event in events] == ["agent.completed", "agent.completed", "agent.escalated"]
    assert events[2]["payload"]["reason"] == Escalation.shared_budget


async def test_refusals_are_counted_by_budget_and_measure(world: MakeWorld, client: Client, tmp_path: Path) -> None:
    buffer = MetricBuffer(10_000)
    target, runtime = client.service_client.config.target_host, Runtime(telemetry=TelemetryConfig(metrics=buffer))
    counted = await Client.connect(target, data_converter=data_converter, runtime=runtime)
    budgets = [budget(runs=1)]
    async with budgeted(world, lambda _: FINISH, budgets=budgets, folder=tmp_path / "b", server=counted) as has:
        for _ in range(3):
            await result_of(await has.it.start())
    refusals = [update for update in buffer.retrieve_updates() if update.metric.name == "perdure_budget_refusals"]
    labels = {(update.attributes["budget"], update.attributes["measure"]) for update in refusals}
    assert (sum(int(update.value) for update in refusals), labels) == (2, {("team", "runs")})


async def test_a_run_that_may_not_begin_waits(world: MakeWorld, tmp_path: Path) -> None:
    budgets = [budget(runs=1, every="month", when_used_up="wait")]
    async with budgeted(world, lambda _: FINISH, budgets=budgets, folder=tmp_path / "b") as has:
        await has.it.run_to_end()
        run = await has.it.start()
        pending = await held(has, run)
        assert pending.activity_type.name == "open_run"
        await has.change("team/runs/", 1)
        assert (await result_of(run))["type"] == "agent.completed"


@pytest.mark.parametrize(
    ("fault", "is_charged"),
    [
        (fails(529, message="Overloaded"), False),
        (fails(429, retry_after=1), False),
        (cut(says("half of an")), True),
    ],
)
async def test_a_call_that_failed_is_charged_if_the_provider_may_have_begun_a_reply(
    world: MakeWorld, tmp_path: Path, fault: ScriptedAnswer, is_charged: bool
) -> None:
    async with budgeted(world, in_order(fault, FINISH), budgets=[budget(usd=1)], folder=tmp_path / "b") as has:
        run = await has.it.run_to_end()
        cost = (await has.it.state(run))["cost_usd"] * 1e6
        view = await has.settled(USD)
        assert len(has.it.model.requests) == 2
    assert (view.used > cost + 5_000) == is_charged, "the bound: 1,024 tokens of a reply at 5 USD a million"
    assert is_charged or view.used == pytest.approx(cost, abs=2)


async def test_summaries_and_checks_of_outcomes_count_by_themselves(world: MakeWorld, tmp_path: Path) -> None:
    judge = Agent(name="judged", tools=(), accept=Rubric(rubric="it is done"))
    verdict = calls(("verdict", {"accepted": True, "reason": "fine"}))
    async with budgeted(
        world, in_order(FINISH, verdict), agents=[judge], budgets=[budget(usd=1)], folder=tmp_path / "b"
    ) as has:
        run = await has.it.run_to_end(agent="judged")
        cost = (await has.it.state(run))["cost_usd"] * 1e6
        assert (await has.settled(USD)).used == pytest.approx(cost, abs=3)
        assert len(has.it.model.requests) == 2


async def test_a_model_without_a_price_is_not_asked_under_a_budget_in_usd(world: MakeWorld, tmp_path: Path) -> None:
    async with budgeted(world, [FINISH], budgets=[budget(usd=1)], folder=tmp_path / "b", prices={}) as has:
        run = await has.it.start()
        failure = await failure_of(run)
        assert len(has.it.model.requests) == 0
    assert failure.type == "ModelRefused"
    assert failure.message == "budget team is in USD, and the price of scripted is unknown: set [prices]"


async def test_whose_allowance_a_run_uses(world: MakeWorld, tmp_path: Path) -> None:
    """A token, a person, another Temporal client, a schedule, a key; each has its own, and the owner is the first."""
    per = [budget(name=each, per=each, tokens=1_000_000) for each in ("agent", "owner", "requester", "schedule", "key")]
    async with budgeted(world, lambda _: FINISH, budgets=per, folder=tmp_path / "b") as has:
        it = has.it
        payload = {"goal": "do it", "budget_key": "customer 7"}
        for sender in ({"door": "gateway", "token": "shop"}, {"door": "cli", "person": "anna"}, None):
            sent = {"sender": sender} if sender else {}
            await (await it.start_raw({"type": "agentic.start", "payload": payload, **sent})).result()
            payload = {"goal": "do it"}
        talk = f"talk-{it.queue}"
        for name in ("bert", "carl"):
            request = SubmitRequest(request_id=name, goal="hello", sender=Sender(door="cli", person=name))
            submitted = await submit_to_lane(it.client, it.queue, talk, request)
            turn = it.client.get_workflow_handle(run_workflow_id(submitted.run_id))
            await it.until(partial(has_ended, turn))
        schedule = await it.client.create_schedule(
            f"schedule:nightly-{it.queue}",
            Schedule(
                ScheduleActionStartWorkflow(
                    "AgentRun",
                    {"type": "agentic.start", "payload": {"goal": "do it"}, "sender": {"door": "schedule"}},
                    id=f"run:nightly-{it.queue}",
                    task_queue=it.queue,
                ),
                ScheduleSpec(),
            ),
            trigger_immediately=True,
        )
        await it.until(lambda: nightly(it))
        await schedule.delete()
        await has.settled("agent/tokens/default")
        used = {key for key, view in (await has.views()).items() if view.used}
        names = {(key.split("/")[0], key.split("/", 2)[2].replace(it.queue, "q")) for key in used}
    assert names == {
        ("agents", "default"),
        ("agent", "default"),
        *(("requester", name) for name in ("shop", "anna", "bert", "carl", "unknown")),
        *(("owner", name) for name in ("shop", "anna", "bert", "unknown")),
        ("schedule", "nightly-q"),
        *(("key", key) for key in ("customer 7", "unknown")),
    }


async def has_ended(run: Run) -> bool:
    return (await run.describe()).close_time is not None


async def nightly(it: World) -> bool:
    runs = [row async for row in it.client.list_workflows(f"TaskQueue = '{it.queue}'") if "nightly" in row.id]
    return any(row.close_time for row in runs)


async def test_subtasks_use_the_allowance_of_the_first_run(world: MakeWorld, tmp_path: Path) -> None:
    lead = Agent(name="lead", tools=(), peers=("helper",))
    helper = Agent(name="helper", tools=())
    task = {"id": "a", "agent": "helper", "instructions": "help"}
    script = in_order(calls(("delegate", {"subtasks": [task]})), FINISH)
    budgets = [budget(name="who", per="requester", tokens=100_000), budget(name="runs", per="requester", runs=10)]
    async with budgeted(world, script, agents=[lead, helper], budgets=budgets, folder=tmp_path / "b") as has:
        start = {"type": "agentic.start", "payload": {"goal": "do it", "agent": "lead"}}
        run = await has.it.start_raw({**start, "sender": {"door": "gateway", "token": "shop"}})
        await run.result()
        await has.settled("who/tokens/shop")
        views = await has.views()
    assert len(has.it.model.requests) == 3
    assert views["runs/runs/shop"].used == 2
    assert [key for key in views if key.startswith("who")] == ["who/tokens/shop"]


async def test_a_resumed_run_uses_the_allowance_of_its_origin(world: MakeWorld, tmp_path: Path) -> None:
    async with budgeted(
        world, in_order(fails(400), FINISH), budgets=[budget(per="requester", tokens=100_000)], folder=tmp_path / "b"
    ) as has:
        run = await has.it.start_raw(
            {"type": "agentic.start", "payload": {"goal": "x"}, "sender": {"door": "gateway", "token": "shop"}}
        )
        await failure_of(run)
        await (await has.it.resume(run)).result()
        await has.settled("team/tokens/shop")
        assert [key for key in await has.views() if key.startswith("team")] == ["team/tokens/shop"]


async def test_a_run_without_budgets_sends_what_it_always_sent(world: MakeWorld) -> None:
    async with world([FINISH]) as it:
        run = await it.run_to_end()
        history = await it.raw_history(run)
    assert b"account" not in history


async def asked(has: Budgeted, after: str = "") -> Run:
    """The open question about a budget; the list may still have the one before."""
    found: list[str] = []

    async def is_asked() -> bool:
        query = f"WorkflowType = 'ProjectQuestion' AND TaskQueue = '{has.it.queue}' AND ExecutionStatus = 'Running'"
        found[:] = [row.id async for row in has.it.client.list_workflows(query) if row.id != after]
        return bool(found)

    await has.it.until(is_asked)
    [name] = found
    return has.it.client.get_workflow_handle(name)


async def answer(question: Run, option: str) -> None:
    await question.execute_update("answer", {"option": option, "by": "ines"})
    await question.result()


async def test_people_are_asked_once_and_their_answer_frees_all_runs(world: MakeWorld, tmp_path: Path) -> None:
    budgets = [budget(usd=0.000001, when_used_up="ask")]
    async with budgeted(world, lambda _: FINISH, budgets=budgets, folder=tmp_path / "b") as has:
        runs = [await has.it.start() for _ in range(3)]
        for run in runs:
            await held(has, run)
        first = await asked(has)
        state = await first.query("state")
        text = "Budget team: USD 0 of 0 used, and what is left does not cover another call."
        assert state["question"]["text"].startswith(text)
        assert (state["runs"], len(state["waiting"])) == (3, 3)
        await answer(first, "raise")
        second = await asked(has, after=first.id)  # one micro-USD more does not cover a call
        for run in runs:
            await held(has, run)
        await answer(second, "stop")
        events = [await result_of(run) for run in runs]
        late = await result_of(await has.it.start())
        assert {event["payload"]["reason"] for event in (*events, late)} == {Escalation.shared_budget}
        assert len(has.it.model.requests) == 0
        assert (await has.views())[USD].limit == 2


async def test_a_raise_at_the_terminal_overtakes_the_answer_to_a_question(world: MakeWorld, tmp_path: Path) -> None:
    budgets = [budget(usd=0.000001, when_used_up="ask")]
    async with budgeted(world, lambda _: FINISH, budgets=budgets, folder=tmp_path / "b") as has:
        run = await has.it.start()
        question = await asked(has)
        await has.change(USD, 1_000_000)
        assert (await result_of(run))["type"] == "agent.completed"
        assert (await question.result())["option"] == "changed", "nothing is left to ask"
        with pytest.raises(RPCError, match="already completed"):
            await answer(question, "stop")
        assert (await result_of(await has.it.start()))["type"] == "agent.completed"


async def test_an_answer_counts_though_another_budget_was_raised_before(world: MakeWorld, tmp_path: Path) -> None:
    budgets = [budget(usd=0.000001, when_used_up="ask"), budget(name="other", tokens=100_000)]
    async with budgeted(world, lambda _: FINISH, budgets=budgets, folder=tmp_path / "b") as has:
        run = await has.it.start()
        question = await asked(has)
        await has.change("other/tokens/", 5)
        await answer(question, "raise")
        again = await asked(has, after=question.id)
        assert (await has.views())[USD].limit == 2
        await answer(again, "stop")
        assert (await result_of(run))["payload"]["reason"] == Escalation.shared_budget


async def test_people_hear_once_that_a_budget_is_nearly_used_up(world: MakeWorld, tmp_path: Path) -> None:
    """Channels that are for all agents hear of it."""
    route = NoticeRoute(channel="ops", on=(NoticeKind.budget,))
    budgets = [budget(tokens=100_000, warn_at=1)]
    async with budgeted(world, lambda _: FINISH, budgets=budgets, folder=tmp_path / "b") as has:
        sent = list[Notice]()

        class Listener:
            async def send(self, notice: Notice, _key: str, _link: str) -> None:
                sent.append(notice)

        object.__setattr__(has.it.project, "parts", {"notices": (Channel(route, ("*",), Listener()),)})
        for _ in range(3):
            await has.it.run_to_end()
            await has.settled("team/tokens/")
        await has.it.until(lambda: bool(sent))
        used = (await has.settled("team/tokens/")).used
        assert used > 1_000
    assert [(notice.title, notice.kind) for notice in sent] == [("budget team is nearly used up", NoticeKind.budget)]
    assert sent[0].text.endswith(" of 100,000 tokens used. To raise it: perdure budget raise team")
