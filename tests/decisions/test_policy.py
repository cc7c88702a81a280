"""Policies: which rule decides, what cannot be evaluated, which of two verdicts counts, and what is never looser."""

from datetime import UTC, datetime, timedelta
from itertools import product
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.people import Sender, Work
from perdure.contracts.policy import ApprovalTerms, PolicyContext, PolicyVerdict, Verdict
from perdure.contracts.run.state import Call
from perdure.contracts.run.transcript import Part
from perdure.contracts.run.turn import ModelTurn, Usage
from perdure.contracts.tool import Approval, Effect, ToolKind, ToolOutcome, ToolRoute, error_outcome
from perdure.decisions.policy.facts import RequestedCall, build_facts, read_past, recorded_facts, tool_uses_of
from perdure.decisions.policy.rules import (
    MAX_ENTRIES,
    NOT_EVALUABLE,
    ExpressionError,
    PolicyError,
    Ruling,
    apply_policy,
    check_facts,
    combine_rulings,
    compile_expression,
    find_strictest,
    find_value,
    parse_policy,
)
from perdure.decisions.run.call_state import apply_verdict
from perdure.decisions.run.next_calls import needs_approval
from perdure.decisions.run.transcript import goal_part, reply_part, result_part
from perdure.decisions.tools import CALL_TOOL
from tests.decisions.runs import new_state

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)

REFUNDS = """
[[rule]]
name = "small refunds"
tools = ["refund"]
when = "args.cents <= 2000 && run.calls['refund'] < 3 && !run.has_read.exists(s, s == 'web')"
then = "allow"
[[rule]]
tools = ["refund"]
then = "ask"
approvers = ["finance"]
expires = "4h"
[[rule]]
name = "never"
tools = ["d*"]
then = "deny"
reason = "not by agents"
"""


def use(tool: str = "refund", **arguments: Any) -> RequestedCall:
    return RequestedCall("t1", tool, arguments)


def facts(
    asked: RequestedCall, parts: list[Part] | None = None, context: PolicyContext | None = None, agent: str = "shop"
) -> dict[str, Any]:
    past = read_past(parts or [], context, lambda names: {f"peer {name}" for name in names})
    return build_facts(asked, "once", agent, context, past, ["refund", "fetch"], NOW)


def rulings_of(text: str, given_facts: dict[str, Any]) -> tuple[Ruling, ...]:
    checked = check_facts(given_facts)
    tool, agent = given_facts["tool"], given_facts["agent"]
    return apply_policy(parse_policy(text), tool, agent, lambda when: find_value(when, checked))


def ruling(text: str, given_facts: dict[str, Any]) -> Ruling:
    return find_strictest(rulings_of(text, given_facts))


def talk(*made: tuple[str, dict[str, Any], ToolOutcome]) -> list[Part]:
    """A conversation of one turn a call."""
    parts = [goal_part("go", {})]
    for number, (tool, arguments, outcome) in enumerate(made, 1):
        block = {"type": "tool_use", "id": f"c{number}", "name": tool, "input": arguments}
        parts.append(reply_part(ModelTurn(content=[block], model="m", usage=Usage())))
        parts.append(result_part(f"c{number}", tool, number, outcome))
    return parts


OK = ToolOutcome(result="ok", at=NOW - timedelta(minutes=30))


def test_the_first_rule_that_holds_decides() -> None:
    small = ruling(REFUNDS, facts(use(cents=2000)))
    assert (small.rule and small.rule.name, small.verdict) == ("small refunds", Verdict.allow)
    large = ruling(REFUNDS, facts(use(cents=2001)))
    assert (large.rule and large.rule.name, large.verdict) == ("rule 2", Verdict.ask)
    assert ruling(REFUNDS, facts(use("delete"))).verdict is Verdict.deny
    assert ruling(REFUNDS, facts(use("fetch"))).rule is None


