"""A policy is tried on what past runs did: nothing is called, and the record is evaluated again beside it."""

from dataclasses import replace
from typing import Any

import pytest

from perdure.activities.model.transcript_cache import TranscriptCache
from perdure.activities.policy import PolicyChecks
from perdure.activities.storage.store import LocalStores
from perdure.client.errors import RejectedError
from perdure.client.records.export import Exporter
from perdure.contracts.tool import Effect
from perdure.decisions.policy.rules import parse_policy
from perdure.features.proof.contract import ReplayedCall
from perdure.features.proof.policy import replay_policy
from perdure.testkit.model_server import calls
from perdure.testkit.tools import ScriptedTool
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.runs import result_of
from tests.workflows.script import FINISH
from tests.workflows.test_policy import SMALL, refund, ruled, sent_by

STRICT = """
[[rule]]
name = "tiny refunds"
tools = ["refund"]
when = "args.cents <= 5 && now > timestamp('2026-01-01T00:00:00Z')"
then = "allow"
[[rule]]
name = "after a refund"
tools = ["delete"]
when = "run.calls['refund'] >= 1"
then = "deny"
[[rule]]
name = "looked at"
tools = ["refund"]
then = "review"
review = "nowhere:to_be_found"
"""


async def replayed(it: World, run: Run, policy: str = STRICT) -> list[ReplayedCall]:
    exporter = Exporter(it.client, it.project.stores, LocalStores(it.project.workspaces), asks=False)
    checks = PolicyChecks(TranscriptCache(it.client, it.project.stores), it.project)
    return await replay_policy(await exporter.export(run.id), parse_policy(policy), checks, it.project)


def columns(rows: list[ReplayedCall]) -> list[tuple[Any, ...]]:
    return [(row.tool, row.observed, row.verdict, row.as_it_was, row.candidate, row.rule) for row in rows]


async def test_each_call_has_what_happened_the_verdict_again_and_the_candidates(world: MakeWorld) -> None:
    money, delete = refund(), ScriptedTool("delete", effect=Effect.once)
    script = [
        calls(("refund", {"cents": 5}), ("refund", {"cents": 9000})),
        calls(("delete", {})),
        FINISH,
    ]
    async with ruled(world, SMALL, script, money, delete) as it:
        run = await it.start()
        await it.answer(run, decision="approve", sender=sent_by("eva", "finance"))
        await result_of(run)
        made = len(money.calls)
        assert columns(await replayed(it, run)) == [
            ("refund", "made", "allow", "allow", "allow", "tiny refunds"),
            ("refund", "approved", "ask", "ask", "review", "looked at"),
            ("delete", "denied", "deny", "deny", "deny", "after a refund"),
            ("finish", "made", "-", "-", "-", None),
        ]
        it.project = replace(it.project, policy=None)  # the run's own store has its policy
        assert columns(await replayed(it, run))[0][3] == "allow"
        assert len(money.calls) == made


async def test_a_run_without_a_policy_is_judged_by_the_candidate_alone(world: MakeWorld) -> None:
    async with ruled(world, None, [calls(("refund", {"cents": 9000})), FINISH], refund()) as it:
        run = await it.run_to_end()
        assert columns(await replayed(it, run, SMALL))[0] == ("refund", "made", "-", "-", "ask", "other refunds")


async def test_an_open_run_is_not_replayed(world: MakeWorld) -> None:
    async with ruled(world, None, [calls(("ask_human", {"question": "?"}))], refund()) as it:
        run = await it.start()
        await it.until_state(run, question=True)
        with pytest.raises(RejectedError, match="is open, or its conversation is not complete"):
            await replayed(it, run)
