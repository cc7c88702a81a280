"""A policy is not passed by spreading calls over runs: counts and history are those of the whole request."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from temporalio import activity

from perdure.activities import policy
from perdure.contracts.policy import CallsOfOthers, ReserveRequest, SharedCall, SharedCallsState, Verdict
from perdure.contracts.run.transcript import Part
from perdure.contracts.run.turn import ModelTurn, Usage
from perdure.decisions.policy.facts import MAX_LISTED, SharedFacts, facts_of_policies, reserve_calls
from perdure.decisions.policy.rules import parse_policy
from perdure.decisions.run.transcript import goal_part, reply_part, result_part
from tests.activities.test_policy_arrangements import NOW, ORDER, PLAIN, RULES, Asked, Fate, Judge, arrange

OVER_RUNS = sorted(set(RULES) - {"nothing after the web"})  # what was read passes on from run to run, not here


class Request:
    """The calls of one request, and the judge of its runs."""

    def __init__(self, text: str) -> None:
        self.judge, self.run = Judge(text), "r"
        self.state = SharedCallsState(root="r")
        self.judge._checks._reserve = self.reserve
        self.conversations: dict[str, list[Part]] = {}
        self.attempts = 0

    async def reserve(self, root: str, request: ReserveRequest) -> CallsOfOthers:
        assert (root, request.run) == ("r", self.run) or root == self.run
        self.state, others = reserve_calls(self.state, request)
        return others

    @contextmanager
    def acting_as(self, run: str) -> Iterator[list[Part]]:
        self.run, self.attempts = run, self.attempts + 1
        info = SimpleNamespace(scheduled_time=NOW + timedelta(seconds=self.attempts), attempt=1)
        with patch.object(policy, "own_run_id", lambda: run), patch.object(activity, "info", lambda: info):
            yield self.conversations.setdefault(run, [goal_part("go", {})])

    def play(self, run: str, calls: Sequence[Asked], *, is_lost: bool = False) -> list[Fate]:
        """The run asks for these calls in one reply. `is_lost`: with its worker, so that none of them is made."""
        with self.acting_as(run) as parts:
            names = [f"c{len(parts)}_{number}" for number in range(len(calls))]  # alike in all runs
            rows = zip(names, calls, strict=True)
            content = [{"type": "tool_use", "id": n, "name": c.tool, "input": c.arguments} for n, c in rows]
            fates = [Fate(c, v) for c, v in zip(calls, self.judge.judge(content, parts), strict=True)]
            if not is_lost:
                steps = len(parts)
                parts.append(reply_part(ModelTurn(content=content, model="m", usage=Usage())))
                results = zip(names, fates, strict=True)
                parts += [result_part(n, fate.asked.tool, steps, fate.outcome) for n, fate in results]
        return fates


def denying(when: str) -> str:
    return f"[[rule]]\ntools = ['refund']\nwhen = \"{when}\"\nthen = 'deny'"


CALLS = st.lists(st.builds(Asked, st.sampled_from(["refund", "approve", "ask_human"]), PLAIN), min_size=1, max_size=7)


@given(st.sampled_from(OVER_RUNS), CALLS, st.lists(st.integers(0, 2), min_size=7, max_size=7))
@example("few", [Asked("refund", {"id": 1, "cents": 200})] * 4, [0, 1, 2, 0, 1, 2, 0])
def test_each_split_over_runs_gives_each_call_the_verdict_of_one_run_or_a_stricter_one(
    name: str, calls: list[Asked], runs: list[int]
) -> None:
    request = Request(denying(RULES[name]))
    split = [request.play(f"r{run}", [call])[0] for run, call in zip(runs, calls, strict=False)]
    alone = arrange(Judge(denying(RULES[name])), calls, fates=split)
    for here, there in zip(split, alone, strict=True):
        assert ORDER.index(here.verdict.verdict) >= ORDER.index(there.verdict.verdict)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.booleans()), max_size=8))
def test_the_calls_that_are_made_never_exceed_the_bound_in_any_order_of_runs_and_lost_workers(
    replies: list[tuple[int, int, bool]],
) -> None:
    request = Request(denying("run.calls['refund'] >= 2"))
    made = 0
    for run, size, is_lost in replies:
        fates = request.play(f"r{run}", [Asked("refund", {"id": 1, "cents": 1})] * size, is_lost=is_lost)
        made += sum(fate.is_made for fate in fates) if not is_lost else 0
    assert made <= 2


def test_a_reply_that_was_lost_with_its_worker_makes_no_room_smaller() -> None:
    request, refund = Request(denying("run.calls['refund'] >= 2")), Asked("refund", {"id": 1, "cents": 1})
    for _ in range(3):
        request.play("r1", [refund, refund], is_lost=True)
    assert [fate.is_made for fate in request.play("r1", [refund, refund])] == [True, True]
    assert not request.play("r2", [refund])[0].is_made


def test_an_attempt_that_ends_after_a_later_one_reserves_nothing() -> None:
    call = SharedCall(tool_use_id="a", tool="refund")
    state = SharedCallsState(root="r")
    late = ReserveRequest(run="r1", place=1, order="2", replaces=True, calls=(call,))
    state, _ = reserve_calls(state, late)
    again, _ = reserve_calls(state, late.evolve(order="1", calls=(call, call, call)))
    assert again == state
    assert reserve_calls(state, late)[0] == state


def test_what_is_too_old_to_be_listed_still_counts_and_says_that_the_history_is_cut() -> None:
    state = SharedCallsState(root="r")
    for place in range(MAX_LISTED + 5):
        call = SharedCall(tool_use_id=f"t{place}", tool="refund", arguments={"text": "x" * 3000})
        state, _ = reserve_calls(state, ReserveRequest(run="r1", place=place, calls=(call,)))
    assert len(state.calls) == MAX_LISTED
    _, others = reserve_calls(state, ReserveRequest(run="r2", needs_history=True))
    assert (others.counts, others.is_cut) == ({"refund": MAX_LISTED + 5}, True)
    assert len(state.model_dump_json()) < 400 * 1024
    _, own = reserve_calls(state, ReserveRequest(run="r1", needs_history=True))
    assert (own.counts, own.is_cut) == ({}, False)


ALL = SharedFacts(None)


@pytest.mark.parametrize(
    ("when", "facts"),
    [
        ("args.cents > 5", SharedFacts()),
        ("run.has_read.exists(s, s == 'web')", SharedFacts()),
        ("run.calls['refund'] > 2 && run.calls[\"pay\"] > 1", SharedFacts(frozenset({"refund", "pay"}))),
        ("run.calls.refund > 2", SharedFacts(frozenset({"refund"}))),
        ("run.calls[args.tool] > 2", ALL),
        ("run.calls.exists(t, run.calls[t] > 2)", ALL),
        ("size(run.calls) > 2", ALL),
        ("history.exists(h, h.tool == 'pay' && h.args.id == 1)", SharedFacts(frozenset({"pay"}), history=True)),
        ("history.exists(h, h.tool == 'pay')", SharedFacts(frozenset({"pay"}), history=True)),
        ("history.exists(h, h.tool == 'pay' || h.args.id == 1)", SharedFacts(None, history=True)),
        ("size(history) > 2", SharedFacts(None, history=True)),
        ("history.all(h, h.tool == 'pay')", SharedFacts(None, history=True)),
    ],
)
def test_which_calls_are_reserved_follows_from_the_expressions(when: str, facts: SharedFacts) -> None:
    text = denying(when.replace('"', '\\"'))
    assert facts_of_policies([parse_policy(text)]) == facts


def test_a_request_without_such_a_rule_reserves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(denying("run.has_read.exists(s, s == 'web') || args.cents > 9"))
    refund: Any = Asked("refund", {"id": 1, "cents": 1})
    assert request.play("r1", [refund])[0].verdict.verdict is Verdict.allow
    counting = Request(denying("run.calls['refund'] >= 2"))
    counting.play("r1", [Asked("approve", {"id": 1})])
    assert request.state.calls == counting.state.calls == ()
