"""`perdure policy`: check, test, explain and accept."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from pydantic import AwareDatetime, Field, ValidationError
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from perdure.activities.policy import read_stored_policy
from perdure.activities.rule_values import RuleReading
from perdure.activities.storage.store import LocalStores, Store
from perdure.answer_keys import AnswerKeys, MissingKeyError
from perdure.client.door import stamp_sender
from perdure.client.errors import RejectedError, TemporalUnavailableError, convert_unreadable
from perdure.client.records.export import Exporter
from perdure.client.run_events import PLANNED
from perdure.client.run_list import find_run
from perdure.client.runs import query_run_state
from perdure.contracts.models import StrictModel
from perdure.contracts.policy import PolicyVerdict, Verdict
from perdure.contracts.run.export import ExportedCall, ExportedExecution
from perdure.contracts.run.signals import Decision, HumanInput
from perdure.contracts.strict_yaml import parse_yaml
from perdure.contracts.tool import Effect
from perdure.decisions.errors import format_validation_error
from perdure.decisions.policy.facts import MAX_HISTORY
from perdure.decisions.policy.rules import MAX_ENTRIES, Policy, UnevaluableError, check_facts, matches_globs
from perdure.decisions.text.formatting import call_line
from perdure.session import Needs, open_session
from perdure.settings import ProjectError, load_settings
from perdure.settings.policy import POLICY_FILE, KnownNames, read_policy
from perdure.settings.problems import read_project_text
from perdure.terminal.command import async_command, console, format_examples, run_argument
from perdure.terminal.event_lines import format_planned

ACCEPT_TIMEOUT = timedelta(seconds=20)


@click.command("accept", epilog=format_examples("policy accept RUN"))
@run_argument
@click.option("--by", help="Name of the person who accepts it.")
@async_command()
async def accept_policy_command(run_id: str, by: str | None) -> int:
    """Accept the project's policy for a run, even if it is looser.

    It then counts in place of the policy that the run began with.
    """
    settings = load_settings(strict=False)
    policy = read_policy(settings.folder / POLICY_FILE)
    async with open_session(settings, Needs.answers) as session:
        await accept_policy(session.client, run_id, policy, settings.answer_keys, by)
    console.print(f"accepted: run {run_id} follows policy {policy.ref}", soft_wrap=True, markup=False)
    return 0


async def accept_policy(client: Client, run_id: str, policy: Policy, keys: AnswerKeys, by: str | None = None) -> None:
    """Raises RunNotFoundError, RejectedError with the run's reason, and TemporalUnavailableError without a worker."""
    run = await find_run(client, run_id)
    view = await query_run_state(client, run.run_id) if run.is_open else None
    if not run.is_open:
        raise RejectedError(f"run {run.run_id} has ended")
    if view is None:
        raise TemporalUnavailableError(f"no worker answers for run {run.run_id} now: perdure worker")
    body = stamp_sender(HumanInput(question_id=f"policy:{policy.ref}", decision=Decision.approve, by=by))
    try:
        signed = keys.sign_for(view.run_id, view.execution, view.answer_keys, body)
        handle = client.get_workflow_handle(run.execution.id)
        answer = signed.model_dump(mode="json", exclude_none=True)
        await handle.execute_update("accept_policy", answer, rpc_timeout=ACCEPT_TIMEOUT)
    except MissingKeyError as missing:
        raise RejectedError(str(missing)) from None
    except WorkflowUpdateFailedError as error:
        raise RejectedError(error.cause.message if isinstance(error.cause, ApplicationError) else str(error)) from None


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
    from perdure.settings.policy import read_policy

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
    from perdure.decisions.policy.rules import apply_policy, check_facts, find_strictest, find_value

    facts = case.model_dump(exclude={"expect", "rule"}) | {
        "effect": case.effect.value,
        "run": {"calls": dict.fromkeys(tools, 0) | case.run.calls, "has_read": case.run.has_read},
        "history": [call.model_dump(exclude_none=True) for call in case.history],
    }
    checked = check_facts(facts)
    ruling = find_strictest(apply_policy(policy, case.tool, case.agent, lambda when: find_value(when, checked)))
    rule = ruling.rule.name if ruling.rule else None
    if ruling.verdict is case.expect and case.rule in (None, rule):
        return None
    expected = f"{case.expect}{f' by {case.rule}' if case.rule else ''}"
    reason = f" ({ruling.reason})" if ruling.reason else ""
    return f"expected {expected}, got {ruling.verdict} by {rule or 'no rule'}{reason}"


