"""The replay of a run with another model or agent: a real run on a server of its own, answered from the record."""

import asyncio
import secrets
import tempfile
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Worker

from perdure.activities.media.store import copy_missing
from perdure.activities.project import Project
from perdure.activities.providers.port import Model, ModelCall, ModelReply
from perdure.activities.run.definition import project_part
from perdure.activities.storage.store import LocalStores, Store
from perdure.activities.tools.interface import CallContext, Tool
from perdure.client.connection import connect
from perdure.client.errors import RejectedError
from perdure.client.records.event_reader import FUSED_TURN, EventReader, first_value
from perdure.client.records.export import Exporter
from perdure.client.run_events import (
    ContextCompacted,
    ContextFilled,
    ModelReplied,
    OutcomeChecked,
    RunEvent,
    UnreadableEvent,
)
from perdure.client.runs import request_cancel, start_or_get_run
from perdure.contracts.agent import DEFAULT_AGENT, Agent, ToolSchema
from perdure.contracts.media import Attached
from perdure.contracts.policy import Rubric
from perdure.contracts.run.events import StartEvent, StartPayload
from perdure.contracts.run.export import Export, ExportedCall, ExportedTurn
from perdure.contracts.run.signals import CancelRequest, HumanInput, QuestionKind
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.contracts.run.turn import Acceptance, ModelTurn
from perdure.contracts.tool import Approval, ToolError, ToolKind, ToolOutcome, ToolRoute
from perdure.decisions.ids import call_digest
from perdure.decisions.run.transcript import result_part
from perdure.decisions.telemetry import MODEL_TURNS
from perdure.decisions.text.formatting import call_line, truncate
from perdure.decisions.text.visible_text import render_visible
from perdure.decisions.tools import ASK_HUMAN
from perdure.devserver import embedded_server, remove_folder
from perdure.features.proof.contract import Case, Facts
from perdure.features.proof.facts import facts_of_record
from perdure.features.proof.play import Person, play_to_end
from perdure.features.proof.rules import end_differences, failed_checks, record_differences, unmade_calls
from perdure.process.models import open_models
from perdure.process.project import display_project
from perdure.process.worker import configure_worker
from perdure.registry import feature_tools
from perdure.settings import Settings
from perdure.terminal.prompt import parse_answer

STAND_IN = "not made, as this is a replay and the recorded run made no such call: go on as if it had succeeded"
NO_PERSON = "no person is asked, as this is a replay: decide by yourself"
MAX_SHOWN_CALL = 200  # characters
STARTED = ("agentic.start", "agentic.begin")
SUMMARIZE, ACCEPT, ATTACH = "summarize", "accept_outcome", "take_attachments"  # activity types
PAYLOAD = ("goal", "agent", "context", "limits", "output_schema", "attachments")


