"""`perdure policy test`: calls with facts, and the verdicts that are expected."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from pydantic import AwareDatetime, Field, ValidationError

from contracts.models import StrictModel
from contracts.people.policy import Verdict
from contracts.strict_input import parse_yaml
from contracts.tool import Effect
from decisions.errors import format_validation_error
from decisions.policy.rules import Policy
from perdure.terminal.command import async_command, format_examples
from settings import ProjectError, load_settings
from settings.problems import read_project_text


class PastCase(StrictModel):
    tool: str
    args: dict[str, Any] = Field(default_factory=dict)
    outcome: str = "ok"
    at: AwareDatetime | None = None


class RunCase(StrictModel):
    calls: dict[str, int] = Field(default_factory=dict)
    has_read: list[str] = Field(default_factory=list)


class PolicyCase(StrictModel):
    """A call, its facts, and the expected verdict: `allow`, `ask`, `deny` or `review`. `rule` is optional."""

    tool: str
    args: dict[str, Any] = Field(default_factory=dict)
    effect: Effect = Effect.once
    agent: str = "default"
    caller: dict[str, str] = Field(default_factory=lambda: {"door": "cli", "token": ""})
    run: RunCase = RunCase()
    history: list[PastCase] = Field(default_factory=list, max_length=200)
    now: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC))
    expect: Verdict
    rule: str | None = None


@click.command("test", epilog=format_examples("policy test cases.yaml"))
@click.argument("cases", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "file",
    type=click.Path(path_type=Path),
    default=Path("policy.toml"),
    help="The policy; by default policy.toml.",
)
@async_command()
async def test_policy_command(cases: Path, file: Path) -> int:
    """Compare verdicts with those that CASES expects.

    The exit code is 1 if one differs. Reviews are not made: their verdict is `review`.
    """
    from perdure.process.project import display_project
    from settings.policy import read_policy

    policy, rows = read_policy(file), read_policy_cases(cases)
    async with display_project(load_settings()) as project:
        tools = [*project.tools, *(route.name for route in project.builtins)]
    differs = 0
    for number, case in enumerate(rows, 1):
        text = find_difference(policy, case, tools)
        differs += text is not None
        click.echo(f"{'ok  ' if text is None else 'FAIL'}  case {number}  {case.tool}: {text or case.expect}")
    return 1 if differs else 0


def read_policy_cases(path: Path) -> list[PolicyCase]:
    """Read the cases of a file. Raises ProjectError."""
    try:
        rows = parse_yaml(read_project_text(path))
    except ValueError as error:
        raise ProjectError(f"{path}: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise ProjectError(f"{path}: expected a list of cases, like [{{tool: refund, args: {{}}, expect: ask}}]")
    return [_parse_policy_case(row, f"{path}, case {number}") for number, row in enumerate(rows, 1)]


def _parse_policy_case(row: Any, place: str) -> PolicyCase:
    try:
        return PolicyCase.model_validate(row)
    except ValidationError as error:
        raise ProjectError(f"{place}: {format_validation_error(error)}") from None


def find_difference(policy: Policy, case: PolicyCase, tools: list[str]) -> str | None:
    """Return what differs from the case's expectation, if anything."""
    from decisions.policy.expression import build_context
    from decisions.policy.rules import apply_policy

    facts = case.model_dump(exclude={"expect", "rule"}) | {
        "effect": case.effect.value,
        "run": {"calls": dict.fromkeys(tools, 0) | case.run.calls, "has_read": case.run.has_read},
        "history": [call.model_dump(exclude_none=True) for call in case.history],
    }
    ruling = apply_policy(policy, case.tool, case.agent, build_context(facts))
    rule = ruling.rule.name if ruling.rule else None
    if ruling.verdict is case.expect and case.rule in (None, rule):
        return None
    expected = f"{case.expect}{f' by {case.rule}' if case.rule else ''}"
    reason = f" ({ruling.reason})" if ruling.reason else ""
    return f"expected {expected}, got {ruling.verdict} by {rule or 'no rule'}{reason}"
