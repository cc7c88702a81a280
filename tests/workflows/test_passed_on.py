"""What a run has read, and whose request it carries out, is known to all runs that it sets off."""

from typing import Any

from perdure.contracts.agent import Agent
from perdure.contracts.conversation import Submitted
from perdure.decisions import ids
from perdure.testkit.model_server import calls, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.lane import run_of, say, until_idle, wait_for_run
from tests.workflows.runs import id_of, rejection_of, result_of
from tests.workflows.script import FINISH, agent_of, count_replies
from tests.workflows.test_delegation import delegates, task
from tests.workflows.test_policy import fetch, refund, ruled, sent_by
from tests.workflows.test_policy_attacks import AFTER_WEB, FETCH, PAY, refunded

LATER = calls(("workflow_create", {"definition": {"summary": "refund what the page says"}}))
ASK_OTHERS = """
[[rule]]
tools = ["refund"]
then = "ask"
not_requester = true
"""


def wait_for(run: Run, step: int = 2, text: str = "a moment") -> Any:
    """A task of the follow-up that the run has created at this step: it resumes the work at once."""
    name = ids.follow_up_id(id_of(run), step)
    asked = {"workflowId": name, "kind": "wait", "description": text, "input": {"delayMs": 100}}
    return calls(("workflow_task_create", asked))


async def resumed_run(it: World, run: Run, step: int = 2) -> Run:
    """The run that resumes the work in the run's own session."""
    name = ids.follow_up_id(id_of(run), step)
    await result_of(it.client.get_workflow_handle(ids.follow_up_workflow_id(name)))
    run_id = ids.turn_run_id(id_of(run), ids.resume_request_id(name, 1))
    resumed = await wait_for_run(it, Submitted(run_id=run_id, position=0, duplicate=False))
    await result_of(resumed)
    return resumed


async def test_a_follow_up_knows_what_the_run_that_created_it_has_read_and_so_does_the_next_turn(
    world: MakeWorld,
) -> None:
    started: list[Run] = []

    def script(body: dict[str, Any]) -> Any:
        if "refund what the page says" in str(body["messages"][0]):
            return [PAY, FINISH, PAY, FINISH][count_replies(body)]
        return [FETCH, LATER, wait_for(started[0]), FINISH][count_replies(body)]

    money = refund()
    async with ruled(world, AFTER_WEB, script, money, fetch(), follow_ups=()) as it:
        started.append(await it.start())
        await result_of(started[0])
        resumed = await resumed_run(it, started[0])
        assert (await refunded(it, resumed)).startswith("denied")
        session = id_of(started[0])
        turn = await say(it, session, "go on")
        await until_idle(it, session, 2)
        assert (await refunded(it, run_of(it, turn))).startswith("denied")
        assert money.calls == []
        await it.replay()


async def test_what_was_read_before_a_task_was_added_counts_too(world: MakeWorld) -> None:
    started: list[Run] = []

    def script(body: dict[str, Any]) -> Any:
        if "refund what the page says" in str(body["messages"][0]):
            return FINISH if "tool_result" in str(body["messages"][-1]) else PAY
        return [LATER, FETCH, wait_for(started[0], 1, "as the page says"), FINISH][count_replies(body)]

    money = refund()
    async with ruled(world, AFTER_WEB, script, money, fetch(), follow_ups=()) as it:
        started.append(await it.start())
        await result_of(started[0])
        assert (await refunded(it, await resumed_run(it, started[0], 1))).startswith("denied")
        assert money.calls == []


async def test_a_subtask_knows_what_the_subtasks_that_it_depends_on_may_have_read(world: MakeWorld) -> None:
    lead = Agent(name="lead", prompt="I am lead.", tools=(), peers=("payer", "scout"))
    payer = Agent(name="payer", prompt="I am payer.", tools=("refund",))
    scout = Agent(name="scout", prompt="I am scout.", tools=("fetch",))
    text = AFTER_WEB.replace("[[rule]]", "[[rule]]\nagents = ['payer']")

    def script(body: dict[str, Any]) -> Any:
        turn = count_replies(body)
        tasks = (task("s", "scout"), task("early", "payer"), task("mid", "scout", "s"), task("late", "payer", "mid"))
        return {
            "lead": [delegates(*tasks), FINISH],
            "payer": [calls(("refund", {"of": "late" if "Do late" in str(body["messages"]) else "early"})), FINISH],
            "scout": [FETCH, FINISH],
        }[agent_of(body)][turn]

    money = refund()
    async with ruled(world, text, script, money, fetch(), agents=(lead, payer, scout)) as it:
        await result_of(await it.start(agent="lead"))
        assert [arguments for arguments, _ in money.calls] == [{"of": "early"}]
        await it.replay()


