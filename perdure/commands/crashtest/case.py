"""The case of a crash test: its form, reading it, the model that it scripts, and a case from a recorded run."""

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from activities.tools.python import BadTargetError, load_function
from contracts.models import JsonResult, StrictModel
from contracts.run.evaluation import Case, Texts
from contracts.run.export import Export
from contracts.run.transcript import PartKind
from contracts.strict_input import parse_yaml
from perdure.commands.evaluate.cases import parse_case
from perdure.testkit.model_server import Reply, Script, ScriptedAnswer
from settings import ProjectError, Settings
from settings.problems import read_project_text


def _to_call(value: Any) -> Any:
    """Return a call that is written as `{tool: arguments}`."""
    if isinstance(value, dict) and len(value) == 1:
        ((tool, arguments),) = value.items()
        return {"tool": tool, "arguments": {} if arguments is None else arguments}
    return value


class ScriptedCall(StrictModel):
    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ScriptedReply(StrictModel):
    """A reply of the model: a text, or tool calls with or without a text."""

    text: str = ""
    calls: tuple[Annotated[ScriptedCall, BeforeValidator(_to_call)], ...] = ()

    @model_validator(mode="after")
    def _check_content(self) -> "ScriptedReply":
        if not self.text and not self.calls:
            raise ValueError("a reply has a text or calls")
        return self


class SignalCase(StrictModel):
    """A result from outside, for the next call of a tool of kind `signal`."""

    tool: str = Field(min_length=1)
    result: JsonResult = None


class CrashCase(Case):
    """A case of a crash test: a goal, and all that answers the run.

    `model` is a list with one reply for each turn, or `package.module:function`, which gets each request. `answers` are
    those of a person, in order, and `signals` the results from outside. `check` is a shell command that prints what it
    counts outside the run. `doubt` is one that prints the answer for a call that may have happened.
    """

    model: tuple[ScriptedReply, ...] | str = Field(min_length=1)
    answers: Texts = ()
    signals: tuple[SignalCase, ...] = ()
    check: str | None = Field(default=None, min_length=1)
    doubt: str | None = Field(default=None, min_length=1)


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


def open_script(case: CrashCase, settings: Settings) -> Script:
    """Return the script of the case's model. Raises ProjectError."""
    if not isinstance(case.model, str):
        return [Reply(reply.text, tuple((call.tool, call.arguments) for call in reply.calls)) for reply in case.model]
    if str(settings.folder) not in sys.path:
        sys.path.append(str(settings.folder))
    try:
        script: Callable[[dict[str, Any]], ScriptedAnswer] = load_function(case.model)
    except BadTargetError as error:
        raise ProjectError(f"model: {error}") from None
    return script


def case_from_run(record: Export) -> dict[str, Any]:
    """Return the case that plays a recorded run: its goal, the replies of its model, and the answers of people."""
    start = record.start if isinstance(record.start, dict) else {}
    payload = start.get("payload", {})
    answers = [
        " ".join(filter(None, (answer.decision, answer.text)))
        for question in record.questions
        for answer in question.answers[:1]
    ]
    replies = [_to_reply(part.content) for part in record.transcript.parts if part.kind is PartKind.reply]
    case = {name: payload[name] for name in ("goal", "agent", "context", "limits") if payload.get(name)}
    return {**case, "model": replies, **({"answers": answers} if answers else {})}


def _to_reply(content: list[dict[str, Any]]) -> dict[str, Any]:
    text = "".join(block["text"] for block in content if block.get("type") == "text")
    calls = [{block["name"]: block["input"]} for block in content if block.get("type") == "tool_use"]
    return {**({"text": text} if text or not calls else {}), **({"calls": calls} if calls else {})}
