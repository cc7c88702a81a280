"""`perdure policy check` and `test`: what they find, and where."""

import re
from pathlib import Path

import pytest

from perdure.commands.policy import PolicyCase, find_difference, measure_rules, read_policy_cases
from perdure.decisions.policy.rules import parse_policy
from perdure.process.project import display_project
from perdure.settings import ProjectError
from perdure.settings.flaws import find_project_flaws, find_unknown_reviewers
from perdure.settings.policy import KnownNames, find_flaws, read_policy
from tests.projects import load_project

POLICY = """
[[rule]]
name = "small"
tools = ["refund"]
when = "args.cents <= 2000 && run.calls['refnd'] < 3"
then = "allow"

[[rule]]
tools = ["refund"]
then = "ask"

[[rule]]
name = "late"
tools = ["ref*"]
then = "deny"

[[rule]]
name = "typos"
tools = ["finish", "fech"]
agents = ["shopp"]
then = "deny"
"""


NAMES = KnownNames(
    tools={
        "refund": {"properties": {"cents": {}, "to": {"properties": {"name": {}}}, "more": {"$ref": "#/x"}}},
        "pay": {"properties": {"cents": {}, "memo": {}}},
        "fetch": {},
        "finish": {},
    },
    agents={"shop"},
    sources={"web", "mcp:github"},
    groups={"finance": ("ann", "bob"), "leads": ("bob",)},
)


def test_check_finds_unknown_names_and_unreachable_rules_with_their_lines() -> None:
    flaws = list(find_flaws(Path("policy.toml"), parse_policy(POLICY), NAMES))
    assert flaws == [
        "policy.toml, line 2: small: run.calls['refnd']: there is no such tool (did you mean refund?)",
        "policy.toml, line 12: late: it is never reached: rule 2 decides about all of its calls",
        "policy.toml, line 17: typos: tool 'finish': no policy is about it",
        "policy.toml, line 17: typos: tool 'fech': there is none (did you mean fetch?)",
        "policy.toml, line 17: typos: agent 'shopp': there is none (did you mean shop?)",
    ]


@pytest.mark.parametrize(
    ("rule", "flaw"),
    [
        ("""when = "args.cents > 1 && args['to'].name.startsWith('x') && args.more.any > 1\"""", None),
        ('when = "args.cent > 2000"', "args.cent: refund: there is no argument 'cent' (did you mean cents?)"),
        ("""when = "args['cent'] > 2000\"""", "args.cent: refund: there is no argument 'cent' (did you mean cents?)"),
        ('when = "has(args.to.nam)"', "args.to.nam: refund: there is no argument 'nam' (did you mean name?)"),
        ('tools = ["*"]\nwhen = "has(args.cents) && args.cents > 1"', None),
        ('tools = ["refund", "pay"]\nwhen = "args.memo == 1"', "args.memo: refund: there is no argument 'memo'"),
        ('tools = ["refund", "pay"]\nwhen = "has(args.memo) && args.memo == 1"', None),
        ("""tools = ["refund", "pay"]\nwhen = "tool == 'pay' && args.memo == 1\"""", None),
        ("""when = "history.exists(h, h.tool == 'refnd')\"""", "tool 'refnd': there is none (did you mean refund?)"),
        ("""when = "agent == 'shopp'\"""", "agent 'shopp': there is none (did you mean shop?)"),
        ("""when = "effect != 'onec'\"""", "effect 'onec': there is none (did you mean once?)"),
        ("""when = "run.has_read.exists(s, s == 'wbe')\"""", "source 'wbe': there is none (did you mean web?)"),
        ("""when = "'mcp:github' in run.has_read\"""", None),
        ("""when = "'mcp:gitlab' in run.has_read\"""", "source 'mcp:gitlab': there is none (did you mean mcp:github?)"),
        ('approvers = ["finance", "leads"]\nquorum = 2', None),
        ('approvers = ["fin"]', "approvers: there is no group 'fin' (did you mean finance?), so nobody can approve"),
        ('approvers = ["leads"]\nquorum = 2', "quorum = 2: leads have 1 in all, so it is never met"),
    ],
)
def test_check_finds_what_can_never_work(rule: str, flaw: str | None) -> None:
    tools = "" if "tools" in rule else 'tools = ["refund"]\n'
    policy = parse_policy(f'[[rule]]\nname = "r"\nthen = "ask"\n{tools}{rule}')
    found = [line.removeprefix("p, line 1: r: ") for line in find_flaws(Path("p"), policy, NAMES)]
    assert found == ([flaw] if flaw else [])