@click.command("explain", epilog=format_examples("policy explain RUN 3"))
@run_argument
@click.argument("step", required=False)
@async_command()
async def explain_policy_command(run_id: str, step: str | None) -> int:
    """Explain the verdict on the call of a step.

    STEP is its number, or the id of the tool use. Without STEP all verdicts of the run are listed.
    """
    from perdure.process.project import display_project

    settings = load_settings()
    async with display_project(settings) as project, open_session(settings, Needs.answers) as session:
        asks = session.ui is not None or await session.has_worker()
        exporter = Exporter(session.client, project.stores, LocalStores(settings.workspaces), asks)
        record = await exporter.export(run_id)
        with convert_unreadable(record.run_id):
            verdicts = collect_verdicts(record.executions)
        calls = {call.tool_use_id: call for call in record.calls}
        if step is None:
            for line in list_verdicts(verdicts, calls):
                click.echo(line)
            return 0
        call = next((call for call in calls.values() if step in (str(call.step), call.tool_use_id)), None)
        if call is None or call.tool_use_id not in verdicts:
            listed = f"list them: perdure policy explain {run_id}"
            raise RejectedError(f"run {record.run_id} has no verdict on {step}; {listed}")
        verdict = verdicts[call.tool_use_id]
        policy = await find_policy(project.stores.of(record.run_id), project.policy, verdict.policy)
    for line in (*explain_verdict(call, verdict, policy), *explain_plan(call, record.notices)):
        console.print(settings.secrets.redact(line), soft_wrap=True, markup=False, highlight=False)
    return 0


def collect_verdicts(executions: Iterable[ExportedExecution]) -> dict[str, PolicyVerdict]:
    """Return the recorded verdicts by the id of the tool use; a later one replaces an earlier one."""
    verdicts: dict[str, PolicyVerdict] = {}
    for execution in executions:
        for event in execution.events:
            for result in event.get("result") or () if event["type"] == "activity_task_completed" else ():
                reply = result.get("reply") or result if isinstance(result, dict) else {}
                found: dict[str, Any] = reply.get("verdicts") or {}
                verdicts |= {name: PolicyVerdict.model_validate(row) for name, row in found.items()}
    return verdicts


def list_verdicts(verdicts: Mapping[str, PolicyVerdict], calls: Mapping[str, ExportedCall]) -> Iterator[str]:
    """Yield a line for each verdict, with its step or the id of its tool use."""
    for name, verdict in verdicts.items():
        call = calls.get(name)
        place = f"step {call.step}" if call and call.step else name
        yield f"{place}  {call.tool if call else ''}  {verdict.verdict}  {verdict.rule or '-'}"


async def find_policy(store: Store, current: Policy | None, ref: str) -> Policy | None:
    """Return the policy of this hash: the project's, or the one in the run's store. None if it is not here."""
    if current is not None and current.ref == ref:
        return current
    try:
        return await read_stored_policy(store, ref)
    except (OSError, ValueError):
        return None


