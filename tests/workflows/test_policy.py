"""A project's policy over the calls of real runs: its verdicts lie in history, and hold through whatever follows."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError

from perdure.activities.policy import read_stored_policy
from perdure.activities.storage.store import LocalStores
from perdure.answer_keys import NO_KEYS, read_answer_keys
from perdure.client.errors import RejectedError
from perdure.client.records.export import Exporter
from perdure.client.runs import submit_answer
from perdure.commands.policy import accept_policy, collect_verdicts, explain_verdict, list_verdicts
from perdure.contracts.agent import Agent
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.tool import Approval, Effect
from perdure.decisions.policy.rules import parse_policy
from perdure.testkit.model_server import calls, says
from perdure.testkit.tools import ScriptedTool
from tests.timeline import timeline
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import failure_of, id_of, rejection_of, result_of
from tests.workflows.script import FINISH, BreakingScript, agent_of, count_replies
from tests.workflows.test_delegation import task

SMALL = """
[[rule]]
name = "small refunds"
tools = ["refund"]
when = "args.cents <= 2000 && run.calls['refund'] < 2 && !run.has_read.exists(s, s == 'web')"
then = "allow"
[[rule]]
name = "other refunds"
tools = ["refund"]
then = "ask"
approvers = ["finance"]
[[rule]]
name = "no deletes"
tools = ["delete"]
then = "deny"
reason = "only people delete"
"""

CLOSED = '[[rule]]\nname = "closed"\ntools = ["refund"]\nthen = "deny"'


def sent_by(name: str, *groups: str) -> dict[str, Any]:
    """The sender of an answer at the gateway, by a token of these groups."""
    return {"door": "gateway", "token": name, "groups": groups}


def refund(approval: Approval = Approval.never) -> ScriptedTool:
    return ScriptedTool("refund", effect=Effect.once, approval=approval)


def fetch() -> ScriptedTool:
    return ScriptedTool("fetch", lambda *_: "a page")


def set_policy(it: World, text: str | None) -> None:
    it.project = replace(it.project, policy=None if text is None else parse_policy(text))


@asynccontextmanager
async def ruled(world: MakeWorld, text: str | None, script: Any, *tools: Any, **options: Any) -> AsyncIterator[World]:
    """A world whose worker has this policy."""
    async with world(script, *tools, works=False, **options) as it:
        set_policy(it, text)
        async with it.worker():
            yield it


async def verdicts_of(run: Run) -> dict[str, Any]:
    """The verdicts in the results of the run's activities."""
    found: dict[str, Any] = {}
    async for event in run.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            for payload in event.activity_task_completed_event_attributes.result.payloads:
                result = json.loads(payload.data)
                result = result.get("reply") or result
                found |= result.get("verdicts", {}) if isinstance(result, dict) else {}
    return found


async def test_rules_allow_ask_and_deny_and_their_verdicts_are_recorded(world: MakeWorld) -> None:
    money, delete = refund(), ScriptedTool("delete", effect=Effect.once)
    script = [calls(("refund", {"cents": 5}), ("refund", {"cents": 9000}), ("delete", {})), FINISH]
    async with ruled(world, SMALL, script, money, delete) as it:
        run = await it.start()
        question = await it.answer(run, decision="approve", by="eva", sender=sent_by("eva", "finance"))
        assert question["text"].endswith("The rule that asks: other refunds")
        await result_of(run)
        shown = await it.shown(run)
        assert [arguments for arguments, _ in money.calls] == [{"cents": 5}, {"cents": 9000}]
        assert delete.calls == []
        assert shown[2] == "denied: not made: the project's policy denies it (no deletes: only people delete)"
        found = await verdicts_of(run)
        assert [(found[f"toolu_0_{n}"]["verdict"], found[f"toolu_0_{n}"]["rule"]) for n in range(3)] == [
            ("allow", "small refunds"),
            ("ask", "other refunds"),
            ("deny", "no deletes"),
        ]
        assert found["toolu_0_1"]["terms"] == [{"approvers": ["finance"]}]
        assert found["toolu_0_1"]["facts"] == {"calls": {"refund": 1}, "has_read": []}
        await it.replay()
        stores = it.project.stores
        record = await Exporter(it.client, stores, LocalStores(it.project.workspaces), asks=False).export(id_of(run))
        executions, calls_made = record.executions, {call.tool_use_id: call for call in record.calls}
        assert list(list_verdicts(collect_verdicts(executions), calls_made)) == [
            "step 1  refund  allow  small refunds",
            "step 2  refund  ask  other refunds",
            "step 3  delete  deny  no deletes",
        ]
        second = next(call for call in calls_made.values() if call.step == 2)
        policy = await read_stored_policy(it.project.stores.of(id_of(run)), found["toolu_0_1"]["policy"])
        assert explain_verdict(second, collect_verdicts(executions)[second.tool_use_id], policy) == [
            "step 2   refund cents=9000",
            "verdict  ask: rule 'other refunds'",
            f"policy   {policy.ref}",
            'terms    {"approvers":["finance"]}',
            'facts    {"calls": {"refund": 1}, "has_read": []}',
            f"before   small refunds: `when` does not hold: {policy.rules[0].rule.when}",
        ]
        denied = calls_made["toolu_0_2"]
        assert explain_verdict(denied, collect_verdicts(executions)["toolu_0_2"], policy)[:4] == [
            "step 3   delete",
            "verdict  deny: rule 'no deletes'",
            f"policy   {policy.ref}",
            "reason   only people delete",
        ]


