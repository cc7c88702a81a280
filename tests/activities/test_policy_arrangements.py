"""A policy is not passed by arranging calls: each verdict is that of one call a reply in one run, or a stricter one."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from hypothesis import example, given
from hypothesis import strategies as st

from perdure.activities.model.transcript_cache import TranscriptCache
from perdure.activities.policy import PolicyChecks, PolicyInForce
from perdure.activities.project import Project
from perdure.contracts.agent import Definition, ToolSchema
from perdure.contracts.policy import PolicyContext, PolicyVerdict, Verdict
from perdure.contracts.run.limits import LimitOverrides
from perdure.contracts.run.transcript import Part
from perdure.contracts.run.turn import ModelTurn, Usage
from perdure.contracts.tool import ToolOutcome, error_outcome
from perdure.decisions.policy.facts import RequestedCalls
from perdure.decisions.policy.rules import parse_policy
from perdure.decisions.run.transcript import goal_part, reply_part, result_part

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
ORDER = (Verdict.allow, Verdict.ask, Verdict.deny)
TOOLS = ("refund", "approve", "fetch", "ask_human")


@dataclass(frozen=True)
class Asked:
    """A call that the model asks for, and what its tool answers if it is made."""

    tool: str
    arguments: dict[str, Any]
    answer: str = "ok"  # or the kind of an error


@dataclass(frozen=True)
class Group:
    """The next calls, asked for in one reply. `begins`: another reply, or another turn of the conversation first."""

    calls: int
    begins: Literal["reply", "turn"] = "reply"


@dataclass(frozen=True)
class Fate:
    """A call, its verdict, and its result in the conversation. A person who is asked denies."""

    asked: Asked
    verdict: PolicyVerdict

    @property
    def is_made(self) -> bool:
        return self.verdict.verdict is Verdict.allow

    @property
    def outcome(self) -> ToolOutcome:
        answer = self.asked.answer if self.is_made else "denied"
        found = ToolOutcome(result="done") if answer == "ok" else error_outcome(answer, "said so")
        return found.evolve(at=NOW)


class Judge:
    """Gives verdicts on the calls of a reply after any conversation."""

    def __init__(self, text: str) -> None:
        project = Project(
            agents={}, tools={}, model="m", limits=LimitOverrides(), workspaces=Path("nowhere"), instructions=""
        )
        schemas = tuple(ToolSchema(name=name, description="", input_schema={}) for name in TOOLS)
        self.definition = Definition(agent="shop", model="m", system="", tools=schemas)
        self._checks = PolicyChecks(TranscriptCache.__new__(TranscriptCache), project)
        policy = parse_policy(text)
        self._force = PolicyInForce((policy,), PolicyContext(policy=policy.ref))

    def judge(self, content: list[dict[str, Any]], parts: Sequence[Part]) -> list[PolicyVerdict]:
        asked = RequestedCalls(content)
        judged = asyncio.run(self._checks.judge_calls(self._force, asked, parts, self.definition, NOW))
        # What no rule is about is made.
        made = PolicyVerdict(verdict=Verdict.allow, policy="")
        return [judged.verdicts.get(use.tool_use_id, made) for use in asked.uses]


def in_groups(calls: int, groups: Sequence[Group]) -> Iterator[tuple[Group, range]]:
    at = 0
    for group in (*groups, *[Group(1)] * calls):
        if size := min(group.calls, calls - at):
            yield group, range(at, at + size)
        at += size


def to_content(calls: Sequence[Asked]) -> list[dict[str, Any]]:
    rows = enumerate(calls)
    return [{"type": "tool_use", "id": f"c{n}", "name": call.tool, "input": call.arguments} for n, call in rows]


def arrange(
    judge: Judge, calls: Sequence[Asked], groups: Sequence[Group] = (), fates: Sequence[Fate] | None = None
) -> list[Fate]:
    """Play the calls in groups. With `fates`, each earlier call has ended as there, whatever its verdict here is."""
    parts: list[Part] = [goal_part("go", {})]
    found: list[Fate] = []
    for group, numbers in in_groups(len(calls), groups):
        if group.begins == "turn":
            parts.append(goal_part("go on", {}))
        content = [to_content(calls)[n] for n in numbers]
        verdicts = judge.judge(content, parts)
        found += [Fate(calls[n], verdict) for n, verdict in zip(numbers, verdicts, strict=True)]
        parts.append(reply_part(ModelTurn(content=content, model="m", usage=Usage())))
        ended = found if fates is None else fates
        parts += [result_part(f"c{n}", calls[n].tool, n + 1, ended[n].outcome) for n in numbers]
    return found


PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
LIMIT_AN_HOUR = next(text for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "duration('1h')" in text)

RULES = {
    "few": "run.calls['refund'] >= 2",
    "few before any approval": "run.calls['refund'] >= 1 && run.calls['approve'] == 0",
    "nothing after the web": "run.has_read.exists(s, s == 'web')",
    "nothing after a failure": "history.exists(h, h.outcome == 'tool_error')",
    "nothing twice": "history.exists(h, h.tool == tool && has(h.args.id) && h.args.id == args.id)",
    "approved": "!history.exists(h, h.tool == 'approve' && h.args.id == args.id && h.outcome == 'ok')",
    "no more than a person was asked": "size(history.filter(h, h.tool == 'ask_human')) > 1",
    "sum": "args.cents + total(history.filter(h, h.tool == 'refund').map(h, h.args.cents)) > 500",
    "sum of those that were made": (
        "args.cents + total(history.filter(h, h.tool == 'refund' && h.outcome == 'ok').map(h, h.args.cents)) > 500"
    ),
}
PLAIN = st.fixed_dictionaries({"id": st.integers(1, 2), "cents": st.sampled_from([200, 400])})
ODD = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(1, 2),
        "cents": st.sampled_from([1, -300, 0.5, "200", 2**70, None]),
        "note": st.sampled_from(["x" * 5_000, "\ud800"]),
    },
)
ARGUMENTS = PLAIN | PLAIN | ODD
ANSWERS = st.sampled_from(["ok", "tool_error", "in_doubt"])
CALLS = st.lists(st.builds(Asked, st.sampled_from(TOOLS), ARGUMENTS, ANSWERS), min_size=1, max_size=6)
GROUPS = st.lists(st.builds(Group, st.integers(1, 4), st.sampled_from(["reply", "turn"])), max_size=6)


def _policy(draw: st.DrawFn) -> str:
    names = draw(st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=3, unique=True))
    rows = [(RULES[name], draw(st.sampled_from(["allow", "ask", "deny"]))) for name in names]
    last = draw(st.sampled_from(["allow", "ask", "deny"]))
    rules = [f'[[rule]]\ntools = ["refund"]\nwhen = "{when}"\nthen = "{then}"' for when, then in rows]
    return "\n".join([*rules, f'[[rule]]\ntools = ["refund"]\nthen = "{last}"'])


def denied_if(name: str, then: str = "allow") -> str:
    return f'[[rule]]\ntools = ["refund"]\nwhen = "{RULES[name]}"\nthen = "deny"\n[[rule]]\nthen = "{then}"'


@given(st.composite(_policy)(), CALLS, GROUPS)
@example(denied_if("sum"), [Asked("refund", {"id": 1, "cents": 400})] * 2, [Group(2)])
@example(denied_if("sum"), [Asked("refund", {"id": 1, "cents": 400})] * 2, [Group(1), Group(1, "turn")])
@example(denied_if("nothing after a failure"), [Asked("refund", {"id": 1}, "tool_error")] * 2, [Group(2)])
@example(denied_if("few", "ask"), [Asked("refund", {"id": 1})] * 3, [Group(3)])
@example(denied_if("nothing after the web"), [Asked("fetch", {}), Asked("refund", {})], [Group(2)])
@example(denied_if("no more than a person was asked"), [Asked("ask_human", {})] * 2 + [Asked("refund", {})], [Group(3)])
def test_no_arrangement_makes_a_verdict_milder(text: str, calls: list[Asked], groups: list[Group]) -> None:
    if "run.calls" in text:  # counts are of one request, and a person begins the next one
        groups = [Group(group.calls) for group in groups]
    judge = Judge(text)
    alone = arrange(judge, calls)
    arranged = arrange(judge, calls, groups, alone)
    for one, other in zip(alone, arranged, strict=True):
        assert ORDER.index(other.verdict.verdict) >= ORDER.index(one.verdict.verdict), (one, other)


@given(CALLS, GROUPS)
@example([Asked("refund", {"cents": 30_000})] * 5, [Group(4)])
@example([Asked("refund", {"cents": cents}) for cents in (-1_000_000, 900_000)], [])
@example([Asked("refund", {"cents": 30_000}, "in_doubt")] * 2, [])
def test_calls_that_went_through_never_exceed_what_a_rule_bounds(calls: list[Asked], groups: list[Group]) -> None:
    bounds = f'{LIMIT_AN_HOUR}\n[[rule]]\ntools = ["refund"]\nwhen = "run.calls[\'refund\'] >= 4"\nthen = "deny"'
    scaled = [
        Asked(call.tool, {**call.arguments, "cents": call.arguments["cents"] * 100}, call.answer)
        if isinstance(call.arguments.get("cents"), int) and abs(call.arguments["cents"]) < 1000
        else call
        for call in calls
    ]
    single = [Group(group.calls) for group in groups]
    made = [fate for fate in arrange(Judge(bounds), scaled, single) if fate.is_made and fate.asked.tool == "refund"]
    effects = [fate.asked.arguments["cents"] for fate in made if fate.asked.answer != "tool_error"]
    assert all(isinstance(cents, int) and cents > 0 for cents in effects)
    assert sum(effects) <= 50_000
    assert len(made) <= 4


def test_what_the_provider_read_while_the_reply_was_written_counts_for_its_calls() -> None:
    judge = Judge('[[rule]]\ntools = ["refund"]\nwhen = "run.has_read.exists(s, s == \'web\')"\nthen = "deny"')
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
    pay = {"type": "tool_use", "id": "c1", "name": "refund", "input": {}}
    assert judge.judge([pay], [])[0].verdict is Verdict.allow
    assert judge.judge([search, pay], [])[0].verdict is Verdict.deny


def test_a_call_that_a_person_changed_counts_as_it_was_made() -> None:
    judge = Judge(LIMIT_AN_HOUR)
    block = {"type": "tool_use", "id": "c1", "name": "refund", "input": {"cents": 1}}
    parts = [goal_part("go", {}), reply_part(ModelTurn(content=[block], model="m", usage=Usage()))]
    pay = [{**block, "id": "c2", "input": {"cents": 1}}]
    for outcome, expected in ((ToolOutcome(result="x"), Verdict.ask), (error_outcome("denied", "x"), Verdict.allow)):
        changed = result_part("c1", "refund", 1, outcome.evolve(at=NOW), changed_by="eva", arguments={"cents": 50_000})
        assert judge.judge(pay, [*parts, changed])[0].verdict is expected


def test_beyond_the_bounds_of_history_a_rule_that_reads_it_cannot_be_evaluated() -> None:
    judge = Judge(LIMIT_AN_HOUR)
    pay = [{"type": "tool_use", "id": "p", "name": "refund", "input": {"cents": 1}}]

    def verdict_after(calls: list[Asked]) -> tuple[Verdict, str]:
        content = to_content(calls)
        reply = reply_part(ModelTurn(content=content, model="m", usage=Usage()))
        ended = ToolOutcome(result="x", at=NOW)
        results = [result_part(f"c{n}", call.tool, n + 1, ended) for n, call in enumerate(calls)]
        [verdict] = judge.judge(pay, [goal_part("go", {}), reply, *results])
        return verdict.verdict, verdict.reason

    small, long = Asked("fetch", {}), Asked("refund", {"cents": 1, "note": "x" * 5_000})
    assert verdict_after([small] * 200) == (Verdict.allow, "")
    beyond = verdict_after([small] * 201)
    assert beyond[0] is Verdict.ask
    assert "the conversation has more calls than `history` holds" in beyond[1]
    assert verdict_after([Asked("fetch", long.arguments)])[0] is Verdict.allow  # whose arguments the rule does not read
    assert "there is no 'args'" in verdict_after([long])[1]