async def test_names_of_other_settings_are_checked_with_those_of_the_policy(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('[[rule]]\ntools = ["fetch"]\nthen = "ask"\napprovers = ["fin"]\n')
    model = load_project(tmp_path, ANTHROPIC_API_KEY="k").model
    channel = '[[notify]]\nname = "ops"\nkind = "webhook"\nurl = "https://example.com"\nsecret_env = "S"\n'
    toml = f'{channel}agents = ["defalt"]\n[prices."{model}x"]\ninput = 1\noutput = 1\n'
    settings = load_project(tmp_path, toml, ANTHROPIC_API_KEY="k")
    async with display_project(settings) as project:
        policy, notify, price = find_project_flaws(project, settings)
    assert "there is no group 'fin'; perdure.toml has no [people], so nobody can approve" in policy
    assert notify.endswith("ops: agents: there is no agent 'defalt' (did you mean default?)")
    assert price.endswith(f'[prices."{model}x"]: no agent uses this model (did you mean {model}?)')


def test_a_rule_with_a_condition_hides_no_other() -> None:
    text = '[[rule]]\nwhen = "args.cents == 1"\nthen = "allow"\n[[rule]]\nthen = "deny"'
    assert list(find_flaws(Path("policy.toml"), parse_policy(text), NAMES)) == []


def test_a_broken_policy_is_one_line_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("[[rule]]\nwhen = 'x +'\nthen = 'ask'")
    with pytest.raises(ProjectError, match=r"policy.toml, line 2: rule 1: when: not CEL"):
        read_policy(path)


def test_cases_are_compared_with_the_verdict_and_the_rule(tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text(
        "- {tool: refund, args: {cents: 3}, expect: allow, rule: small}\n"
        "- {tool: refund, args: {cents: 3}, run: {calls: {refund: 3}}, expect: allow}\n"
        "- {tool: refund, args: {}, expect: ask, rule: small}\n"
        "- {tool: fetch, expect: allow}\n"
    )
    policy, cases = parse_policy(POLICY.replace("refnd", "refund")), read_policy_cases(tmp_path / "cases.yaml")
    assert [find_difference(policy, case, ["refund", "fetch"]) for case in cases] == [
        None,
        "expected allow, got ask by rule 2",
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "expected a list"), ("- {tool: a}", "case 1: expect"), ("- {tool: a, expect: maybe}", "case 1: expect")],
)
def test_a_broken_case_is_one_line_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "cases.yaml").write_text(text)
    with pytest.raises(ProjectError, match=reason):
        read_policy_cases(tmp_path / "cases.yaml")


def test_the_rules_and_cases_of_the_page_hold(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "policies.md").read_text(encoding="utf-8")
    policies = [parse_policy(text) for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    assert [len(policy.rules) for policy in policies] == [3, 1, 2, 1]
    (tmp_path / "cases.yaml").write_text("".join(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)))
    cases = read_policy_cases(tmp_path / "cases.yaml")
    assert [find_difference(policies[0], case, ["refund"]) for case in cases] == [None] * 3


REVIEW = '[[rule]]\ntools = ["fetch"]\nthen = "review"\nreview = {}'


@pytest.mark.parametrize(
    ("review", "reason"),
    [
        ('{rubric = " "}', "line 4: rule.review: rubric: it is empty: write the conditions in words"),
        ('{model = "claude-haiku-4-5"}', "line 4: rule.review: rubric: Field required"),
        ('{rubric = "x", modl = "y"}', "line 4: rule.review: modl: no such setting"),
        ('"reviews"', 'line 4: rule.review: expected "module:function", or {rubric = "...", model = "..."}'),
    ],
)
def test_a_review_that_cannot_be_is_one_line_with_its_place(tmp_path: Path, review: str, reason: str) -> None:
    (tmp_path / "policy.toml").write_text(REVIEW.format(review))
    with pytest.raises(ProjectError) as error:
        read_policy(tmp_path / "policy.toml")
    assert str(error.value) == f"{tmp_path}/policy.toml, {reason}"


async def test_check_finds_a_reviewing_model_that_no_provider_has(tmp_path: Path) -> None:
    provider = (
        '[model.providers.local]\nbase_url = "http://127.0.0.1:9"\n[prices."claude-new"]\ninput = 1\noutput = 1\n'
    )
    settings = load_project(tmp_path, provider, ANTHROPIC_API_KEY="k")
    found = {}
    async with display_project(settings) as project:
        for model in ("claude-haiku-4-5", "claude-new", "local:any", "locl:any", "claude-hiku-4-5"):
            policy = parse_policy(REVIEW.format(f'{{rubric = "is small", model = "{model}"}}'))
            found[model] = list(find_unknown_reviewers(Path("policy.toml"), policy, project))
    assert [found[name] for name in ("claude-haiku-4-5", "claude-new", "local:any")] == [[], [], []]
    [line] = found["claude-hiku-4-5"]
    assert line == (
        "policy.toml, line 1: rule 1: review: there is no model 'claude-hiku-4-5' (did you mean claude-haiku-4-5?); "
        'if it is right, set its price in [prices."claude-hiku-4-5"]'
    )
    assert "there is no model 'locl:any'" in found["locl:any"][0]


def test_the_case_of_a_review_is_its_rule_and_no_verdict_of_a_model() -> None:
    policy = parse_policy(REVIEW.format('{rubric = "is small"}'))
    case = PolicyCase.model_validate({"tool": "fetch", "expect": "review", "rule": "rule 1"})
    assert find_difference(policy, case, ["fetch"]) is None


async def test_check_measures_the_rules_that_depend_on_the_size_of_a_call() -> None:
    rows = {"properties": {"items": {"type": "array", "items": {"properties": {"group": {"type": "integer"}}}}}}
    names = KnownNames(tools={"bulk": rows}, agents={"shop"})
    join = "size(args.items.map(a, args.items.map(b, args.items))) > 0"
    whens = ["args.items == []", "size(history) > 3", join]
    policy = parse_policy("".join(f'[[rule]]\nwhen = "{when}"\nthen = "deny"\n' for when in whens))
    quick, slow = [line async for line in measure_rules(policy, names)]
    assert re.fullmatch(r"rule 2: \d+ ms at most, as measured", quick)
    assert slow == "rule 3: bulk: at its largest it cannot be evaluated: it takes too long, or too much memory"