async def test_a_run_that_has_read_the_web_asks_also_with_fused_reads(world: MakeWorld) -> None:
    for fuses in (False, True):
        script = [calls(("refund", {"cents": 1})), calls(("fetch", {})), calls(("refund", {"cents": 1})), FINISH]
        async with ruled(world, SMALL, script, refund(), fetch(), fuses=fuses) as it:
            run = await it.start()
            assert (await it.answer(run, decision="deny", sender=sent_by("eva", "finance")))["kind"] == "approval"
            await result_of(run)
            assert (await it.shown(run))[2].startswith("denied: a person denied")
            await it.replay()


async def test_an_approval_of_the_tool_does_not_cover_what_a_rule_asks(world: MakeWorld) -> None:
    script = [*(calls(("refund", {"cents": cents})) for cents in (0, 9000)), FINISH]
    money, text = refund(Approval.always), '[[rule]]\nwhen = "args.cents > 0"\nthen = "ask"\ntools = ["refund"]'
    async with ruled(world, text, script, money) as it:
        run = await it.start()
        await it.answer(run, decision="approve_tool", question_id="q1")  # which the tool's own declaration asks
        await it.until_question(run, "q2")
        for_all = {"decision": "approve_tool", "question_id": "q2"}
        assert "about this call alone" in (await rejection_of(run, "answer", for_all)).message
        await run.execute_update("answer", {"decision": "deny", "question_id": "q2"})
        await result_of(run)
        assert len(money.calls) == 1


async def test_a_run_whose_policy_changed_has_to_satisfy_the_people_of_both(world: MakeWorld) -> None:
    ops = '[[rule]]\ntools = ["refund"]\nthen = "ask"\napprovers = ["ops"]'
    money, script = refund(), [calls(("ask_human", {"question": "Go on?"})), calls(("refund", {"cents": 5})), FINISH]
    async with world(script, money, works=False) as it:
        set_policy(it, ops)
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
        set_policy(it, QUORUM)
        async with it.worker():
            await it.answer(run, text="yes", question_id="q1")
            question = await it.until_question(run, "q2")
            assert question["terms"] == [{"approvers": ["ops"]}, {"approvers": ["finance"], "quorum": 2}]

            async def approve(name: str, group: str) -> None:
                body = {"question_id": "q2", "decision": "approve", "sender": sent_by(name, group)}
                await run.execute_update("answer", body)

            await approve("olga", "ops")
            await approve("ann", "finance")
            assert money.calls == []
            again = {"question_id": "q2", "decision": "approve", "sender": sent_by("olaf", "ops")}
            assert "is for finance" in (await rejection_of(run, "answer", again)).message
            await approve("eva", "finance")
            await result_of(run)
            assert len(money.calls) == 1
            await it.replay()


@pytest.mark.parametrize("loosens", [True, False])
async def test_allow_is_looser_than_the_tool_only_if_the_policy_may_loosen(world: MakeWorld, loosens: bool) -> None:
    text = f'may_loosen = {str(loosens).lower()}\n[[rule]]\ntools = ["refund"]\nthen = "allow"'
    async with ruled(world, text, [calls(("refund", {"cents": 1})), FINISH], refund(Approval.always)) as it:
        run = await it.start()
        if not loosens:
            await it.answer(run, decision="approve")
        await result_of(run)
        assert (await it.shown(run))[0].startswith("ok")