class Recording:
    """The answers of models, tools and people in one run, for one play of it. Each is taken once, in its order."""

    def __init__(self, record: Export) -> None:
        self.record = record
        self._outcomes: dict[str, deque[ToolOutcome]] = defaultdict(deque)  # by the digest of the call
        self._answers: dict[str, deque[HumanInput]] = defaultdict(deque)  # by the text of the question
        self._results: dict[str, deque[Any]] = defaultdict(deque)  # of activities
        self._failures = {turn.turn: turn.failure for turn in record.turns if turn.failure}
        for call in record.calls:
            if call.shown is not None:
                self._outcomes[call.digest].append(_to_outcome(call))
        for question in record.questions:
            for answer in question.answers[:1]:
                body = HumanInput(text=answer.text, decision=answer.decision)
                self._answers[render_visible(question.text)].append(body)
        self._read_results()

    @property
    def start(self) -> StartEvent:
        """The start of a play."""
        payload = self.record.start["payload"]
        fields = {name: payload[name] for name in PAYLOAD if name in payload}
        return StartEvent(type="agentic.start", payload=StartPayload.model_validate(fields))

    def take_outcome(self, tool: str, arguments: dict[str, Any]) -> ToolOutcome | None:
        """Return the next outcome of this call, if the record has one more."""
        outcomes = self._outcomes[call_digest(tool, arguments)]
        return outcomes.popleft() if outcomes else None

    def take_answer(self, question: str) -> HumanInput | None:
        """Return a person's next answer to this question, if the record has one more."""
        answers = self._answers[question]
        return answers.popleft() if answers else None

    def take_turn(self, turn: int) -> Any:
        """Return the model's next result in this turn. Raises ApplicationError as the turn failed, or at the end."""
        if self._results[_turn_key(turn)]:
            return self._results[_turn_key(turn)].popleft()
        kind, _, message = self._failures.get(turn, "").partition(": ")
        text = message or f"the record has no reply for turn {turn}"
        raise ApplicationError(text, type=kind or None, non_retryable=True)

    def take_result(self, activity: str) -> Any:
        """Return the next result of an activity, if the record has one more."""
        results = self._results[activity]
        return results.popleft() if results else None

    def _read_results(self) -> None:
        reader = EventReader()
        for execution in self.record.executions:
            for event in execution.events:
                ended = reader.activities.get(event.get("scheduled_event_id", 0))
                turn = ended.request.get("turn", 0) if ended else 0
                for run_event in reader.read(event):
                    self._add_result(run_event, turn)
                if ended and ended.kind == ATTACH and event["type"] == "activity_task_completed":
                    self._results[ATTACH].append(Attached.model_validate(first_value(event["result"])))

    def _add_result(self, event: RunEvent, turn: int) -> None:
        match event:
            case ModelReplied(turn=number, reply=reply):
                earlier = self._results[_turn_key(number)]
                if earlier and isinstance(earlier[-1], ModelTurn):  # the run went on without it
                    earlier.pop()
                earlier.append(reply.evolve(verdicts={}))
            case ContextFilled(full):
                self._results[_turn_key(turn)].append(full)
            case ContextCompacted(summary):
                self._results[SUMMARIZE].append(summary)
            case OutcomeChecked(acceptance):
                self._results[ACCEPT].append(acceptance)
            case UnreadableEvent(kind, number):
                unreadable = f"this version cannot read event {number} ({kind}) of its history"
                raise RejectedError(f"run {self.record.run_id} cannot be replayed: {unreadable}")
            case _:
                pass


def must_be_replayable(record: Export, project: Project) -> None:
    """Raise RejectedError if the run is open, not whole, has no goal of its own, or no agent in the project."""
    reason = None
    start = record.start if isinstance(record.start, dict) else {}
    if record.end is None:
        reason = "it is open: wait for its end"
    elif not record.transcript.complete:
        reason = f"its conversation is not complete ({'; '.join(record.missing) or 'no part of it is known'})"
    elif start.get("type") not in STARTED or start.get("is_turn") or start.get("choices"):
        reason = "it continues a conversation or another run, and has no beginning of its own"
    elif (agent := replayed_agent(record)) not in project.agents:
        reason = f"the project has no agent {agent!r} any more"
    if reason:
        raise RejectedError(f"run {record.run_id} cannot be replayed: {reason}")


def replayed_agent(record: Export) -> str:
    return record.start["payload"].get("agent") or DEFAULT_AGENT


def _turn_key(turn: int) -> str:
    return f"turn {turn}"


def _to_outcome(call: ExportedCall) -> ToolOutcome:
    """Return the outcome that shows the model what the run showed it, such as a denial or a result from outside."""
    made = call.made[-1].outcome if call.made else None
    outcome = ToolOutcome.model_validate(made or {}).evolve(interrupted=False, at=None, unfinished=None)
    if result_part(call.tool_use_id, call.tool, call.step, outcome).content[0]["content"] == call.shown:
        return outcome
    text = call.shown if isinstance(call.shown, str) else call.shown[0].get("text", "")
    if call.is_error:
        kind, _, message = text.partition(": ")
        return ToolOutcome(status="error", error=ToolError(kind=kind, message=message))
    return outcome.evolve(status="ok", error=None, result=text)


