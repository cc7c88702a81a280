"""The files that `perdure eval` reads."""

import json
from pathlib import Path

import pytest

from perdure.features.proof.case import case_start_event, read_cases
from perdure.settings import ProjectError

YAML = """
- goal: where is A-1?
  name: shipped
  agent: shop
  context: {tenant: acme, max_steps: 4}
  limits: {budget_usd: 0.5, soft_limit: 2m}
  expect: {contains: shipped, asks: true, answer: [a, b], max_cost_usd: 0.1}
- goal: hello
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_and_json_lines_say_the_same(tmp_path: Path) -> None:
    cases = read_cases(written(tmp_path, "cases.yaml", YAML))
    lines = "\n\n".join(case.model_dump_json(exclude_defaults=True) for case in cases)
    assert read_cases(written(tmp_path, "cases.jsonl", lines)) == cases
    assert (cases[0].expect.contains, cases[0].expect.answer) == (("shipped",), ("a", "b"))


def test_a_case_starts_with_its_own_agent_or_the_one_for_all(tmp_path: Path) -> None:
    first, second = read_cases(written(tmp_path, "cases.yml", YAML))
    assert case_start_event(first, "clerk").payload.agent == "shop"
    assert case_start_event(second, "clerk").payload.agent == "clerk"
    assert case_start_event(first, None).payload.limits.budget_usd == 0.5


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("cases.txt", "", ": expected a .yaml or .jsonl file"),
        ("cases.yaml", "", ": expected a list of cases, each with a goal"),
        ("cases.yaml", "[]", ": it has no cases"),
        ("cases.jsonl", "\n\n", ": it has no cases"),
        ("cases.yaml", "goal: x", ": expected a list of cases, each with a goal"),
        ("cases.yaml", "- just words", ", case 1: expected a case with a goal"),
        ("cases.yaml", "- goal: x\n- agent: y", ", case 2: goal: Field required"),
        ("cases.yaml", "- goal: ' '", ", case 1: goal: the goal is empty"),
        (
            "cases.yaml",
            "- {goal: x, expect: {contain: y}}",
            ", case 1: expect.contain: no such setting in this version",
        ),
        ("cases.yaml", "- {goal: x, expect: {status: happy}}", ", case 1: expect.status: Input should be 'completed'"),
        (
            "cases.yaml",
            "- {goal: x, expect: {matches: '('}}",
            ", case 1: expect.matches: '(' is not a regular expression",
        ),
        ("cases.yaml", "- {goal: x, limits: {max_steps: 0}}", ", case 1: limits.max_steps: Input should be greater"),
        ("cases.yaml", "- {goal: x, context: {max_steps: none}}", ", case 1: context.max_steps: Input should be"),
        ("cases.yaml", "- {goal: x, context: &all {self: *all}}", ", case 1: "),
        ("cases.yaml", "- goal: x\n  goal: y", ": duplicate key 'goal'"),
        ("cases.yaml", "- [", ": while parsing"),
        ("cases.jsonl", '{"goal": "x"}\n{"goal": "x", "goal": "y"}', ", line 2: goal: it is there twice"),
        ("cases.jsonl", '{"goal": "x"}\n{', ", line 2: Expecting property name"),
        ("cases.jsonl", "[" * 100_000, ", line 1: "),
        ("cases.jsonl", json.dumps({"goal": "x", "expect": {"max_steps": -1}}), ", line 1: expect.max_steps: Input"),
    ],
)
def test_a_wrong_file_of_cases_is_rejected_in_one_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(ProjectError) as refused:
        read_cases(path)
    assert str(refused.value).startswith(f"{path}{says}")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="No such file"):
        read_cases(tmp_path / "cases.yaml")