async def test_a_stricter_policy_holds_from_the_next_call_and_a_looser_one_for_later_runs(world: MakeWorld) -> None:
    loose = '[[rule]]\ntools = ["refund"]\nthen = "allow"'
    script = BreakingScript(calls(("fetch", {})), calls(("refund", {"cents": 1})), FINISH, breaks=1)
    for first, second, expected in ((None, CLOSED, "denied"), (CLOSED, None, "denied"), (CLOSED, loose, "denied")):
        script.breaks = 1
        async with world(script, refund(), ScriptedTool("fetch"), works=False) as it:
            set_policy(it, first)
            async with it.worker():
                run = await it.start()
                await failure_of(run)
            script.breaks = None
            set_policy(it, second)
            async with it.worker():
                again = await it.resume(run)
                await result_of(again)
                assert (await it.shown(again))[-2].startswith(expected), (first, second)
                later = await it.start()
                await result_of(later)
                text = (await it.shown(later))[-2]
                assert text.startswith("denied" if second == CLOSED else "ok"), (first, second)


async def test_a_call_that_was_open_before_there_was_a_policy_is_judged_before_it_is_made(world: MakeWorld) -> None:
    money = refund(Approval.always)
    async with world([calls(("refund", {"cents": 9000})), FINISH], money, works=False) as it:
        async with it.worker():
            run = await it.start_raw(
                {"type": "agentic.start", "payload": {"goal": "g"}}, run_timeout=timedelta(seconds=4)
            )
            await it.until_state(run, question=True)
            with pytest.raises(WorkflowFailureError):
                await result_of(run)
        set_policy(it, CLOSED)
        async with it.worker():
            again = await it.resume(run)
            await result_of(again)
            assert "check_policy" in await timeline(again)
            assert (await it.shown(again))[0].startswith("denied: not made")
            assert money.calls == []
            await it.replay()


async def test_subtasks_inherit_what_the_lead_has_read_and_the_lead_what_they_may_read(world: MakeWorld) -> None:
    lead = Agent(name="lead", prompt="I am lead.", tools=("fetch", "refund"), peers=("payer", "scout"))
    payer = Agent(name="payer", prompt="I am payer.", tools=("refund",))
    scout = Agent(name="scout", prompt="I am scout.", tools=("fetch",))
    text = "[[rule]]\nwhen = \"tool == 'refund' && run.has_read.exists(s, s == 'web')\"\nthen = \"deny\""

    def script(body: dict[str, Any]) -> Any:
        name, turn = agent_of(body), count_replies(body)
        if name == "lead":
            pay = calls(("delegate", {"subtasks": [task("p", "payer")]}))
            look = calls(("delegate", {"subtasks": [task("s", "scout")]}))
            return [pay, look, calls(("refund", {"cents": 1})), pay, FINISH][turn]
        if name == "payer":
            return [calls(("refund", {"cents": 1})), FINISH][turn]
        return says("nothing read")

    money = refund()
    async with ruled(world, text, script, money, fetch(), agents=(lead, payer, scout)) as it:
        run = await it.start(agent="lead")
        await result_of(run)
        shown = await it.shown(run)
        assert shown[2].startswith("denied")  # the scout may have read the web
        assert len(money.calls) == 1  # the first payer's: the second one inherits
        await it.replay()


async def test_an_agent_that_no_rule_is_about_has_no_trace_of_a_policy_in_its_history(world: MakeWorld) -> None:
    for text in (None, '[[rule]]\nagents = ["another"]\nthen = "deny"'):
        async with ruled(world, text, [calls(("refund", {"cents": 1})), FINISH], refund()) as it:
            history = await it.raw_history(await it.run_to_end())
            assert b"verdict" not in history
            assert b'"policy"' not in history


REVIEWS = {
    "allows": "ok",
    "denies": "denied: not made: the project's policy denies it (checked: policy_reviews:denies: too much)",
    "raises": "denied: a person denied",
    "odd": "denied: a person denied",
    "hangs": "denied: a person denied",
}