class Beyond(StrEnum):
    """The reaction of a play to a call that the record does not have."""

    stop = "stop"
    dry = "dry"  # the call gets a stand-in


@dataclass(frozen=True)
class Departure:
    """A call that is not in the record."""

    step: int | None
    call: str


@dataclass(frozen=True)
class RecordedTool:
    """A tool of the project, answered by a play. A person's decisions are part of the record, so it needs none."""

    tool: Tool | ToolRoute
    play: "Replay"

    @cached_property
    def route(self) -> ToolRoute:
        """The row of an activity, also for what another worker, a signal or the run itself would answer."""
        route = self.tool if isinstance(self.tool, ToolRoute) else self.tool.route
        is_elsewhere = route.kind in (ToolKind.signal, ToolKind.queue, ToolKind.builtin)
        kind = ToolKind.python if is_elsewhere else route.kind
        return route.evolve(kind=kind, approval=Approval.never, approval_kinds=(), queue=None)

    @property
    def schema(self) -> ToolSchema:
        if isinstance(self.tool, ToolRoute):  # the definition has its schema
            return ToolSchema(name=self.tool.name, description="", input_schema={"type": "object"})
        return self.tool.schema

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        return await self.play.answer_call(self.route, arguments, context.step)


@dataclass
class Replay:
    """A run like the recorded one. Without a `model` the record also answers for the model.

    `project` has a folder for plays as `workspaces`. `left` are the calls that are not in the record.
    """

    client: Client
    project: Project
    recording: Recording
    name: str  # of the run and its task queue
    model: Model | None = None
    beyond: Beyond = Beyond.stop
    left: list[Departure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._person = Person(self.client, self._choose_answer)

    async def run(self, media: Store) -> Export:
        """Play to the end, and return the record of the play. `media` is the store of the recorded run."""
        project = self._with_recorded_tools()
        await asyncio.to_thread(project.workspace(self.name).create)
        await copy_missing(media, project.stores.of(self.name), self.recording.record.transcript.parts)
        config = configure_worker(self.client, project, self.name, self.model or _NoModel())
        config["interceptors"] = [_PlayInterceptor(self), *config["interceptors"]]
        async with Worker(**config):
            await start_or_get_run(self.client, self.name, self.recording.start, self.name, project=None)
            await play_to_end(self.client, self.name, self._answer_question)
        workspaces = LocalStores(project.workspaces)
        return await Exporter(self.client, project.stores, workspaces, asks=False).export(self.name)

    def _with_recorded_tools(self) -> Project:
        """Return the project without anything that acts."""
        project = self.project
        tools: dict[str, Tool] = {name: RecordedTool(tool, self) for name, tool in project.tools.items()}
        tools |= {route.name: RecordedTool(route, self) for route in project.builtins if route.name in feature_tools()}
        return replace(
            project,
            agents={name: agent.evolve(pace=None, fuse_reads=False) for name, agent in project.agents.items()},
            tools=tools,
            builtins=tuple(tools[row.name].route if row.name in tools else row for row in project.builtins),
            remote=None,
            policy=None,
            parts={},
            answer_keys={},
            pace=None,
            fuse_reads=False,
        )

    @property
    def _agent(self) -> Agent | None:
        return self.project.agents.get(replayed_agent(self.recording.record))

    def find_result(self, kind: str, request: Any) -> Any:
        """Return the recorded result of an activity, or None if it is to run. Raises ApplicationError."""
        is_recorded = self.model is None
        match kind:
            case "plan" | "reflect" if is_recorded:
                return self.recording.take_turn(request.turn)
            case "summarize" if is_recorded:
                return self.recording.take_result(SUMMARIZE)
            case "accept_outcome" if is_recorded or not (self._agent and isinstance(self._agent.accept, Rubric)):
                return self.recording.take_result(ACCEPT) or Acceptance()  # a function is the user's code, and may act
            case "take_attachments":
                return self.recording.take_result(ATTACH)
            case _:
                return None

    async def answer_call(self, route: ToolRoute, arguments: dict[str, Any], step: int) -> ToolOutcome:
        """Return the recorded outcome of a call, or a stand-in if the record has none."""
        outcome = self.recording.take_outcome(route.name, arguments)
        if outcome is not None:
            return outcome
        await self._leave(step, call_line(route.name, arguments))
        example = {"example": from_json(route.example)} if route.example else {}
        return ToolOutcome(result={"replay": STAND_IN, **example})

    async def _leave(self, step: int | None, call: str) -> None:
        self.left.append(Departure(step, truncate(call, MAX_SHOWN_CALL)))
        if self.beyond is Beyond.stop:  # before the call has its outcome, so that no model is asked any more
            with suppress(RejectedError):  # it has ended
                request = CancelRequest(reason="the record ends here", by="perdure replay")
                await request_cancel(self.client, self.name, request)

    async def _answer_question(self, question: QuestionView) -> None:
        with suppress(RejectedError):  # it has ended
            await self._person.answer(self.name, question)

    async def _choose_answer(self, question: QuestionView) -> HumanInput | None:
        """Return the recorded answer or, beyond the record, a stand-in; None if the play stops there."""
        answer = self.recording.take_answer(question.text)
        if answer is None:
            await self._leave(None, call_line(ASK_HUMAN, {"question": question.text}))
            if self.beyond is Beyond.stop:
                return None
            is_free = question.kind == QuestionKind.question
            answer = parse_answer(question, NO_PERSON if is_free or not question.options else question.options[0])
        named = answer.evolve(question_id=question.id, call=question.call)
        return HumanInput.model_validate(dict(named))


class _NoModel:
    async def reply(self, call: ModelCall) -> ModelReply:
        message = f"the record has no such reply of {call.definition.model}, which is not called"
        raise ApplicationError(message, non_retryable=True)


@dataclass(frozen=True)
class _PlayInterceptor(Interceptor):
    """Answers activities from the record."""

    play: Replay

    def intercept_activity(
        self,
        next: ActivityInboundInterceptor,  # noqa: A002 - the SDK's
    ) -> ActivityInboundInterceptor:
        return _PlayInbound(next, self.play)


class _PlayInbound(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, play: Replay) -> None:
        super().__init__(inner)
        self._play = play

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        arguments: Sequence[Any] = input.args
        result = self._play.find_result(activity.info().activity_type, arguments[0] if arguments else None)
        return await super().execute_activity(input) if result is None else result


@dataclass(frozen=True)
class Column:
    """One way of the run. `left` are its calls that are not in the record, `why` its failed checks (None: no case)."""

    name: str
    record: Export
    left: Sequence[Departure]
    facts: Facts
    why: Sequence[str] | None

    @classmethod
    def of(cls, name: str, record: Export, case: Case | None, left: Sequence[Departure] = ()) -> "Column":
        facts = facts_of_record(record)
        return cls(name, record, left, facts, failed_checks(case.expect, facts) if case else None)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(turn.model for turn in self._turns))

    @property
    def turns(self) -> int:
        return len(self._turns)

    @property
    def _turns(self) -> list[ExportedTurn]:
        return [turn for turn in self.record.turns if turn.model and turn.activity in (*MODEL_TURNS, FUSED_TURN)]

    @property
    def has_stopped(self) -> bool:
        """True if the play was stopped where it left the record."""
        return bool(self.left) and self.facts.status == RunStatus.cancelled