def test_counts_and_sources_come_from_the_conversation() -> None:
    three = [("refund", {"cents": 1}, OK)] * 3
    assert ruling(REFUNDS, facts(use(cents=1), talk(*three[:2]))).verdict is Verdict.allow
    assert ruling(REFUNDS, facts(use(cents=1), talk(*three))).verdict is Verdict.ask
    assert ruling(REFUNDS, facts(use(cents=1), talk(("fetch", {}, OK)))).verdict is Verdict.ask
    earlier_turn = [*talk(*three), goal_part("again", {})]
    assert ruling(REFUNDS, facts(use(cents=1), earlier_turn)).verdict is Verdict.allow  # counts are of this run
    assert facts(use(cents=1), earlier_turn)["history"][0]["tool"] == "refund"  # history is of the conversation


@pytest.mark.parametrize(
    ("made", "source"),
    [
        (("github__list_issues", {}, OK), "mcp:github"),
        (("read_file", {"path": "a"}, OK), "files"),
        (("fetch", {}, error_outcome("denied", "as a hostile tool may say of itself")), "web"),
        (("delegate", {"subtasks": [{"agent": "scout"}]}, OK), "peer scout"),
    ],
)
def test_what_a_run_has_read_is_known_by_its_calls(made: Any, source: str) -> None:
    assert facts(use(), talk(made))["run"]["has_read"] == [source]


def test_a_run_inherits_what_the_delegating_run_has_read_and_a_mailbox_is_mail() -> None:
    context = PolicyContext(policy="p", caller=Sender(door="mailbox"), work=Work(has_read=("web",)))
    found = facts(use(), context=context)
    assert found["run"]["has_read"] == ["web", "mail"]
    assert found["caller"] == {"door": "mailbox", "token": ""}


def test_history_answers_for_earlier_calls_and_sums_within_an_hour() -> None:
    approved = "history.exists(h, h.tool == 'approve' && h.args.invoice == args.invoice && h.outcome == 'ok')"
    rule = f'[[rule]]\ntools = ["refund"]\nwhen = "{approved}"\nthen = "allow"\n[[rule]]\nthen = "deny"'
    parts = talk(("approve", {"invoice": 7}, OK))
    assert ruling(rule, facts(use(invoice=7), parts)).verdict is Verdict.allow
    assert ruling(rule, facts(use(invoice=8), parts)).verdict is Verdict.deny
    hour = "history.filter(h, h.tool == 'refund' && h.at > now - duration('1h')).map(h, h.args.cents)"
    total = f'[[rule]]\nwhen = "total({hour}) + args.cents > 100"\nthen = "deny"'
    old = ToolOutcome(result="ok", at=NOW - timedelta(hours=2))
    parts = talk(("refund", {"cents": 90}, old), ("refund", {"cents": 60}, OK))
    assert ruling(total, facts(use(cents=40), parts)).verdict is Verdict.allow
    assert ruling(total, facts(use(cents=41), parts)).verdict is Verdict.deny


UNUSABLE = [
    use(),  # no cents
    use(cents="0"),
    use(cents={"$gt": 0}),
    use(cents=2**70),
    use(cents=1, more=list(range(MAX_ENTRIES + 1))),
    use(cents=1, text="\ud800"),
    use(cents=1, text="x" * 300_000),
]


@pytest.mark.parametrize("forged", UNUSABLE, ids=range(len(UNUSABLE)))
def test_forged_arguments_that_a_rule_cannot_judge_ask_a_person(forged: RequestedCall) -> None:
    found = ruling(REFUNDS, facts(forged))
    assert (found.verdict, found.reason.partition(":")[0]) == (Verdict.ask, NOT_EVALUABLE)
    verdict = combine_rulings(rulings_of(REFUNDS, facts(forged)), {})
    assert [terms.approvers for terms in verdict.terms] == [("finance",)]  # as the later rule asks
    limit = '[[rule]]\ntools = ["refund"]\nwhen = "args.cents > 2000"\nthen = "deny"\n'
    assert ruling(limit + REFUNDS, facts(use(**{**forged.arguments, "text": "\ud800"}))).verdict is Verdict.deny