def explain_plan(call: ExportedCall, notices: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the person who has approved the call by a plan, if it is in one."""
    for notice in notices:
        if (notice.get("event"), notice.get("tool_use_id")) == (PLANNED, call.tool_use_id):
            yield f"plan     {format_planned(notice)}"


def explain_verdict(call: ExportedCall, verdict: PolicyVerdict, policy: Policy | None) -> list[str]:
    rule = f"rule {verdict.rule!r}" if verdict.rule else "no rule holds: the tool's own approval counts"
    place = f"step {call.step}" if call.step else call.tool_use_id
    lines = [
        f"{place}   {call_line(call.tool, call.arguments)}",
        f"verdict  {verdict.verdict}: {rule}{'; it loosens the tool' if verdict.loosens else ''}",
        f"policy   {verdict.policy}",
    ]
    if verdict.reason:
        lines.append(f"reason   {verdict.reason}")
    lines += [f"terms    {terms.model_dump_json(exclude_defaults=True)}" for terms in verdict.terms]
    if verdict.facts:
        lines.append(f"facts    {json.dumps(verdict.facts, ensure_ascii=False)}")
    if policy is None:
        return [*lines, "its text is neither in this project nor in the run's store"]
    for compiled in policy.rules:
        when = compiled.when.text if compiled.when else ""
        if compiled.rule.name == verdict.rule:
            return [*lines, f"when     {when}"] if when else lines
        is_about = matches_globs(compiled.rule.tools, call.tool) and when
        reason = f"`when` does not hold: {when}" if is_about else "for other calls"
        lines.append(f"before   {compiled.rule.name}: {reason}")
    return lines


INNER_ENTRIES = 10  # of a list in a list
TEXT = "x" * 500
PAST_ARGUMENTS = {"text": "x" * 3_900, "cents": 1}
_SIMPLE = {"integer": 1, "number": 1, "boolean": True, "null": None}


async def measure_rules(policy: Policy, names: KnownNames) -> AsyncIterator[str]:
    """Yield a line for each rule whose time depends on the call: the longest one of its tools."""
    for compiled in policy.rules:
        if (when := compiled.when) is None or when.is_simple:
            continue
        slowest = 0.0
        for tool in sorted(tool for tool in names.governed if matches_globs(compiled.rule.tools, tool)):
            facts = check_facts(_largest_facts(tool, names))
            began = perf_counter()
            try:
                await RuleReading().run(lambda find, facts=facts, when=when: find(when, facts), [when], facts)  # type: ignore[misc]
            except UnevaluableError as error:
                yield f"{compiled.rule.name}: {tool}: at its largest it cannot be evaluated: {error}"
                break
            slowest = max(slowest, perf_counter() - began)
        else:
            yield f"{compiled.rule.name}: {slowest * 1000:.0f} ms at most, as measured"


def _largest_facts(tool: str, names: KnownNames) -> dict[str, Any]:
    now = datetime.now(UTC)
    past = {"tool": tool, "args": PAST_ARGUMENTS, "outcome": "ok", "at": now}
    return {
        "args": _largest_value(names.tools[tool], MAX_ENTRIES),
        "tool": tool,
        "effect": "once",
        "agent": "default",
        "caller": {"door": "cli", "token": ""},
        "run": {"calls": dict.fromkeys(names.tools, 1), "has_read": sorted(names.sources)},
        "history": [past] * MAX_HISTORY,
        "now": now,
    }


def _largest_value(schema: Any, entries: int) -> Any:
    """Return a value of the schema with long lists and texts."""
    if not isinstance(schema, Mapping):
        return TEXT
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    if kind == "array":
        return [_largest_value(schema.get("items", {}), INNER_ENTRIES)] * entries
    if kind == "object":
        properties = schema.get("properties") or {f"f{number}": {} for number in range(5)}
        return {name: _largest_value(inner, entries) for name, inner in properties.items()}
    return _SIMPLE.get(kind, TEXT) if isinstance(kind, str) else TEXT


policy_file = click.argument("file", type=click.Path(path_type=Path), default=Path("policy.toml"))


@click.group("policy", epilog=format_examples("policy check", "policy test cases.yaml", "policy explain RUN 3"))
def policy_command() -> None:
    """Check, test and explain the policy of a project, `policy.toml`."""


@policy_command.command("check", epilog=format_examples("policy check", "policy check drafts/policy.toml"))
@policy_file
@async_command()
async def check_policy_command(file: Path) -> int:
    """Check syntax, names, arguments, and that rules can work.

    The exit code is 1 if anything is wrong.
    """
    from perdure.process.project import display_project
    from perdure.settings.flaws import find_policy_flaws, known_names
    from perdure.settings.policy import read_policy

    policy, settings = read_policy(file), load_settings()
    async with display_project(settings) as project:
        flaws = [*find_policy_flaws(file, policy, project, settings)]
        times = [line async for line in measure_rules(policy, known_names(project, settings))]
    for flaw in flaws:
        click.echo(flaw)
    if not flaws:
        console.print(f"{file}: {len(policy.rules)} rules, hash {policy.ref}", soft_wrap=True, markup=False)
    for line in times:
        console.print(line, soft_wrap=True, markup=False, style="dim")
    return 1 if flaws else 0


policy_command.add_command(test_policy_command)
policy_command.add_command(accept_policy_command)
policy_command.add_command(explain_policy_command)
