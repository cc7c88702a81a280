"""A plan is its starter's approval: it counts as that person's alone, and only for calls that a dry run listed."""

from typing import Any

from perdure.client.records.run_facts import collect_facts
from perdure.client.run_events import NoticeAdded
from perdure.client.run_list import find_run
from perdure.client.watch import HistoryReader, Watch
from perdure.commands.policy import explain_plan
from perdure.contracts.tool import Approval, Effect
from perdure.testkit.model_server import calls, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import failure_of, id_of, rejection_of, result_of
from tests.workflows.test_dry_run import plan_of
from tests.workflows.test_policy import ruled, sent_by

FOUR_EYES = """
[[rule]]
name = "money"
tools = ["pay"]
then = "ask"
approvers = ["finance"]
quorum = 2
"""
ONE_OF_FINANCE = FOUR_EYES.replace("quorum = 2\n", "")
PAY = [calls(("pay", {"cents": 5})), says("done")]


def pay() -> ScriptedTool:
    return ScriptedTool("pay", effect=Effect.once, approval=Approval.always)


async def dry_run(it: World) -> dict[str, Any]:
    payload: dict[str, Any] = (await result_of(await it.start(dry_run=True)))["payload"]
    return payload


async def start_planned(it: World, plan: dict[str, Any], *groups: str, by: str = "ann") -> Run:
    """A run that a person of these groups starts with a plan, as any Temporal client may send it."""
    sender = sent_by(by, *groups)
    return await it.start_raw({"type": "agentic.start", "payload": {"goal": "pay", "plan": plan}, "sender": sender})


async def test_a_plan_of_a_person_in_no_group_approves_nothing_that_a_rule_asks_a_group_about(
    world: MakeWorld,
) -> None:
    money = pay()
    async with ruled(world, FOUR_EYES, PAY, money) as it:
        run = await start_planned(it, plan_of(await dry_run(it), 1))
        for name in ("ben", "cleo"):
            assert money.calls == []
            await it.answer(run, decision="approve", by=name, sender=sent_by(name, "finance"))
        assert "done" in (await result_of(run))["payload"]["outcome"]
        assert len(money.calls) == 1


async def test_a_plan_is_one_vote_of_the_quorum_and_its_person_has_no_other(world: MakeWorld) -> None:
    money = pay()
    async with ruled(world, FOUR_EYES, PAY, money) as it:
        run = await start_planned(it, plan_of(await dry_run(it), 1), "finance")
        question = (await it.until_state(run, question=True))["question"]
        assert "ann" in str(question)
        again = {"question_id": question["id"], "decision": "approve", "sender": sent_by("ann", "finance")}
        assert "ann has approved" in str(await rejection_of(run, "answer", again))
        assert money.calls == []
        await it.answer(run, decision="approve", by="ben", sender=sent_by("ben", "finance"))
        await result_of(run)
        assert len(money.calls) == 1
        await it.replay()


async def test_a_plan_is_never_the_approval_of_the_requester_where_the_rule_says_so(world: MakeWorld) -> None:
    money = pay()
    async with ruled(world, ONE_OF_FINANCE + "not_requester = true\n", PAY, money) as it:
        run = await start_planned(it, plan_of(await dry_run(it), 1), "finance")
        await it.answer(run, decision="deny", by="ben", sender=sent_by("ben", "finance"))
        await result_of(run)
        assert money.calls == []


async def test_what_a_plan_approves_is_reported_with_the_plan_and_the_person(world: MakeWorld) -> None:
    money = pay()
    async with ruled(world, ONE_OF_FINANCE, PAY, money) as it:
        dry = await dry_run(it)
        run = await start_planned(it, plan_of(dry, 1), "finance")
        end = (await result_of(run))["payload"]
        assert len(money.calls) == 1
        assert end["plan"] == {"run_id": dry["run_id"], "by": "ann", "missing": [], "unplanned": []}
        events = [event async for event in Watch(it.client, id_of(run)).events()]
        notices = [event.event for event in events if isinstance(event, NoticeAdded)]
        assert [(notice["plan"], notice["by"], notice["step"]) for notice in notices] == [(dry["run_id"], "ann", 1)]
        facts = collect_facts(await HistoryReader(it.client).read_executions(await find_run(it.client, id_of(run))))
        (call,) = facts.calls.values()
        assert list(explain_plan(call, facts.notices)) == [f"plan     ann, by the plan of {dry['run_id']}"]
        await it.replay()


async def test_a_plan_must_be_of_a_dry_run_that_has_ended_and_listed_these_calls(world: MakeWorld) -> None:
    money = pay()
    scripts = {"do it": PAY, "wait": [calls(("ask_human", {"question": "which?"})), says("done")]}

    def script(body: dict[str, Any]) -> Any:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return scripts["wait" if "wait" in str(body["messages"][0]) else "do it"][turn]

    async with world(script, money) as it:
        good = plan_of(await dry_run(it), 1)
        real = await it.start()
        await it.answer(real, decision="deny")
        await result_of(real)
        waiting = await it.start("wait", dry_run=True)
        await it.until_state(waiting, question=True)
        (call,) = good["calls"]
        for change, reason in (
            ({"run_id": "no-such-run"}, "there is no dry run no-such-run"),
            ({"run_id": id_of(real)}, "is not a dry run"),
            ({"run_id": id_of(real), "calls": []}, "is not a dry run"),
            ({"run_id": id_of(waiting)}, "has not ended"),
            ({"calls": [{**call, "call": "0" * 64}]}, "did not list the call of step 1, pay"),
            ({"calls": [{**call, "step": 2}]}, "did not list the call of step 2, pay"),
            ({"calls": [call, call]}, "or the plan names it twice"),
        ):
            failure = await failure_of(await start_planned(it, {**good, **change}))
            assert (failure.type, failure.message[:14]) == ("InvalidInput", "payload.plan: ")
            assert reason in failure.message
        assert money.calls == []
        await it.answer(waiting, text="this one")
        await result_of(waiting)


async def test_a_fork_of_a_planned_run_is_another_persons_act_and_asks_about_each_change(world: MakeWorld) -> None:
    money = pay()
    script = [calls(("look", {})), *PAY]
    async with world(script, money, ScriptedTool("look")) as it:
        dry = await dry_run(it)
        planned = await start_planned(it, plan_of(dry, 2))
        await result_of(planned)
        assert len(money.calls) == 1
        origin = {"run_id": id_of(planned), "step": 1}
        fork = await it.start_raw({"type": "agentic.resume", "payload": origin, "sender": sent_by("ben")})
        await it.answer(fork, decision="deny")
        await result_of(fork)
        assert len(money.calls) == 1
