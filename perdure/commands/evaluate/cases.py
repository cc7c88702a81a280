"""The test cases of `perdure eval`, read from YAML or JSON Lines. Each error in a file is one line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from contracts.run.evaluation import Case
from contracts.run.events import StartEvent
from contracts.strict_input import JsonError, parse_strict_json, parse_yaml
from settings import ProjectError
from settings.problems import first_error, read_project_text

C = TypeVar("C", bound=Case)


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


def case_start_event(case: Case, agent: str | None) -> StartEvent:
    """Return the start event of a case, with `agent` as the default agent. Raises pydantic's ValidationError."""
    payload = {"goal": case.goal, "agent": case.agent or agent, "context": case.context, "limits": case.limits}
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
