"""The test cases: read from YAML, JSON Lines or TOML, and made from past runs. Each error in a file is one line."""

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import ValidationError
from temporalio.client import Client

from perdure.activities.run.outcome import RunEnd
from perdure.activities.storage.workspace import folder_name
from perdure.client.errors import RunNotFoundError, UnreadableRunError, convert_unreadable
from perdure.client.records.run_facts import RunFacts, collect_facts
from perdure.client.run_list import find_run
from perdure.client.runs import wait_for_run_end
from perdure.client.watch import HistoryReader
from perdure.codec import UnknownKeyError
from perdure.contracts.conversation import MAX_ID_LENGTH
from perdure.contracts.run.events import StartEvent
from perdure.contracts.run.export import Export, ExportedAnswer, ExportedQuestion
from perdure.contracts.run.signals import Decision
from perdure.contracts.run.state import RunStatus
from perdure.contracts.run.transcript import PartKind
from perdure.contracts.strict_input import JsonError, parse_strict_json
from perdure.contracts.strict_yaml import parse_yaml
from perdure.decisions.errors import ReportedError
from perdure.decisions.text.formatting import truncate
from perdure.features.proof.contract import Case, CrashCase
from perdure.features.proof.facts import EVAL_RUN_ID, called_tools
from perdure.settings import ProjectError, Settings
from perdure.settings.problems import first_error, read_project_text

C = TypeVar("C", bound=Case)
NOT_IN_CASES = ("attachments", "output_schema", "dry_run", "plan")  # of a start
# Answers about an accident or a deployment, which a play of the case does not have.
_INCIDENTAL = {Decision.run_again, Decision.use_result, Decision.give_up, Decision.use_new, Decision.keep_old}
_REDACTED = re.compile(r"\[redacted ([^\]]+)\]")


def read_cases(path: Path) -> list[Case]:
    """Read the cases of a file, or of a folder's files by their names. Raises ProjectError."""
    readers = {".jsonl": _read_json_lines, ".yaml": _read_yaml, ".yml": _read_yaml}
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in readers)
        if not files:
            raise ProjectError(f"{path}: it has no .yaml or .jsonl file")
        return [case for file in files for case in read_cases(file)]
    if path.suffix not in readers:
        raise ProjectError(f"{path}: expected a .yaml or .jsonl file")
    cases = [parse_case(value, where, Case) for where, value in readers[path.suffix](path)]
    if not cases:
        raise ProjectError(f"{path}: it has no cases")
    return cases


def parse_case(value: Any, where: str, kind: type[C]) -> C:
    """Check a case; `where` is its place for errors. Raises ProjectError."""
    if not isinstance(value, dict):
        raise ProjectError(f"{where}: expected a case with a goal, like {{goal: …, expect: {{contains: …}}}}")
    try:
        case = kind.model_validate(value)
        case_start_event(case, None).model_dump_json()
    except ValidationError as error:
        name, expected = first_error(error, kind)
        name = [part for part in name if part != "payload"]
        raise ProjectError(f"{where}: {'.'.join(name)}: {expected}") from None
    except ValueError as error:  # YAML allows values that JSON does not, such as one that contains itself
        raise ProjectError(f"{where}: {' '.join(str(error).split())}") from None
    return case


def case_start_event(case: Case, agent: str | None, *, quiet: bool = False) -> StartEvent:
    """Return the start event of a case, with `agent` as the default agent. Raises pydantic's ValidationError."""
    given = {"goal": case.goal, "agent": case.agent or agent, "context": case.context, "limits": case.limits}
    payload: dict[str, Any] = {**given, "quiet": quiet}
    return StartEvent.model_validate({"type": "agentic.start", "payload": payload})