def test_a_rule_that_cannot_be_evaluated_says_why() -> None:
    def why(when: str, **arguments: Any) -> str:
        text = f'[[rule]]\nwhen = "{when}"\nthen = "deny"'
        return ruling(text, facts(use(**arguments))).reason.removeprefix(f"{NOT_EVALUABLE}: ")

    assert why("args.cents > 2000") == "there is no 'cents'"
    assert why("args.cents > 2000", cents="1") == "its values are of other types"
    assert why("args.cents", cents=1) == "it is neither true nor false"
    assert why("args.cents > 2000", cents=2**70) == (
        "args has a number beyond 64 bits, a list of more than 200 entries, or invalid text"
    )
    assert why("args.text == 'x'", text="x" * 300_000) == "args has more than 256 KiB"
    assert why("args.text.matches('(')", text="secret") == "a function in it fails"


THROWS = [
    "args.cents",
    "args.nope == 1",
    "1 / (args.cents - 1) > 0",
    "total(args) > 0",
    "now",
    "9223372036854775807 + args.cents > 0",
    "(-9223372036854775807 - args.cents) / -1 > 0",
    "args.text.matches('(')",
    "args.text.matches('(a{1000}){1000}')",
    "timestamp(args.text) > now",
    "duration(args.text) > duration('1h')",
    "args.list[9223372036854775807] == 1",
    "args.list.all(i, 1 / i > 0)",
    "args[args] == 1",
    "has(args.nope.deep)",
]


@pytest.mark.parametrize("when", THROWS)
def test_a_rule_that_throws_or_is_no_yes_or_no_denies_if_it_would_and_asks_otherwise(when: str) -> None:
    for then, expected in (("deny", Verdict.deny), ("ask", Verdict.ask), ("allow", Verdict.ask)):
        text = f'[[rule]]\nname = "odd"\nwhen = "{when}"\nthen = "{then}"\n[[rule]]\nthen = "allow"'
        found = ruling(text, facts(use(cents=1, text="x", list=[0, 1])))
        assert (found.rule and found.rule.name, found.verdict) == ("odd", expected)


def test_a_review_that_might_be_asked_for_is_made_and_a_person_is_asked_beside_it() -> None:
    text = '[[rule]]\nwhen = "args.nope"\nthen = "review"\nreview = "m:f"\n[[rule]]\nthen = "allow"'
    verdicts = [found.verdict for found in rulings_of(text, facts(use()))]
    assert verdicts == [Verdict.ask, Verdict.review, Verdict.allow]


LONG = ["a" * 1200 + "!"] * MAX_ENTRIES
COSTLY = [
    ("args.list.exists(i, args.list.exists(j, i == j + 'y'))", {"list": LONG}),
    ("args.list.exists(i, args.list.exists(j, i.matches('^(a+)+$')))", {"list": LONG}),
    ("args.text.matches('^(a|a)*$')", {"text": "a" * 250_000 + "!"}),
    ("history.exists(g, history.exists(h, g.args.text == h.args.text + 'x'))", {}),
]


@pytest.mark.parametrize(("when", "arguments"), COSTLY)
def test_no_arguments_within_the_bounds_make_a_rule_run_for_long(when: str, arguments: dict[str, Any]) -> None:
    past = talk(*[("look", {"text": "x" * 3_900}, OK)] * 200)
    given_facts, text = facts(use(**arguments), past), f'[[rule]]\nwhen = "{when}"\nthen = "allow"'
    began = process_time()
    assert ruling(text, given_facts).rule is None
    assert process_time() - began < 5  # of this process, however busy the machine is


def test_a_tool_named_like_another_is_not_that_tool() -> None:
    text = '[[rule]]\ntools = ["refund"]\nthen = "allow"\n[[rule]]\ntools = ["*"]\nthen = "deny"'
    likes = (
        "Refund",
        "refund ",
        "refund2",
        "x__refund",
        "refunḍ",
        "r\u0435fund",
        "refund\u200b",
        "\uff52efund",
        "refund\n",
    )
    for name in likes:
        assert ruling(text, facts(use(name))).verdict is Verdict.deny


