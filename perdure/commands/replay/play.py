"""One play of a recorded run: a real run on a server of its own, whose calls are answered from the record."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

from pydantic_core import from_json
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Worker

from activities.media.store import copy_missing
from activities.project import Project
from activities.providers.port import Model, ModelCall, ModelReply
from activities.storage.store import LocalStores, Store
from activities.tools.interface import CallContext, Tool
from contracts.agent import Agent, ToolSchema
from contracts.people.rubric import Rubric
from contracts.run.export import Export
from contracts.run.question import QuestionKind
from contracts.run.signals import CancelRequest, HumanInput
from contracts.run.state import QuestionView, RunStatus
from contracts.run.turn import Acceptance
from contracts.tool import Approval, ToolKind, ToolOutcome, ToolRoute
from decisions.builtin_tools import ASK_HUMAN, DELEGATE, FOLLOW_UP_TOOLS
from decisions.text.formatting import call_line, truncate
from perdure.client.errors import RejectedError
from perdure.client.records.export import Exporter
from perdure.client.run_events import WaitStarted
from perdure.client.runs import query_run_state, request_cancel, start_or_get_run, submit_answer, wait_for_run_end
from perdure.client.watch import Watch
from perdure.commands.replay.recording import ACCEPT, ATTACH, SUMMARIZE, Recording, replayed_agent
from perdure.terminal.prompt import parse_answer
from worker import configure_worker

STAND_IN = "not made, as this is a replay and the recorded run made no such call: go on as if it had succeeded"
NO_PERSON = "no person is asked, as this is a replay: decide by yourself"
STATE_PATIENCE = timedelta(seconds=30)
MAX_SHOWN_CALL = 200  # characters


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
        changes = {"kind": kind, "approval": Approval.never, "approval_kinds": (), "queue": None}
        return route.model_copy(update=changes)

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
    _answered: set[str] = field(default_factory=set)

    async def run(self, media: Store) -> Export:
        """Play to the end, and return the record of the play. `media` is the store of the recorded run."""
        project = self._with_recorded_tools()
        await asyncio.to_thread(project.workspace(self.name).create)
        await copy_missing(media, project.stores.of(self.name), self.recording.record.transcript.parts)
        config = configure_worker(self.client, project, self.name, self.model or _NoModel())
        config["interceptors"] = [_PlayInterceptor(self), *config["interceptors"]]
        async with Worker(**config):
            await start_or_get_run(self.client, self.name, self.recording.start, self.name)
            await self._answer_questions()
            await wait_for_run_end(self.client, self.name)
        workspaces = LocalStores(project.workspaces)
        return await Exporter(self.client, project.stores, workspaces, asks=False).export(self.name)

    def _with_recorded_tools(self) -> Project:
        """Return the project without anything that acts."""
        project = self.project
        tools: dict[str, Tool] = {name: RecordedTool(tool, self) for name, tool in project.tools.items()}
        tools |= {
            route.name: RecordedTool(route, self)
            for route in project.builtins
            if route.name in (DELEGATE, *FOLLOW_UP_TOOLS)
        }
        plain: dict[str, Any] = {"pace": None, "fuse_reads": False}
        return replace(
            project,
            agents={name: agent.model_copy(update=plain) for name, agent in project.agents.items()},
            tools=tools,
            builtins=tuple(tools[row.name].route if row.name in tools else row for row in project.builtins),
            remote=None,
            policy=None,
            outbox=None,
            channels=(),
            starts=(),
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

    async def _answer_questions(self) -> None:
        """Follow the run to its end, and answer its questions as they were answered."""
        async for event in Watch(self.client, self.name).events():
            if not isinstance(event, WaitStarted) or event.status != RunStatus.waiting_on_human:
                continue
            view = await query_run_state(self.client, self.name, STATE_PATIENCE)
            for question in view.questions if view else ():
                if question.id not in self._answered:
                    self._answered.add(question.id)
                    await self._answer_question(question)

    async def _answer_question(self, question: QuestionView) -> None:
        answer = self.recording.take_answer(question.text)
        if answer is None:
            await self._leave(None, call_line(ASK_HUMAN, {"question": question.text}))
            if self.beyond is Beyond.stop:
                return
            is_free = question.kind == QuestionKind.question
            answer = parse_answer(question, NO_PERSON if is_free or not question.options else question.options[0])
        named = answer.model_copy(update={"question_id": question.id, "call": question.call})
        with suppress(RejectedError):  # it has ended
            await submit_answer(self.client, self.name, HumanInput.model_validate(dict(named)))


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
