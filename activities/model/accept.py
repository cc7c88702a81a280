"""The activity `accept_outcome`: an agent's own check of an outcome, by a Python function or a model."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.resources import files
from time import perf_counter
from typing import Any, BinaryIO

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from perdure.activities.effects.attempts import counting_attempts, heartbeating
from perdure.activities.project import Project
from perdure.activities.providers.options import short_options
from perdure.activities.providers.port import Model, ModelCall
from perdure.activities.providers.prices import call_cost
from perdure.activities.providers.rate_limit import RateLimitedError
from perdure.activities.run.definition import read_definition
from perdure.activities.security import redact_model
from perdure.activities.storage.workspace import OutsideWorkspaceError, Workspace
from perdure.activities.telemetry.facts import record_facts
from perdure.activities.telemetry.trace import write_trace
from perdure.activities.temporal import own_run_id, own_workflow_id
from perdure.activities.tools.interface import CallContext
from perdure.activities.tools.python import BadTargetError, PythonTool
from perdure.contracts.agent import Definition, ToolSchema
from perdure.contracts.models import NO_RESULT
from perdure.contracts.policy import Rubric
from perdure.contracts.run.turn import Acceptance, AcceptRequest, Usage
from perdure.contracts.tool import Effect, ToolKind, ToolRoute
from perdure.decisions.run.compaction import complete_usage, estimate_content
from perdure.decisions.text.formatting import truncate

VERDICT = "verdict"  # the name of the tool


@dataclass(frozen=True)
class Judgement:
    """A model's answer. `verdicts` are the arguments of its uses of the tool, none if it has not used it."""

    verdicts: tuple[dict[str, Any], ...]
    model: str
    usage: Usage
    cost_usd: float | None


@dataclass(frozen=True)
class JudgeCase:
    """A text to judge. `prompt` is a file of `prompts/`; `fields` are the properties of a verdict, all required.

    The server may be silent for `patience` seconds, and the reply may take `limit` seconds in all.
    """

    prompt: str
    text: str
    fields: dict[str, Any]
    model: str
    patience: float
    limit: float
    on_held: Callable[[str], object] = lambda _: None


async def ask_judge(model: Model, project: Project, definition: Definition, case: JudgeCase) -> Judgement:
    """Ask a model for a verdict on behalf of a run with this definition. Raises as `Model.reply` does."""
    call = _build_call(definition, case)
    record_facts(model=case.model)
    try:
        reply = await model.reply(call)
    except RateLimitedError:
        record_facts(held=True)
        raise
    prompt = sum(estimate_content(message["content"]) for message in call.messages)
    usage = complete_usage(reply.usage, prompt, reply.content)
    name = reply.asked or case.model
    uses = (block["input"] for block in reply.content if block.get("type") == "tool_use" and block["name"] == VERDICT)
    verdicts = tuple(use for use in uses if isinstance(use, dict))
    return Judgement(verdicts, name, usage, call_cost(usage, project.price_of(name)))


def _build_call(definition: Definition, case: JudgeCase) -> ModelCall:
    schema = {"type": "object", "properties": case.fields, "required": [*case.fields], "additionalProperties": False}
    judge = Definition(
        agent=definition.agent,
        model=case.model,
        options=short_options(definition, case.model),
        system=files("perdure.activities").joinpath(f"prompts/{case.prompt}").read_text(encoding="utf-8"),
        tools=(ToolSchema(name=VERDICT, description="Give your verdict.", input_schema=schema),),
    )
    return ModelCall(
        definition=judge,
        messages=[{"role": "user", "content": [{"type": "text", "text": case.text}]}],
        force=VERDICT,
        on_held=case.on_held,
        caller=f"{own_workflow_id()}/{activity.info().activity_id}",
        patience=case.patience,
        limit=case.limit,
    )


MAX_ACCEPT_ATTEMPTS = 3  # attempts that fail, or of a model that gives no verdict
MAX_REASON = 2_000  # characters
MAX_SHOWN_FILE, MAX_SHOWN_FILES = 16 * 1024, 64 * 1024  # bytes of files that a model sees
PARAMETERS = {"goal", "outcome", "result", "artifacts"}  # of a function
VERDICT_FIELDS = {"accepted": {"type": "boolean"}, "reason": {"type": "string"}}


def load_check(target: str) -> PythonTool:
    """Import a function that checks outcomes. Raises BadTargetError."""
    route = ToolRoute(name="accept", kind=ToolKind.python, effect=Effect.read)
    check = PythonTool(route, target, "Checks an outcome.")
    if unknown := sorted(check.schema.input_schema.get("properties", {}).keys() - PARAMETERS):
        known = ", ".join(sorted(PARAMETERS))
        raise BadTargetError(f"{target}: there is no {unknown[0]} to give it; its parameters can be {known}")
    return check