@pytest.mark.parametrize("name", REVIEWS)
async def test_a_review_decides_and_one_that_fails_asks(
    world: MakeWorld, name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy_reviews.py").write_text(
        "import time\n"
        "def allows(call):\n    call['args']['cents'] = 0\n    return 'allow'\n"
        "def denies(call):\n    return 'deny', 'too much'\n"
        "def raises(call):\n    raise RuntimeError(call['tool'])\n"
        "def odd(call):\n    return True\n"
        "def hangs(call):\n    time.sleep(2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("perdure.activities.policy.FUNCTION_TIMEOUT", 0.2)
    text = f'[[rule]]\nname = "checked"\ntools = ["refund"]\nthen = "review"\nreview = "policy_reviews:{name}"'
    money = refund()
    async with ruled(world, text, [calls(("refund", {"cents": 1})), FINISH], money) as it:
        run = await it.start()
        if name not in ("allows", "denies"):
            await it.answer(run, decision="deny")
        await result_of(run)
        assert (await it.shown(run))[0].startswith(REVIEWS[name])
        assert [arguments for arguments, _ in money.calls] == ([{"cents": 1}] if name == "allows" else [])


async def test_a_person_accepts_a_looser_policy_for_one_run_and_signs_it_if_answers_are_signed(
    world: MakeWorld,
) -> None:
    loose = '[[rule]]\ntools = ["refund"]\nthen = "allow"'
    keys = read_answer_keys("k1:" + b64encode(b"1" * 32).decode())
    ask, pay = calls(("ask_human", {"question": "Go on?"})), calls(("refund", {"cents": 1}))
    async with world([ask, pay, FINISH], refund(), works=False) as it:
        set_policy(it, CLOSED)
        it.project = replace(it.project, answer_keys=keys.public)
        async with it.worker():
            run = await it.start()
            await it.until_state(run, question=True)
            unknown = parse_policy(loose).ref
            with pytest.raises(RejectedError) as refused:
                await accept_policy(it.client, id_of(run), parse_policy(loose), keys)
            closed = parse_policy(CLOSED).ref
            assert str(refused.value) == (
                f"there is no policy {unknown}: the worker has {closed}, the run follows {closed}; "
                "restart the worker with the policy.toml that is accepted"
            )
        set_policy(it, loose)
        async with it.worker():
            with pytest.raises(RejectedError, match="set PERDURE_ANSWER_KEY"):
                await accept_policy(it.client, id_of(run), parse_policy(loose), NO_KEYS)
            forged = {"question_id": f"policy:{parse_policy(loose).ref}", "decision": "approve"}
            assert "this one is not signed" in (await rejection_of(run, "accept_policy", forged)).message
            assert "expected" in (await rejection_of(run, "accept_policy", {"text": "yes"})).message
            await accept_policy(it.client, id_of(run), parse_policy(loose), keys, "eva")
            await submit_answer(it.client, id_of(run), HumanInput(text="yes"), keys)
            await result_of(run)
            assert (await it.shown(run))[1].startswith("ok")
            await it.replay()


QUORUM = """
[[rule]]
tools = ["refund"]
then = "ask"
approvers = ["finance"]
quorum = 2
not_requester = true
"""


async def test_an_approval_takes_two_people_of_the_group_and_never_the_requester(world: MakeWorld) -> None:
    money = refund()
    async with ruled(world, QUORUM, [calls(("refund", {"cents": 5})), FINISH], money) as it:
        run = await it.start_raw(
            {"type": "agentic.start", "payload": {"goal": "do it"}, "sender": sent_by("rob")}, id=f"run:{it.queue}"
        )
        await it.until_state(run, question=True)

        async def refusal(name: str, *groups: str) -> str:
            body = {"question_id": "q1", "decision": "approve", "sender": sent_by(name, *groups)}
            return (await rejection_of(run, "answer", body)).message

        assert "finance" in await refusal("ann", "sales")
        assert "rob" in await refusal("rob", "finance")
        first = {"question_id": "q1", "decision": "approve", "sender": sent_by("ann", "finance")}
        await run.execute_update("answer", first)
        assert "approved question q1 already" in await refusal("ann", "finance")
        assert money.calls == []
        await run.execute_update("answer", {**first, "sender": sent_by("eva", "finance")})
        await result_of(run)
        assert len(money.calls) == 1
        await it.replay()


async def test_a_changed_call_is_judged_by_the_policy_again(world: MakeWorld) -> None:
    money, text = (
        refund(),
        """
[[rule]]
tools = ["refund"]
when = "args.cents > 100"
then = "deny"
reason = "too much"
[[rule]]
tools = ["refund"]
then = "ask"
""",
    )
    async with ruled(world, text, [calls(("refund", {"cents": 50})), FINISH], money) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        change = {"question_id": "q1", "decision": "approve"}
        refused = (await rejection_of(run, "answer", {**change, "arguments": {"cents": 500}})).message
        assert "the policy denies the changed call: too much" in refused
        await run.execute_update("answer", {**change, "arguments": {"cents": 40}, "by": "eva"})
        await result_of(run)
        assert [arguments for arguments, _ in money.calls] == [{"cents": 40}]
        assert "eva changed the arguments of this call" in (await it.shown(run))[0]
        await it.replay()