@dataclass(frozen=True)
class Comparison:
    """The columns of one run. Without `differences` the replay is faithful; `changed` is what the agent's file changed.

    `unmade` are the calls of the run that the candidate does not ask for.
    """

    observed: Column
    as_it_was: Column
    candidate: Column
    differences: Sequence[str] = field(default=())
    changed: Sequence[str] = field(default=())
    unmade: Sequence[str] = field(default=())

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self.observed, self.as_it_was, self.candidate)

    @property
    def has_passed(self) -> bool:
        """True if the replay is faithful, and the candidate comes to an end that its case, if there is one, expects."""
        candidate = self.candidate
        ends = candidate.facts.status in (RunStatus.completed, RunStatus.escalated)
        is_right = ends if candidate.why is None else not candidate.why
        return not self.differences and is_right and not candidate.has_stopped


def compare_columns(observed: Column, as_it_was: Column, candidate: Column) -> Comparison:
    return Comparison(
        observed,
        as_it_was,
        candidate,
        tuple(_differences(observed, as_it_was)),
        tuple(_changed_parts(observed.record, as_it_was.record)),
        tuple(unmade_calls(observed.record, candidate.record)),
    )


def _differences(observed: Column, again: Column) -> Iterator[str]:
    """Yield how the run differs when it is played again."""
    for departure in again.left:
        yield f"the record has no result of {departure.call}"
    yield from record_differences(observed.record, again.record)
    yield from end_differences(observed.facts, again.facts)