class Acceptances:
    def __init__(self, client: Client, model: Model, project: Project) -> None:
        self._client = client
        self._model = model
        self._project = project
        self._checks: dict[str, PythonTool] = {}

    @activity.defn
    async def accept_outcome(self, request: AcceptRequest) -> Acceptance:
        """Check an outcome. Raises ApplicationError, not retryable, if it cannot be checked."""
        workspace = self._project.workspace(own_run_id())
        write_trace(workspace, *request.trace)
        held: dict[str, str] = {}
        async with counting_attempts(self._client, MAX_ACCEPT_ATTEMPTS) as attempt:
            started = perf_counter()
            async with heartbeating(lambda: {**held, **attempt.beat_details}):
                definition = await read_definition(self._project.stores.of(own_run_id()), request.definition)
                if isinstance(definition.accept, Rubric):
                    case = await asyncio.to_thread(_build_case, request, definition, definition.accept, workspace)
                    case = replace(case, on_held=lambda reason: held.update(held=reason))
                    acceptance = _read_verdict(await ask_judge(self._model, self._project, definition, case))
                else:
                    acceptance = Acceptance(rejection=await self._call_function(definition, request, workspace))
        took = round((perf_counter() - started) * 1000)
        acceptance = redact_model(acceptance.evolve(duration_ms=took), self._project.secrets)
        line = {"accepted": acceptance.rejection is None, "reason": acceptance.rejection or "", "ms": took}
        write_trace(workspace, {"key": f"accept:{activity.info().activity_id}", "event": "accept", **line})
        return acceptance

    async def _call_function(self, definition: Definition, request: AcceptRequest, workspace: Workspace) -> str | None:
        """Return the function's reason for a rejection, if it rejects. An exception is such a reason."""
        target = str(definition.accept)
        if target not in self._checks:
            self._checks[target] = await asyncio.to_thread(load_check, target)
        check = self._checks[target]
        paths = await asyncio.to_thread(_find_files, workspace, request.artifacts)
        result = None if request.result is NO_RESULT else request.result
        values = {"goal": request.goal, "outcome": request.outcome, "result": result, "artifacts": paths}
        names = check.schema.input_schema.get("properties", {})
        context = CallContext(own_run_id(), 0, "", activity.info().started_time, workspace)
        try:
            async with asyncio.timeout(request.timeout / timedelta(seconds=1)):
                outcome = await check.run({name: values[name] for name in names}, context)
        except TimeoutError:
            raise ApplicationError(f"it did not end within {request.timeout}", non_retryable=True) from None
        if outcome.error is not None:
            return truncate(outcome.error.message, MAX_REASON)
        if outcome.result is True:
            return None
        return truncate(outcome.result if isinstance(outcome.result, str) else "no reason was given", MAX_REASON)


def _build_case(request: AcceptRequest, definition: Definition, rubric: Rubric, workspace: Workspace) -> JudgeCase:
    sections = {"Rubric": rubric.rubric, "Goal": request.goal, "Outcome": request.outcome}
    if request.result is not NO_RESULT:
        sections["Result"] = json.dumps(request.result, ensure_ascii=False)
    sections |= _show_files(workspace, request.artifacts)
    return JudgeCase(
        prompt="accept.md",
        text="\n\n".join(f"# {title}\n\n{body}" for title, body in sections.items()),
        fields=VERDICT_FIELDS,
        model=rubric.model or definition.model,
        patience=request.timeout.total_seconds(),
        limit=request.limit.total_seconds(),
    )


def _open_files(workspace: Workspace, paths: Iterable[str]) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the files that exist: a model may name others."""
    for path in paths:
        try:
            with workspace.open(path) as file:
                yield path, file
        except (OSError, OutsideWorkspaceError):
            continue


def _find_files(workspace: Workspace, paths: Iterable[str]) -> list[str]:
    return [str(workspace.resolve(path)) for path, _ in _open_files(workspace, paths)]


def _show_files(workspace: Workspace, paths: Iterable[str]) -> dict[str, str]:
    """Return the beginnings of the files, by their headings."""
    shown, left = dict[str, str](), MAX_SHOWN_FILES
    for path, file in _open_files(workspace, paths):
        data = file.read(min(MAX_SHOWN_FILE, left) + 1)
        cut = data[: min(MAX_SHOWN_FILE, left)]
        left -= len(cut)
        shown[f"File {path}"] = cut.decode(errors="replace") + ("\n… (cut)" if len(cut) < len(data) else "")
    return shown


def _read_verdict(judgement: Judgement) -> Acceptance:
    """Return the acceptance, or the rejection with its reason. Raises ApplicationError if there is no verdict."""
    verdict = next((use for use in judgement.verdicts if isinstance(use.get("accepted"), bool)), None)
    if verdict is None:
        raise ApplicationError("the model gave no verdict")
    reason = truncate(str(verdict.get("reason") or "no reason was given"), MAX_REASON)
    return Acceptance(
        rejection=None if verdict["accepted"] else reason,
        model=judgement.model,
        usage=judgement.usage,
        cost_usd=judgement.cost_usd,
    )