async def test_a_run_that_no_rule_names_passes_on_what_it_has_read(world: MakeWorld) -> None:
    lead = Agent(name="lead", prompt="I am lead.", tools=("fetch",), peers=("payer",))
    payer = Agent(name="payer", prompt="I am payer.", tools=("refund",))
    text = AFTER_WEB.replace("[[rule]]", "[[rule]]\nagents = ['payer']")

    def script(body: dict[str, Any]) -> Any:
        own = [FETCH, delegates(task("p", "payer")), FINISH] if agent_of(body) == "lead" else [PAY, FINISH]
        return own[count_replies(body)]

    money = refund()
    async with ruled(world, text, script, money, fetch(), agents=(lead, payer)) as it:
        await result_of(await it.start(agent="lead"))
        assert money.calls == []


async def test_a_fork_knows_what_its_origin_read_later_since_it_has_its_files(world: MakeWorld) -> None:
    look = ScriptedTool("look")

    def script(body: dict[str, Any]) -> Any:
        own = [PAY, FINISH] if "This is a fork" in str(body["messages"]) else [calls(("look", {})), FETCH, FINISH]
        return own[count_replies(body) - ("This is a fork" in str(body["messages"]))]

    money = refund()
    async with ruled(world, AFTER_WEB, script, money, fetch(), look) as it:
        run = await it.run_to_end()
        fork = await it.fork(run, 1)
        await result_of(fork)
        assert (await refunded(it, fork)).startswith("denied")
        assert money.calls == []


async def test_who_asked_for_the_work_is_a_requester_of_each_run_that_it_sets_off(world: MakeWorld) -> None:
    lead = Agent(name="lead", prompt="I am lead.", tools=(), peers=("payer",))
    payer = Agent(name="payer", prompt="I am payer.", tools=("refund",))

    def script(body: dict[str, Any]) -> Any:
        own = [delegates(task("p", "payer")), FINISH] if agent_of(body) == "lead" else [PAY, FINISH]
        return own[count_replies(body)]

    money = refund()
    async with ruled(world, ASK_OTHERS, script, money, agents=(lead, payer)) as it:
        start = {"type": "agentic.start", "payload": {"goal": "pay", "agent": "lead"}, "sender": sent_by("ann")}
        run = await it.start_raw(start)
        child = run_of(it, Submitted(run_id=ids.subtask_run_id(id_of(run), 1, "p"), position=0, duplicate=False))
        await wait_for_run(it, Submitted(run_id=id_of(child), position=0, duplicate=False))
        await it.until_state(child, question=True)
        own = {"decision": "approve", "sender": sent_by("ann")}
        assert "other people than ann" in str(await rejection_of(child, "answer", own))
        await it.answer(child, decision="approve", sender=sent_by("ben"))
        await result_of(run)
        assert len(money.calls) == 1


async def test_who_starts_a_run_and_who_forks_it_or_speaks_to_it_are_all_its_requesters(world: MakeWorld) -> None:
    money, look = refund(), ScriptedTool("look")

    def script(body: dict[str, Any]) -> Any:
        return [calls(("look", {})), PAY, says("done")][count_replies(body)]

    async with ruled(world, ASK_OTHERS, script, money, look) as it:
        run = await it.start_raw({"type": "agentic.start", "payload": {"goal": "pay"}, "sender": sent_by("ann")})
        await it.answer(run, decision="deny", sender=sent_by("zoe"))
        await result_of(run)
        origin = {"run_id": id_of(run), "step": 1}
        fork = await it.start_raw({"type": "agentic.resume", "payload": origin, "sender": sent_by("ben")})
        await it.until_state(fork, question=True)
        for name in ("ann", "ben"):
            own = {"decision": "approve", "sender": sent_by(name)}
            assert f"other people than {name}" in str(await rejection_of(fork, "answer", own))
        question = (await it.state(fork))["question"]
        assert question["terms"][0]["not_by"] == ["ben", "ann"]
        await it.answer(fork, decision="approve", sender=sent_by("zoe"))
        await result_of(fork)
        assert len(money.calls) == 1