def _changed_parts(was: Export, now: Export) -> Iterator[str]:
    """Yield the parts of the agent that are not as the run had them."""
    if not was.definitions or not now.definitions:
        return
    old, new = (project_part(next(reversed(record.definitions.values()))) for record in (was, now))
    names = {"model": "model", "fallbacks": "fallbacks", "options": "settings", "system": "prompt", "tools": "tools"}
    names |= {"searched": "tools", "output_schema": "output_schema", "accept": "accept"}
    yield from dict.fromkeys(label for name, label in names.items() if getattr(old, name) != getattr(new, name))


@dataclass(frozen=True)
class Candidate:
    """A substitute for a run's agent: a file, a model, or both. `cases` are the checks."""

    settings: Settings
    file: Path | None
    model: str | None
    beyond: Beyond
    cases: Sequence[Case] = ()

    def case_of(self, record: Export) -> Case | None:
        """Return the case with the run's goal, or the only one. Raises RejectedError if none of several fits."""
        goal = record.start["payload"]["goal"]
        only = self.cases[0] if len(self.cases) == 1 else None
        case = next((case for case in self.cases if case.goal == goal), only)
        if self.cases and case is None:
            raise RejectedError(f"run {record.run_id} cannot be replayed: no case has its goal")
        return case

    @asynccontextmanager
    async def open(self, agent: str) -> AsyncIterator[tuple[Project, Model]]:
        """Yield the project with the candidate as this agent, and its models. Raises ProjectError."""
        settings = self.settings.with_candidate(agent, self.file, self.model)
        async with display_project(settings) as project, AsyncExitStack() as closing:
            yield project, open_models(settings, closing)


@asynccontextmanager
async def open_stage() -> AsyncIterator[tuple[Client, Path]]:
    """Yield a server for plays alone, and a folder for their files. Both are gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="perdure-replay-"))
    try:
        async with embedded_server(root / "server") as server:
            yield await connect(server.address), root / "runs"
    finally:
        await remove_folder(root)


async def replay_run(
    record: Export, current: Project, candidate: Candidate, client: Client, folder: Path
) -> Comparison:
    """Play the run as it was in the `current` project, then with the candidate. Raises RejectedError, ProjectError."""
    must_be_replayable(record, current)
    case, token = candidate.case_of(record), secrets.token_hex(3)
    media = current.stores.of(record.run_id)
    again = Replay(client, replace(current, workspaces=folder), Recording(record), f"as-it-was-{token}")
    async with candidate.open(replayed_agent(record)) as (project, model):
        by_candidate = Replay(
            client,
            replace(project, workspaces=folder),
            Recording(record),
            f"candidate-{token}",
            model=model,
            beyond=candidate.beyond,
        )
        played, new = await again.run(media), await by_candidate.run(media)
    return compare_columns(
        Column.of("observed", record, case),
        Column.of("as it was", played, case, again.left),
        Column.of("candidate", new, case, by_candidate.left),
    )