def test_a_call_by_another_tool_is_judged_as_the_tool_that_it_names() -> None:
    block = {"type": "tool_use", "id": "t1", "name": CALL_TOOL, "input": {"name": "delete", "arguments": {"n": 1}}}
    (asked,) = tool_uses_of([block])
    assert (asked.tool, asked.arguments) == ("delete", {"n": 1})
    assert ruling(REFUNDS, facts(asked)).verdict is Verdict.deny


def test_agents_are_matched_exactly_and_a_rule_that_names_none_is_about_all() -> None:
    text = '[[rule]]\nagents = ["shop*"]\ntools = ["refund"]\nthen = "allow"\n[[rule]]\nthen = "deny"'
    names = ("shop", "shop-2", "Shop", "a-shop", "\u0455hop")
    allowed = [name for name in names if ruling(text, facts(use(), agent=name)).verdict is Verdict.allow]
    assert allowed == ["shop", "shop-2"]
    alone = parse_policy('[[rule]]\nagents = ["shop*"]\nthen = "deny"')
    assert [alone.governs(name) for name in ("shop", "Shop", "clerk")] == [True, False, False]
    assert parse_policy('[[rule]]\ntools = ["refund"]\nthen = "deny"').governs("clerk")


@pytest.mark.parametrize(
    "text",
    ["x" * 1001, "(" * 100 + "1" + ")" * 100, "[1].map(a, [1].map(b, [1].map(c, c)))", "1 +", "user == 'a'", ""],
)
def test_an_expression_beyond_the_bounds_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        compile_expression(text)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ('[[rule]]\nthen = "allow"\n[[rule]]\ntools = ["a"]\nwhen = "boom("\nthen = "deny"', 5, "not CEL"),
        ('[[rule]]\nthen = "perhaps"', 2, "rule.then"),
        ('[[rule]]\nthen = "deny"\nquorum = 2', 1, "asks no person"),
        ('[[rule]]\nthen = "ask"\nwhom = "x"', 3, "no such setting"),
        ('[[rule]]\nthen = "review"', 1, "review"),
        ('[[rule]]\nthen = "ask"\non_expiry = "escalate"', 1, "two approvers"),
        ("[[rule]", None, "line 1"),
    ],
)
def test_an_error_names_its_line(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(PolicyError, match=reason) as raised:
        parse_policy(text)
    assert raised.value.line == line


def test_the_hash_is_of_the_text_and_a_stored_policy_keeps_it() -> None:
    policy = parse_policy(REFUNDS)
    assert (
        parse_policy(policy.text, is_stored=True) == policy
        or parse_policy(policy.text, is_stored=True).ref == policy.ref
    )
    assert parse_policy(REFUNDS + "\n").ref != policy.ref


# Properties. A rule is one that always holds, never does, or cannot be evaluated; each with any verdict.
WHENS = {"true": True, "false": False, "args.nope == 1": None}
RULES = st.lists(
    st.tuples(st.sampled_from(sorted(WHENS)), st.sampled_from(["allow", "ask", "deny"])), min_size=0, max_size=6
)


def written(rules: list[tuple[str, str]], *, may_loosen: bool = False) -> str:
    head = f"may_loosen = {str(may_loosen).lower()}\n"
    return head + "".join(
        f'[[rule]]\nwhen = "{when}"\nthen = "{then}"\n'
        + (f'approvers = ["asked by {number}"]\n' if then == "ask" else "")
        for number, (when, then) in enumerate(rules)
    )


def decided_by_order(rules: list[tuple[str, str]]) -> PolicyVerdict:
    """The verdict of rules that can be evaluated."""
    asks = [f"asked by {number}" for number, (when, then) in enumerate(rules) if WHENS[when]]
    then = next((Verdict(then) for when, then in rules if WHENS[when]), Verdict.allow)
    terms = (ApprovalTerms(approvers=(asks[0],)),) if then is Verdict.ask else ()
    return PolicyVerdict(verdict=then, policy="", terms=terms)


@given(RULES)
def test_order_decides_and_what_cannot_be_evaluated_is_as_strict_as_if_it_held_and_as_if_not(
    rules: list[tuple[str, str]],
) -> None:
    found = combine_rulings(rulings_of(written(rules), facts(use())), {})
    unknown = [at for at, (when, _) in enumerate(rules) if WHENS[when] is None]
    order = [Verdict.allow, Verdict.ask, Verdict.deny]
    for guesses in product(["true", "false"], repeat=len(unknown)):
        known = dict(zip(unknown, guesses, strict=True))
        guessed = decided_by_order([(known.get(at, when), then) for at, (when, then) in enumerate(rules)])
        assert order.index(found.verdict) >= order.index(guessed.verdict)
        if found.verdict is Verdict.ask:
            assert set(guessed.terms) <= set(found.terms)
        if not unknown:
            assert (found.verdict, found.terms) == (guessed.verdict, guessed.terms)
    before = [WHENS[when] for when, _ in rules]
    if None in before and True not in before[: before.index(None)]:
        assert found.verdict is not Verdict.allow


@given(RULES, RULES, st.booleans(), st.booleans(), st.sampled_from(Approval))
def test_no_policy_is_looser_than_the_tool_without_may_loosen_nor_than_the_first_policy(
    first: list[tuple[str, str]], second: list[tuple[str, str]], one: bool, two: bool, approval: Approval
) -> None:
    given_facts = facts(use())
    rulings = [
        ruling(written(first, may_loosen=one), given_facts),
        ruling(written(second, may_loosen=two), given_facts),
    ]
    route = ToolRoute(name="refund", kind=ToolKind.python, effect=Effect.once, approval=approval)
    state = new_state().evolve(tools=(route,))
    call = Call(tool_use_id="t1", tool="refund", kind=ToolKind.python, effect=Effect.once, step=1, arguments={})

    def strictness(*them: Ruling) -> int:
        judged = apply_verdict(call, combine_rulings(them, {}))
        return 2 if judged.outcome else int(needs_approval(state, judged))

    both = strictness(*rulings)
    assert both == max(strictness(rulings[0]), strictness(rulings[1]))
    declared = int(approval is Approval.always)
    for loosens, alone in ((one, rulings[0]), (two, rulings[1])):
        assert loosens or strictness(alone) >= declared


def test_the_terms_of_two_policies_that_ask_are_both_met() -> None:
    first = '[[rule]]\nthen = "ask"\napprovers = ["finance"]\nexpires = "4h"\non_expiry = "deny"'
    second = '[[rule]]\nthen = "ask"\nquorum = 2\nnot_requester = true\nexpires = "1h"'
    verdict = combine_rulings((ruling(first, facts(use())), ruling(second, facts(use()))), {})
    assert [terms.model_dump() for terms in verdict.terms] == [
        {"approvers": ("finance",), "expires": timedelta(hours=4)},
        {"quorum": 2, "not_requester": True, "expires": timedelta(hours=1)},
    ]
    other = '[[rule]]\nthen = "ask"\napprovers = ["ops"]'
    verdict = combine_rulings(tuple(ruling(text, facts(use())) for text in (first, other, first)), {})
    assert [terms.approvers for terms in verdict.terms] == [("finance",), ("ops",)]


def test_a_rule_that_asks_covers_one_call_even_without_terms_of_its_own() -> None:
    verdict = combine_rulings((ruling('[[rule]]\nthen = "ask"', facts(use())),), {})
    assert verdict.terms == (ApprovalTerms(),)


def test_recorded_facts_are_those_that_rules_read() -> None:
    found = facts(use(cents=1), talk(("fetch", {"url": "u"}, OK)), PolicyContext(policy="p"))
    assert recorded_facts(set(), found) == {}
    assert recorded_facts({"run"}, found) == {"calls": {"fetch": 1}, "has_read": ["web"]}
    assert recorded_facts({"history", "now"}, found)["history"]["calls"] == 1
    delegated = facts(use("delegate"), talk(("fetch", {"url": "u"}, OK)))
    assert recorded_facts(set(), delegated) == {"has_read": ["web"]}
