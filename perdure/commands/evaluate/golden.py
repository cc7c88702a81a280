"""`perdure eval --from-runs`: cases made from past runs, a file for each. Secrets are redacted."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml
from temporalio.client import Client

from activities.run.outcome import RunEnd
from activities.storage.workspace import folder_name
from contracts.conversation import MAX_ID_LENGTH
from contracts.run.evaluation import Case
from contracts.run.export import ExportedQuestion
from contracts.run.signals import Decision
from contracts.run.state import RunStatus
from contracts.strict_input import parse_yaml
from decisions import builtin_tools
from decisions.errors import ReportedError
from decisions.text.formatting import truncate
from perdure.client.history import HistoryReader
from perdure.client.records.run_facts import RunFacts, collect_facts
from perdure.client.run_list import RunFilter, find_run, list_past_runs
from perdure.client.runs import wait_for_run_end
from perdure.commands.evaluate.cases import parse_case
from perdure.commands.evaluate.facts import EVAL_RUN_ID, called_tools
from perdure.session import Needs, open_session
from perdure.terminal.command import console, print_error
from settings import ProjectError, Settings

MAX_NAMED = 3  # runs that a line about several names
NOT_IN_CASES = ("attachments", "output_schema", "dry_run", "plan")  # of a start
# Answers about an accident or a deployment, which a play of the case does not have.
_INCIDENTAL = {Decision.run_again, Decision.use_result, Decision.give_up, Decision.use_new, Decision.keep_old}
_REDACTED = re.compile(r"\[redacted ([^\]]+)\]")


class NoCaseError(ReportedError):
    """No case can be made from the run; the message is the reason."""


@dataclass(frozen=True)
class GoldenCase:
    """A case that was written. `redacted` are its places with secrets, `gone` tools that the project has no longer."""

    run_id: str
    file: str
    redacted: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass
class GoldenSet:
    """The cases that were written, and the reason for each run that was left out."""

    written: list[GoldenCase] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


async def write_golden_set(settings: Settings, runs: RunFilter, folder: Path, *, as_json: bool) -> int:
    """Write a case for each run to the folder, and report. Raises ProjectError if the folder has files."""
    from perdure.process.project import display_project

    _make_folder(folder)
    golden = GoldenSet()
    async with open_session(settings, Needs.nothing) as session, display_project(settings) as project:
        tools = {*project.tools, *builtin_tools.BUILTIN_NAMES}
        with console.status("reading the runs …") as status:
            async for run in list_past_runs(session.client, runs):
                try:
                    golden.written.append(await _write_case(session.client, settings, run.run_id, tools, folder))
                except NoCaseError as error:
                    golden.left_out[run.run_id] = str(error)
                status.update(f"{len(golden.written)} cases, {len(golden.left_out)} runs left out …")
    if as_json:
        click.echo(json.dumps({"written": list(map(asdict, golden.written)), "left_out": golden.left_out}))
    else:
        _print_golden_set(golden, folder)
    return 0 if golden.written else 1


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = next(folder.iterdir(), None) is None
    except OSError as error:
        raise ProjectError(f"{folder}: {error.strerror}") from None
    if not is_empty:
        raise ProjectError(f"{folder} has files already, and none is replaced: give --output a new or an empty folder")


async def _write_case(
    client: Client, settings: Settings, run_id: str, tools: Collection[str], folder: Path
) -> GoldenCase:
    """Write the case of one run. Raises NoCaseError, and ProjectError if the disk takes no file."""
    run = await find_run(client, run_id)
    if run.is_open:
        raise NoCaseError("it is open")
    if EVAL_RUN_ID.fullmatch(run_id):
        raise NoCaseError("an evaluation made it")
    executions = await HistoryReader(client).read_executions(run)
    if executions[0].execution != run.first_execution:
        raise NoCaseError("its start is past the namespace's retention")
    facts = collect_facts(executions)
    found = case_of_run(run_id, facts, await wait_for_run_end(client, run_id), tools)
    case: dict[str, Any] = json.loads(json.dumps(settings.secrets.redact_value(found)))  # YAML takes no enumerations
    text = yaml.safe_dump([case], sort_keys=False, allow_unicode=True, width=120)
    try:
        parse_case(parse_yaml(text)[0], "the case", Case)
    except (ProjectError, ValueError) as error:
        raise NoCaseError(f"its case is not valid: {error}") from None
    file = folder / f"{folder_name(settings.secrets.redact(run_id))}.yaml"
    try:
        with file.open("x", encoding="utf-8") as target:
            target.write(text)
    except OSError as error:
        raise ProjectError(f"{file}: {error.strerror}") from None
    gone = tuple(tool for tool in called_tools(facts.calls.values()) if tool not in tools)
    return GoldenCase(case["name"], str(file), tuple(find_redactions(found, case)), gone)


def case_of_run(run_id: str, facts: RunFacts, end: RunEnd, tools: Collection[str]) -> dict[str, Any]:
    """Return the case that a past run answers: its start, its people's answers, its end and its calls.

    Only calls of `tools` are expected: the project has no others. Raises NoCaseError.
    """
    start = facts.start if isinstance(facts.start, Mapping) else {}
    if start.get("type") != "agentic.start":
        raise NoCaseError("it is a subtask, a turn of a conversation, resumed or forked")
    payload = start["payload"]
    if extra := next((name for name in NOT_IN_CASES if payload.get(name)), None):
        raise NoCaseError(f"its start has {extra}, which a case cannot have")
    if any(arrival.name == "steer" for arrival in facts.received):
        raise NoCaseError("it got messages while it worked, which a case cannot have")
    answers = list(_answers_of(facts.questions))
    expect: dict[str, Any] = {"status": end.status, **_outcome_of(end)}
    if calls := [tool for tool in called_tools(facts.calls.values()) if tool in tools]:
        expect["calls"] = calls
    if answers:
        expect |= {"asks": True, "answer": answers}
    given = {name: payload[name] for name in ("goal", "agent", "context", "limits") if payload.get(name)}
    return {"name": truncate(run_id, MAX_ID_LENGTH), **given, "expect": expect}


def _outcome_of(end: RunEnd) -> dict[str, Any]:
    """Return the values of a typed result, else the text of the outcome; nothing of a run that did not complete."""
    if end.status != RunStatus.completed:
        return {}
    if isinstance(end.result, dict):
        values = {name: value for name, value in end.result.items() if "." not in name}
        return {"result": values} if values else {}
    return {"contains": [end.text]} if end.text else {}


def _answers_of(questions: Iterable[ExportedQuestion]) -> Iterator[str]:
    """Yield the answers as they are typed at a terminal. Raises NoCaseError if one cannot be."""
    for question in questions:
        if len(question.answers) != 1:
            given = f"has {len(question.answers)} answers" if question.answers else "got no answer"
            raise NoCaseError(f"its question {question.id} {given}, and a case has one for each")
        (answer,) = question.answers
        if answer.arguments is not None:
            raise NoCaseError("a person changed the arguments of a call, which a case cannot")
        if answer.decision not in _INCIDENTAL:
            yield " ".join(filter(None, (answer.decision, answer.text)))


def find_redactions(found: Any, clean: Any, place: str = "") -> Iterator[str]:
    """Yield the places where `clean` differs, each with the names of the secrets that were there."""
    match found:
        case dict():
            for (name, value), (clean_name, clean_value) in zip(found.items(), clean.items(), strict=False):
                inner = f"{place}.{clean_name}" if place else str(clean_name)
                yield from [_format_redaction(inner, clean_name)] if name != clean_name else []
                yield from find_redactions(value, clean_value, inner)
        case list():
            for at, (value, clean_value) in enumerate(zip(found, clean, strict=True)):
                yield from find_redactions(value, clean_value, f"{place}.{at}")
        case _ if found != clean:
            yield _format_redaction(place, clean)


def _format_redaction(place: str, clean: Any) -> str:
    return f"{place} ({', '.join(dict.fromkeys(_REDACTED.findall(str(clean))))})"


def _print_golden_set(golden: GoldenSet, folder: Path) -> None:
    if count := len(golden.written):
        console.print(f"written: {count} case{'' if count == 1 else 's'} in {folder}", soft_wrap=True, markup=False)
    for case in golden.written:
        if case.redacted:
            console.print(f"redacted in {case.file}: {', '.join(case.redacted)}", soft_wrap=True, markup=False)
        if case.gone:
            console.print(
                f"not expected in {case.file}, as the project has no such tool: {', '.join(case.gone)}",
                soft_wrap=True,
                markup=False,
            )
    by_reason: dict[str, list[str]] = {}
    for run_id, reason in golden.left_out.items():
        by_reason.setdefault(reason, []).append(run_id)
    for reason, runs in by_reason.items():
        more = f" and {len(runs) - MAX_NAMED} more" if len(runs) > MAX_NAMED else ""
        print_error(f"left out {', '.join(runs[:MAX_NAMED])}{more}: {reason}")
    if not golden.written and not golden.left_out:
        print_error("no run matches")
