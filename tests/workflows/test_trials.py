"""A trial reaches nobody: a dry run, an evaluation and a crash test announce nothing, and what they start neither."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.contracts.agent import Agent
from perdure.contracts.people import NoticeKind
from perdure.contracts.policy import Rubric
from perdure.features.follow_ups.outbox import LogOutbox, outbox_of
from perdure.features.notices.channels import WebhookSender, channels_of
from perdure.features.proof.case import case_start_event
from perdure.features.proof.contract import Case
from perdure.features.proof.worker import _play_settings
from perdure.features.reconciler.activities import ReconcileQueries, Reconciler
from perdure.features.reconciler.contract import Place
from perdure.features.starts.activities import starts_of
from perdure.process.project import display_project
from perdure.settings import load_settings
from perdure.testkit.model_server import Reply, calls, says
from perdure.testkit.tools import ScriptedTool
from tests.workflows import checks
from tests.workflows.conftest import MakeWorld, World
from tests.workflows.following import make_follow_ups
from tests.workflows.runs import result_of
from tests.workflows.script import FINISH, count_replies, forced_tool
from tests.workflows.test_delegation import delegates, script, task, tree
from tests.workflows.test_notices import ASK, ENDS, SECRET, add_channel, has_rows, receiving
from tests.workflows.test_outside import asks, scribe
from tests.workflows.test_policy import set_policy

TRIALS = [{"dry_run": True}, {"quiet": True}]
LEAD = Agent(name="lead", prompt="I am lead.", peers=("writer",), tools=())
WRITER = Agent(name="writer", prompt="I am writer.", tools=())


def test_an_evaluation_starts_trials() -> None:
    case = Case(goal="x")
    assert case_start_event(case, None, quiet=True).payload.quiet
    assert not case_start_event(case, None).payload.quiet


@pytest.mark.parametrize("payload", TRIALS)
async def test_a_trial_and_its_subtasks_announce_neither_questions_nor_ends(
    world: MakeWorld, payload: dict[str, Any]
) -> None:
    answers = script([ASK, delegates(task("a")), FINISH], lambda body: [ASK, FINISH][count_replies(body)])
    with receiving() as receiver:
        async with world(answers, agents=[LEAD, WRITER], works=False) as it, httpx.AsyncClient() as client:
            add_channel(it, WebhookSender(receiver.url, SECRET, client), NoticeKind.waiting, *ENDS)
            async with it.worker():
                run = await it.start(agent="lead", **payload)
                await it.answer(run, text="b")
                if "quiet" in payload:  # a dry run makes no subtasks
                    await it.until(lambda: has_child(it, run.id))
                    await it.answer(it.client.get_workflow_handle(f"{run.id}.2-a"), text="b")
                await result_of(run)
                found = await tree(it, run)
                count = await it.client.count_workflows(f"WorkflowType = 'Notify' AND TaskQueue = '{it.queue}'")
    assert len(found) == (3 if "quiet" in payload else 1)
    assert (count.count, receiver.requests) == (0, [])


async def has_child(it: World, run_id: str) -> bool:
    return bool([row async for row in it.client.list_workflows(f"WorkflowId = '{run_id}.2-a'")])


@pytest.mark.parametrize("payload", [*TRIALS, {}])
async def test_the_reconciler_announces_no_trial_that_was_terminated_or_is_stuck(
    world: MakeWorld, payload: dict[str, Any]
) -> None:
    async with world([ASK], works=False) as it, httpx.AsyncClient() as client:
        kinds = (*ENDS, NoticeKind.wedged)
        add_channel(it, WebhookSender("http://127.0.0.1:9/", SECRET, client), *kinds)
        reconciler = Reconciler(it.client, it.project.stores, it.queue, channels=channels_of(it.project))
        run = await it.start(**payload)  # no worker answers, so only the start tells
        await run.terminate("not needed")
        ended = f"WorkflowId = '{run.id}' AND ExecutionStatus = 'Terminated'"
        await it.until(lambda: has_rows(it, ended))
        report = await reconciler.run_pass()
        place = Place(namespace="default", task_queue=it.queue)
        server = ReconcileQueries(it.client, place, datetime.now(UTC), repairs=False, since={})
        stuck = await reconciler._wedged_notices(server, {run.id.removeprefix("run:"): "default"})
    assert (len(report.notices), len(stuck)) == ((0, 0) if payload else (1, 1))


async def test_a_follow_up_of_a_trial_sends_no_message_and_resumes_a_trial(world: MakeWorld, tmp_path: Path) -> None:
    message = {"channelId": "x", "text": "I asked B.", "completion": "ack"}

    def answer(body: dict[str, Any]) -> Reply:
        if "resume" in str(body["messages"][0]) or "workflowId" not in str(body["messages"]):
            return [calls(("workflow_create", {"definition": {"summary": "ask B"}})), FINISH][count_replies(body)]
        name = str(body["messages"]).partition('"workflowId":"')[2].partition('"')[0]
        add = {"workflowId": name, "kind": "notify", "description": "tell B", "input": message}
        return [FINISH, calls(("workflow_task_create", add)), FINISH][count_replies(body)]

    async with make_follow_ups(world)(answer, outbox=LogOutbox(tmp_path / "out")) as here:
        run = await here.it.run_to_end(quiet=True)
        follow_up = await here.follow_up_of(run)
        await follow_up.result()
        (sent,) = (await here.it.state(follow_up))["tasks"]
        (request,) = await here.requests(run.id.removeprefix("run:"))
    assert (sent["state"], sent["result"]["status"]) == ("resolved", "not_sent")
    assert request["quiet"]
    assert not (tmp_path / "out").exists()


async def test_a_trial_sends_no_mail_to_a_peer_outside(world: MakeWorld) -> None:
    peer = scribe()
    lead = Agent(name="lead", prompt="I am lead.", peers=(peer.name,), tools=())
    async with world([asks(peer), FINISH], agents=[lead, peer]) as it:
        run = await it.start(agent="lead", quiet=True)
        await result_of(run)
        (text, _) = await it.shown(run)
        delegation = it.client.get_workflow_handle(f"{run.id}/delegation:1")
        history = await delegation.fetch_history()
    assert "not sent: a trial sends no mail" in text
    assert "dispatch_mail" not in history.to_json()


CHECK = "tests.workflows.checks:has_good_outcome"


@pytest.mark.parametrize(("dry_run", "called"), [(True, 0), (False, 1)])
@pytest.mark.parametrize("reply", [says("a good one"), calls(("finish", {"outcome": "a good one"}))])
async def test_a_dry_run_calls_no_function_that_checks_its_outcome(
    world: MakeWorld, reply: Reply, dry_run: bool, called: int
) -> None:
    checks.seen.clear()
    async with world([reply], agents=[Agent(name="default", accept=CHECK, tools=())]) as it:
        payload = (await result_of(await it.start(dry_run=dry_run)))["payload"]
    assert (payload["outcome"], len(checks.seen)) == ("a good one", called)
    assert payload.get("accepted_by") == (None if dry_run else CHECK)


async def test_a_dry_run_asks_a_model_about_its_outcome_as_any_run(world: MakeWorld) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        return calls(("verdict", {"accepted": True})) if forced_tool(body) else says("done")

    rubric = Rubric(rubric="It is short.")
    async with world(answer, agents=[Agent(name="default", accept=rubric, tools=())]) as it:
        payload = (await result_of(await it.start(dry_run=True)))["payload"]
        assert len(it.model.requests) == 2
    assert payload["accepted_by"] == "rubric by scripted"


def allow_and_count(facts: dict[str, Any]) -> str:
    reviewed.append(facts["tool"])
    return "allow"


reviewed: list[str] = []
REVIEW = """
[[rule]]
tools = ["look"]
then = "review"
review = "tests.workflows.test_trials:allow_and_count"
"""


@pytest.mark.parametrize("began_with_policy", [True, False])
async def test_a_dry_run_calls_no_function_that_reviews_and_asks_a_person_about_the_read(
    world: MakeWorld, began_with_policy: bool
) -> None:
    reviewed.clear()
    look = ScriptedTool("look")
    script = [calls(("look", {"n": 1})), FINISH]
    script = script if began_with_policy else [ASK, *script]
    async with world(script, look, works=False) as it:
        run = await it.start(dry_run=True)
        if not began_with_policy:
            async with it.worker():
                await it.until_question(run, "q1")
        set_policy(it, REVIEW)
        async with it.worker():
            if not began_with_policy:
                await it.answer(run, text="b")
            question = await it.until_question(run, f"q{1 if began_with_policy else 2}")
            assert "allow_and_count is not called in a dry run" in question["text"]
            await it.answer(run, decision="approve")
            await result_of(run)
    assert (reviewed, len(look.calls)) == ([], 1)


SETTINGS = """
[outbox]
kind = "http"
url = "https://bridge.test/out"
effect = "keyed"

[gateway.webhooks.github]
scheme = "github"
secret_env = "GITHUB_SECRET"

[[start]]
name = "issues"
webhook = "github"
on = ["issues.opened"]
goal = "Answer."
answer = true

[[notify]]
name = "ops"
kind = "webhook"
url = "https://ops.test/hook"
secret_env = "OPS"
"""


async def test_a_play_of_a_crash_test_has_no_channel_and_writes_messages_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "perdure.toml").write_text(SETTINGS)
    settings = load_settings({}, tmp_path)
    async with display_project(_play_settings(replace(settings, folder=tmp_path))) as project:
        assert (channels_of(project), starts_of(project)) == ((), ())
        assert isinstance(outbox_of(project), LogOutbox)
