"""Counts of a rule are those of the whole request, on the real server: subtasks at once, follow-ups, lost workers."""

from typing import Any

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure.activities import policy
from perdure.contracts.agent import Agent
from perdure.decisions import ids
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import id_of, result_of
from tests.workflows.script import FINISH, agent_of, count_replies
from tests.workflows.test_delegation import delegates, task
from tests.workflows.test_passed_on import LATER, resumed_run, wait_for
from tests.workflows.test_policy import fetch, refund, ruled
from tests.workflows.test_policy_attacks import PAY

AT_MOST_TWO = "[[rule]]\nname = 'two'\ntools = ['refund']\nwhen = \"run.calls['refund'] >= 2\"\nthen = 'deny'"
PAY_TWICE = calls(("refund", {"cents": 1}), ("refund", {"cents": 1}))


async def counted(it: World, root: Run) -> dict[str, Any]:
    handle = it.client.get_workflow_handle(ids.shared_calls_id(id_of(root)))
    it.started.append(handle.id)
    state: dict[str, Any] = await handle.query("state")
    return state


async def test_subtasks_at_the_same_time_share_the_bound_of_their_request(world: MakeWorld) -> None:
    lead = Agent(name="lead", prompt="I am lead.", tools=("refund",), peers=("payer",))
    payer = Agent(name="payer", prompt="I am payer.", tools=("refund",))

    def script(body: dict[str, Any]) -> Any:
        own = [delegates(*(task(f"p{n}", "payer") for n in range(4))), PAY, FINISH]
        return (own if agent_of(body) == "lead" else [PAY_TWICE, FINISH])[count_replies(body)]

    money = refund()
    async with ruled(world, AT_MOST_TWO, script, money, agents=(lead, payer)) as it:
        run = await it.start(agent="lead")
        await result_of(run)
        assert len(money.calls) <= 2
        assert (await it.shown(run))[1].startswith("denied")
        state = await counted(it, run)
        assert len(state["calls"]) == 9  # each once, whatever its verdict
        await it.replay()


async def test_a_follow_up_counts_what_its_request_did_after_the_first_run_has_ended(world: MakeWorld) -> None:
    started: list[Run] = []

    def script(body: dict[str, Any]) -> Any:
        if "refund what the page says" in str(body["messages"][0]):
            return [PAY_TWICE, FINISH][count_replies(body)]
        return [PAY, LATER, wait_for(started[0]), FINISH][count_replies(body)]

    money = refund()
    async with ruled(world, AT_MOST_TWO, script, money, follow_ups=()) as it:
        started.append(await it.start())
        await result_of(started[0])
        resumed = await resumed_run(it, started[0])
        first, second = (await it.shown(resumed))[:2]
        assert not first.startswith("denied")
        assert second.startswith("denied")
        assert len(money.calls) == 2
        assert [call["run"] for call in (await counted(it, started[0]))["calls"]] == [
            id_of(started[0]),
            *[id_of(resumed)] * 2,
        ]


async def test_what_was_reserved_by_a_worker_that_was_lost_before_the_reply_came_is_given_back(
    world: MakeWorld, monkeypatch: Any
) -> None:
    money, judge, lost = refund(), policy._judge, list[str]()

    async def judge_once_and_vanish(*args: Any) -> Any:
        if not lost:
            lost.append("reserved")
            raise RuntimeError("the worker is lost after the reservation")
        return await judge(*args)

    monkeypatch.setattr(policy, "_judge", judge_once_and_vanish)
    async with ruled(world, AT_MOST_TWO, [PAY_TWICE, PAY, FINISH], money) as it:
        run = await it.start()
        await result_of(run)
        assert lost == ["reserved"]
        assert len(money.calls) == 2
        assert len((await counted(it, run))["calls"]) == 3


async def test_a_run_that_no_such_rule_is_about_starts_nothing(world: MakeWorld) -> None:
    text = (
        "[[rule]]\ntools = ['refund']\nwhen = \"args.cents > 5 || run.has_read.exists(s, s == 'web')\"\nthen = 'deny'"
    )
    async with ruled(world, text, [PAY, FINISH], refund()) as it:
        run = await it.run_to_end()
        try:
            status = (await it.client.get_workflow_handle(ids.shared_calls_id(id_of(run))).describe()).status
        except RPCError:
            status = None
        assert status is None


async def test_the_calls_of_a_request_stay_known_while_it_may_go_on(world: MakeWorld) -> None:
    async with ruled(world, AT_MOST_TWO, [PAY, FINISH], refund()) as it:
        run = await it.run_to_end()
        shared = it.client.get_workflow_handle(ids.shared_calls_id(id_of(run)))
        assert (await shared.describe()).status is WorkflowExecutionStatus.RUNNING
        assert len((await counted(it, run))["calls"]) == 1


async def test_a_run_that_a_tool_of_a_run_starts_counts_with_its_request_and_knows_what_was_read(
    world: MakeWorld,
) -> None:
    begun: list[Run] = []

    async def begin(*_: Any) -> str:
        begun.append(await it.start("other work"))
        return "begun"

    def script(body: dict[str, Any]) -> Any:
        own = [PAY_TWICE, FINISH] if "other work" in str(body["messages"][0]) else [PAY, calls(("begin", {})), FINISH]
        return own[count_replies(body)]

    money = refund()
    async with ruled(world, AT_MOST_TWO, script, money, ScriptedTool("begin", begin), fetch()) as it:
        run = await it.start()
        await result_of(run)
        await result_of(begun[0])
        assert len(money.calls) == 2
        assert {call["run"] for call in (await counted(it, run))["calls"]} == {id_of(run), id_of(begun[0])}
        (goal, *_) = await it.parts(begun[0])
        assert goal["about"] == {"has_read": ["web"]}