def _read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(read_project_text(path).splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield where, parse_strict_json(line)
            except JsonError as error:
                raise ProjectError(f"{where}: {error}") from None


def _read_yaml(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        entries = parse_yaml(read_project_text(path))
    except ValueError as error:
        raise ProjectError(f"{path}: {error}") from None
    if not isinstance(entries, list):
        raise ProjectError(f"{path}: expected a list of cases, each with a goal")
    for number, entry in enumerate(entries, 1):
        yield f"{path}, case {number}", entry


def read_crash_case(path: Path) -> CrashCase:
    """Read a case from YAML or TOML. Raises ProjectError."""
    readers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".yaml": parse_yaml, ".yml": parse_yaml}
    if path.suffix not in readers:
        raise ProjectError(f"{path}: expected a .yaml or .toml file")
    try:
        value = readers[path.suffix](read_project_text(path))
    except ValueError as error:
        raise ProjectError(f"{path}: {error}") from None
    return parse_case(value, str(path), CrashCase)


def check_case_tools(cases: Iterable[Case], existing: Collection[str]) -> None:
    """Check the tool names of the cases: a misspelt `never_calls` would always pass. Raises ProjectError."""
    for case in cases:
        for setting, named in (("calls", case.expect.calls), ("never_calls", case.expect.never_calls)):
            if unknown := next((tool for tool in named if tool not in existing), None):
                message = f"there is no tool {unknown!r}; the tools are: {', '.join(sorted(existing))}"
                raise ProjectError(f"case {truncate(case.name or case.goal, 60)!r}: expect.{setting}: {message}")


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
    """The cases of past runs, a file for each in `folder`, and the reason for each run that was left out."""

    settings: Settings
    folder: Path
    written: list[GoldenCase] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def make_folder(self) -> None:
        """Make the folder. Raises ProjectError if it has files."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            is_empty = next(self.folder.iterdir(), None) is None
        except OSError as error:
            raise ProjectError(f"{self.folder}: {error.strerror}") from None
        if not is_empty:
            files = f"{self.folder} has files already, and none is replaced"
            raise ProjectError(f"{files}: give --output a new or an empty folder")

    async def add(self, client: Client, run_id: str, tools: Collection[str]) -> None:
        """Write the case of one run, or leave it out. Raises ProjectError if the disk takes no file."""
        try:
            with convert_unreadable(run_id):
                self.written.append(await self._write_case(client, run_id, tools))
        except (NoCaseError, RunNotFoundError, UnknownKeyError, UnreadableRunError) as error:
            self.left_out[run_id] = str(error)

    async def _write_case(self, client: Client, run_id: str, tools: Collection[str]) -> GoldenCase:
        run, secrets = await find_run(client, run_id), self.settings.secrets
        if run.is_open:
            raise NoCaseError("it is open")
        if EVAL_RUN_ID.fullmatch(run_id):
            raise NoCaseError("an evaluation made it")
        executions = await HistoryReader(client).read_executions(run)
        if executions[0].execution != run.first_execution:
            raise NoCaseError("its start is past the namespace's retention")
        facts = collect_facts(executions)
        if facts.unreadable:
            raise NoCaseError(f"this version cannot read {', '.join(facts.unreadable)} of its history")
        found = case_of_run(run_id, facts, await wait_for_run_end(client, run_id), tools)
        case: dict[str, Any] = json.loads(json.dumps(secrets.redact_value(found)))  # YAML takes no enumerations
        text = yaml.safe_dump([case], sort_keys=False, allow_unicode=True, width=120)
        try:
            parse_case(parse_yaml(text)[0], "the case", Case)
        except (ProjectError, ValueError) as error:
            raise NoCaseError(f"its case is not valid: {error}") from None
        file = self.folder / f"{folder_name(secrets.redact(run_id))}.yaml"
        write_file(file, text, "x")
        gone = tuple(tool for tool in called_tools(facts.calls.values()) if tool not in tools)
        return GoldenCase(case["name"], str(file), tuple(find_redactions(found, case)), gone)


def write_file(path: Path, text: str, mode: Literal["w", "x"]) -> None:
    """Write a file. Raises ProjectError."""
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ProjectError(f"{path}: {error.strerror}") from None


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
    return {"name": truncate(run_id, MAX_ID_LENGTH), **_start_of_case(payload), "expect": expect}


def _outcome_of(end: RunEnd) -> dict[str, Any]:
    """Return the values of a typed result, else the text of the outcome; nothing of a run that did not complete."""
    if end.status != RunStatus.completed:
        return {}
    if isinstance(end.result, dict):
        values = {name: value for name, value in end.result.items() if "." not in name}
        return {"result": values} if values else {}
    return {"contains": [end.text]} if end.text else {}


def _answers_of(questions: Iterable[ExportedQuestion]) -> Iterator[str]:
    """Yield the answers as they are typed. Raises NoCaseError if one cannot be."""
    for question in questions:
        if len(question.answers) != 1:
            given = f"has {len(question.answers)} answers" if question.answers else "got no answer"
            raise NoCaseError(f"its question {question.id} {given}, and a case has one for each")
        (answer,) = question.answers
        if answer.arguments is not None:
            raise NoCaseError("a person changed the arguments of a call, which a case cannot")
        if answer.decision not in _INCIDENTAL:
            yield _as_typed(answer)


def _as_typed(answer: ExportedAnswer) -> str:
    """Return an answer as it is typed at a terminal."""
    return " ".join(filter(None, (answer.decision, answer.text)))


def _start_of_case(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {name: payload[name] for name in ("goal", "agent", "context", "limits") if payload.get(name)}


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


def crash_case_of_run(record: Export) -> dict[str, Any]:
    """Return the case that plays a recorded run: its goal, the replies of its model, and the answers of people."""
    start = record.start if isinstance(record.start, dict) else {}
    payload = start.get("payload", {})
    answers = [_as_typed(answer) for question in record.questions for answer in question.answers[:1]]
    replies = [_to_reply(part.content) for part in record.transcript.parts if part.kind is PartKind.reply]
    return {**_start_of_case(payload), "model": replies, **({"answers": answers} if answers else {})}


def _to_reply(content: list[dict[str, Any]]) -> dict[str, Any]:
    text = "".join(block["text"] for block in content if block.get("type") == "text")
    calls = [{block["name"]: block["input"]} for block in content if block.get("type") == "tool_use"]
    return {**({"text": text} if text or not calls else {}), **({"calls": calls} if calls else {})}
