"""`perdure policy check` and `test`: what they find, and where."""

import re
from pathlib import Path

import pytest

from decisions.policy.rules import parse_policy
from perdure.commands.policy.cases import PolicyCase, find_difference, read_policy_cases
from perdure.commands.policy.policy import find_unknown_reviewers
from perdure.process.project import display_project
from settings import ProjectError
from settings.policy import find_flaws, read_policy
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


def test_check_finds_unknown_names_and_unreachable_rules_with_their_lines() -> None:
    flaws = list(find_flaws(Path("policy.toml"), parse_policy(POLICY), {"refund", "fetch", "finish"}, {"shop"}))
    assert flaws == [
        "policy.toml, line 2: small: run.calls['refnd']: there is no such tool (did you mean refund?)",
        "policy.toml, line 12: late: it is never reached: rule 2 decides about all of its calls",
        "policy.toml, line 17: typos: tool 'finish': no policy is about it",
        "policy.toml, line 17: typos: tool 'fech': there is none (did you mean fetch?)",
        "policy.toml, line 17: typos: agent 'shopp': there is none (did you mean shop?)",
    ]


def test_a_rule_with_a_condition_hides_no_other() -> None:
    text = '[[rule]]\nwhen = "args.x == 1"\nthen = "allow"\n[[rule]]\nthen = "deny"'
    assert list(find_flaws(Path("policy.toml"), parse_policy(text), {"refund"}, {"shop"})) == []


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
    assert [len(policy.rules) for policy in policies] == [3, 2, 1]
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
