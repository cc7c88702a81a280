"""The calls of A2A over the client: tasks are runs, a context is a conversation of the caller with one agent.

Nothing is kept here. A context's conversation has the caller and the agent in its id, and its lane is the parent of its
runs, so a task is the caller's by its parent alone. Ids of messages name runs and answers, so a repeat has no effect.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.message import Message as ProtocolMessage
from pydantic import ValidationError
from temporalio.service import RPCError

from perdure.client.course.moves import AnswerTaken, CourseEnded, CoursePaused, RemarkMade
from perdure.client.course.stretch import Stretch
from perdure.client.door import check_start
from perdure.client.errors import (
    AnswerRejectedError,
    BadStartError,
    RejectedError,
    RunNotFoundError,
    StartTooLargeError,
)
from perdure.client.lanes import RequestRejectedError
from perdure.client.run_events import AnswerReceived, RunHeld
from perdure.client.run_list import (
    ALL_RUNS,
    STATUS_TERMS,
    RunFilter,
    RunInfo,
    RunInfoPage,
    find_run,
    list_page,
    read_start,
)
from perdure.client.runs import has_length_of_id, query_run_state
from perdure.client.watch import Watch
from perdure.contracts.conversation import LaneFault, SubmitRequest, WhenBusy
from perdure.contracts.run.events import StartPayload
from perdure.contracts.run.signals import HumanInput
from perdure.contracts.run.state import RunStatus
from perdure.decisions import ids
from perdure.decisions.errors import ReportedError, format_validation_error
from perdure.decisions.text.formatting import truncate
from perdure.features.a2a.messages import Said, find_asked, page_link, read_message, read_target, to_config
from perdure.features.a2a.views import STATES, EventWriter, TaskEvent, TaskView
from perdure.features.pushes.client import list_pushes, read_push, start_push, stop_push
from perdure.features.pushes.contract import PushStart, PushTarget
from perdure.features.pushes.settings import PUSH
from perdure.gateway.auth import Caller, Gateway, require_scope
from perdure.gateway.lists import decode_cursor, encode_cursor
from perdure.gateway.problems import ApiError
from perdure.gateway.routes.sse import with_keep_alive
from perdure.gateway.tokens import Scope

SEND_SECONDS = 20.0  # that a send waits for a question or the end, before proxies cut it
CANCEL_SECONDS = 10.0  # that a cancel waits for the end
BUSY_SECONDS = 3.0  # that a message waits for its context: a lane hears of its turn's end a moment later
CHECK_SECONDS = 1.0  # between looks at a task that waits for a person
DEFAULT_TASKS, MAX_TASKS = 50, 100  # of a page
NO_RUN = "WorkflowType = ''"  # a list filter that nothing meets
READ_PATIENCE = timedelta(seconds=1.5)  # for a worker to say what a run asks
MAX_READ = 4  # tasks that one list reads at a time
ASK_AGAIN = "still at work: ask again with GetTask, or follow it with SubscribeToTask"
BUSY = "a task of this context runs: wait for its end, answer it with its taskId, or use another contextId"
NO_PUSH = "this server sends no push notifications: poll with GetTask, or follow with SubscribeToTask"
LAST = (CoursePaused, CourseEnded)
AT_WORK = (TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING)
INTERRUPTED = (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundTask:
    view: TaskView
    run: RunInfo


@dataclass(frozen=True)
class TakenMessage:
    """The task of a message, and the place in its course from which on its stream goes: the question that the message
    answered, or "" for the beginning. `note` says why the message was not taken.
    """

    task: FoundTask
    since: str = ""
    note: str = ""


@dataclass(frozen=True)
class Tasks(RequestHandler):
    """The tasks of one caller at one agent. `base` is the address of the gateway, as its clients write it.

    The methods raise A2AError, and ApiError if the caller lacks a scope.
    """

    gateway: Gateway
    caller: Caller
    agent: str
    base: str

    @cached_property
    def prefix(self) -> str:
        """The start of the caller's conversations with the agent."""
        return ids.task_contexts_prefix(self.caller.name, self.agent)

    # ---- send

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        with self._converting(params):
            taken = await self._take(params)
            if taken.note or params.configuration.return_immediately:
                return await self._read(taken.task, taken.note)
            return await self._wait(taken)

    async def on_message_send_stream(
        self,
        params: SendMessageRequest,
        context: ServerCallContext,
    ) -> AsyncGenerator[TaskEvent]:
        with self._converting(params):
            taken = await self._take(params)
            async with aclosing(self._follow(taken.task, taken.since, taken.note)) as events:
                async for event in events:
                    yield event

    async def _take(self, params: SendMessageRequest) -> TakenMessage:
        """Begin a task, or answer its question."""
        target: PushTarget | None = None
        if params.configuration.HasField("task_push_notification_config"):
            self._require_push()
            require_scope(self.caller, Scope.start)
            target = self._read_target(params.configuration.task_push_notification_config)
        message = params.message
        require_scope(self.caller, Scope.answer if message.task_id else Scope.start)
        said = await read_message(message, self.gateway.session.settings.stores)
        taken = await self._answer(message, said) if message.task_id else TakenMessage(await self._begin(message, said))
        if target is not None:
            await self._push(taken.task.view, target)
        return taken

    async def _begin(self, message: Message, said: Said) -> FoundTask:
        """Begin a task, or return the one that the message has begun."""
        own = ids.run_id_for_caller(self.caller.name, f"a2a {self.agent} {message.message_id}")
        context = message.context_id or own
        conversation = f"{self.prefix}{context}"
        run_id = ids.turn_run_id(conversation, message.message_id)
        view = self._view(run_id, context)
        client = self.gateway.session.client
        with suppress(RunNotFoundError):
            known = await find_run(client, run_id)
            start, _ = await read_start(client, known)
            if start["payload"]["goal"] != said.text:
                raise InvalidParamsError("message.messageId: it was used before with another text; use another id")
            return FoundTask(view, known)
        payload = StartPayload(goal=said.text, agent=self.agent, context=said.data, attachments=said.files)
        await check_start(payload, self.gateway.perdure.project)
        request = SubmitRequest(
            request_id=message.message_id,
            goal=said.text,
            agent=self.agent,
            context=said.data,
            attachments=said.files,
            when_busy=WhenBusy.reject,
            request_client="a2a",
        )
        await self._submit(conversation, request)
        self.gateway.lists.clear()
        return FoundTask(view, await find_run(client, run_id))

    async def _submit(self, conversation: str, request: SubmitRequest) -> None:
        """Submit a request, which begins now. Raises UnsupportedOperationError if a task of the context runs."""
        lane, now = self.gateway.perdure.conversation(conversation), asyncio.get_running_loop().time
        deadline = now() + BUSY_SECONDS
        while True:
            try:
                await lane.submit(request, closes=True)
            except RequestRejectedError as error:
                if error.kind is not LaneFault.lane_busy:
                    raise
                if now() > deadline:
                    raise UnsupportedOperationError(BUSY) from None
                await asyncio.sleep(CHECK_SECONDS / 5)
            else:
                return

    async def _answer(self, message: Message, said: Said) -> TakenMessage:
        """Answer the question of a task, once. A repeat, and what cannot answer it, leaves the task as it is."""
        found = await self._find(message.task_id)
        if message.context_id not in ("", found.view.context):
            raise InvalidParamsError("message.contextId: the task is of another context")
        if (since := await self._find_taken(found, message.message_id)) is not None:
            return TakenMessage(found, since)
        if not found.run.is_open:
            reason = f"the task is {found.run.status}: for a new one, send a message with its contextId and no taskId"
            raise UnsupportedOperationError(reason)
        view = await query_run_state(self.gateway.session.client, found.run.run_id)
        if view is None:
            raise InternalError("no worker answers for this task now; try again")
        if not view.questions:
            raise UnsupportedOperationError(f"the task is {view.status}: it asks nothing")
        asked = find_asked(view.questions, message)
        if asked is None:
            link = page_link(found.view.page, found.run.run_id)
            return TakenMessage(found, note=f"The message was not taken: a person decides at {link}.")
        answer = HumanInput(
            question_id=asked.id,
            text=said.text,
            attachments=said.files,
            message_id=message.message_id,
            by=self.caller.name,
        )
        try:
            await self.gateway.perdure.get_run(found.run.run_id).send_answer(answer)
        except AnswerRejectedError:  # also if this message was quicker on another connection
            if await self._find_taken(found, message.message_id) is None:
                raise
        self.gateway.lists.clear()
        return TakenMessage(await self._find(message.task_id), asked.id)

    async def _find_taken(self, found: FoundTask, message_id: str) -> str | None:
        """Return the question that the message has answered, or "" if it began the task; None: the task has it not."""
        run_id = found.run.run_id
        if run_id == ids.turn_run_id(f"{self.prefix}{found.view.context}", message_id):
            return ""
        past = Watch(self.gateway.session.client, run_id, follow=False)
        async with aclosing(past.positioned_events()) as entries:
            async for _, event in entries:
                if isinstance(event, AnswerReceived) and event.answer.message_id == message_id:
                    return event.answer.question_id
        return None

    # ---- follow

    async def on_subscribe_to_task(
        self,
        params: SubscribeToTaskRequest,
        context: ServerCallContext,
    ) -> AsyncGenerator[TaskEvent]:
        with self._converting(params):
            found = await self._find(params.id)
            if not found.run.is_open:
                raise UnsupportedOperationError(f"the task is {found.run.status}: read it with GetTask")
            async with aclosing(self._follow(found)) as events:
                async for event in events:
                    yield event

    async def _wait(self, taken: TakenMessage) -> Task:
        """Wait for a question, a login or the end, but not longer than proxies do."""
        found = taken.task
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(SEND_SECONDS),
                aclosing(self._follow(found, taken.since)) as events,
                aclosing(with_keep_alive(events, self.gateway.stopping)) as paced,
            ):
                async for event in paced:
                    if isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state in INTERRUPTED:
                        break
        task = await self._read(await self._find(found.run.run_id))
        if task.status.state in AT_WORK and not task.status.HasField("message"):
            return found.view.task(found.view.status(task.status.state, "note", Part(text=ASK_AGAIN)))
        return task

    async def _follow(self, found: FoundTask, since: str | None = None, note: str = "") -> AsyncGenerator[TaskEvent]:
        """Yield the task, then its events since the beginning or the answer of a question, up to the next question.

        None: those from now on, and past a question that is open.
        """
        client, run_id = self.gateway.session.client, found.run.run_id
        task = await self._read(found, note)
        yield task
        if not found.run.is_open:
            return
        writer = EventWriter(found.view, task.status.state)
        if writer.state == TaskState.TASK_STATE_INPUT_REQUIRED:
            if since is not None:
                return
            status = await self._wait_for_answer(task)
            if status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
                yield writer.update(status)
                return
        stretch = Stretch(client, run_id, self.gateway.session.settings.workspaces)
        is_new = not since
        async with aclosing(stretch.follow(past=since is not None)) as moves:
            async for move in moves:
                is_answer = isinstance(move, AnswerTaken) and move.question_id == since
                is_new = is_new or is_answer or isinstance(move, LAST)
                if not is_new:
                    continue
                if isinstance(move, CoursePaused) or (isinstance(move, RemarkMade) and move.about == RunHeld.type):
                    yield writer.update((await self._read(await self._find(run_id))).status)
                    continue
                for event in writer.write(move):
                    yield event

    async def _wait_for_answer(self, task: Task) -> TaskStatus:
        """Return the next status of a task that waits for a person."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            status = (await self._read(await self._find(task.id))).status
            if (status.state, status.message.message_id) != (task.status.state, task.status.message.message_id):
                return status

    # ---- read, list, cancel

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        with self._converting(params):
            return await self._read(await self._find(params.id))

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        with self._converting(params):
            if params.HasField("status_timestamp_after"):
                raise InvalidParamsError("statusTimestampAfter: tasks are not listed by it; leave it out")
            limit = params.page_size or DEFAULT_TASKS
            if not 1 <= limit <= MAX_TASKS:
                raise InvalidParamsError(f"pageSize: 1 to {MAX_TASKS}")
            only, after = self._filter(params), decode_cursor(params.page_token)
            client = self.gateway.session.client

            async def read() -> tuple[RunInfoPage, int]:
                page = await list_page(client, only, limit=limit, after=after)
                return page, (await client.count_workflows(f"{ALL_RUNS}{only.terms(None)}")).count

            page, total = await self.gateway.lists.read(("a2a", only, limit, after), read, lists=2)
            tasks = await self._describe(page, with_outcomes=params.include_artifacts)
            cursor = encode_cursor(page.next) or ""
            return ListTasksResponse(tasks=tasks, next_page_token=cursor, page_size=limit, total_size=total)

    def _filter(self, params: ListTasksRequest) -> RunFilter:
        """Return the filter of the caller's runs at this agent, in this context and state if they are given."""
        terms = [ids.query_begins("ConversationId", self.prefix)]
        if params.status:
            matching = [
                f"({STATUS_TERMS[RunStatus(status)]})" for status, state in STATES.items() if state == params.status
            ]
            terms.append(f"({' OR '.join(matching) or NO_RUN})")
        conversation = f"{self.prefix}{params.context_id}" if params.context_id else None
        return RunFilter(query=" AND ".join(terms), agent=self.agent, conversation=conversation)

    async def _describe(self, page: RunInfoPage, *, with_outcomes: bool) -> list[Task]:
        """Return the tasks of a page. By default a list reads no run, so they have neither messages nor outcomes."""
        slots = asyncio.Semaphore(MAX_READ)

        async def describe(run: RunInfo) -> Task | None:
            async with slots:
                try:
                    found = FoundTask(await self._place(run), run)
                except TaskNotFoundError:  # a start has named the conversation of a task
                    return None
                return await self._read(found) if with_outcomes else found.view.task(found.view.listed_status(run))

        tasks = await asyncio.gather(*map(describe, page.runs))
        return [task for task in tasks if task is not None]

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task | None:
        with self._converting(params):
            require_scope(self.caller, Scope.answer)
            found = await self._find(params.id)
            if found.run.is_open:
                run = self.gateway.perdure.get_run(found.run.run_id)
                with suppress(TimeoutError, RejectedError):  # it has ended, or a call completes first
                    await run.cancel(by=self.caller.name)
                    async with asyncio.timeout(CANCEL_SECONDS):
                        await run.end()
                self.gateway.lists.clear()
                return await self._read(await self._find(params.id))
            if found.run.status != RunStatus.cancelled:
                raise TaskNotCancelableError(f"the task is {found.run.status}")
            return await self._read(found)

    async def _find(self, task_id: str) -> FoundTask:
        """Return a task of the caller. Raises TaskNotFoundError, also for a run that is not one."""
        if not has_length_of_id(task_id):
            raise TaskNotFoundError
        try:
            run = await find_run(self.gateway.session.client, task_id)
            return FoundTask(await self._place(run), run)
        except (RunNotFoundError, RejectedError):
            raise TaskNotFoundError from None

    async def _place(self, run: RunInfo) -> TaskView:
        """Return the run as a task, if it is a turn of the caller's contexts, or goes on with one that failed.

        Its lane is its parent, which no start can claim. Raises TaskNotFoundError, RunNotFoundError.
        """
        own = ids.conversation_workflow_id(self.prefix)
        parent = run.execution.parent_id or ""
        if parent.startswith(own):
            return self._view(run.run_id, parent.removeprefix(own))
        start, _ = await read_start(self.gateway.session.client, run)
        match start:
            case {"type": "agentic.resume", "payload": {"run_id": str(origin), **more}} if more.get("step") is None:
                before = await self._place(await find_run(self.gateway.session.client, origin))
                return self._view(run.run_id, before.context, origin)
        raise TaskNotFoundError

    def _view(self, run_id: str, context: str, origin: str = "") -> TaskView:
        page = self.gateway.session.settings.file.gateway.public_url or self.base
        return TaskView(run_id, context, self.base, page.rstrip("/"), origin)

    async def _read(self, found: FoundTask, note: str = "") -> Task:
        """Return the task as it is now, with what its run asks, or its outcome."""
        view, run = found.view, found.run
        if not run.is_open:
            end = await self.gateway.perdure.get_run(run.run_id).end()
            return view.task(view.end_status(end, run.execution.close_time), view.outcome(end))
        if run.status != RunStatus.waiting_on_human:
            return view.task(view.open_status(run, None, note))
        client, cache = self.gateway.session.client, self.gateway.queries
        state = await query_run_state(client, run.run_id, READ_PATIENCE, cache)
        return view.task(view.open_status(run, state.questions if state else None, note))

    # ---- push

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        with self._converting(params):
            self._require_push()
            require_scope(self.caller, Scope.start)
            target = self._read_target(params)
            return await self._push((await self._find(params.task_id)).view, target)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        with self._converting(params):
            self._require_push()
            found = await self._find(params.task_id)
            run_id = found.run.run_id
            target = await read_push(self.gateway.session.client, run_id, params.id or run_id)
            if target is None:
                raise TaskNotFoundError("the task has no push notification of this id")
            return to_config(run_id, target)

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        with self._converting(params):
            self._require_push()
            run_id = (await self._find(params.task_id)).run.run_id
            targets = list_pushes(self.gateway.session.client, run_id)
            return ListTaskPushNotificationConfigsResponse(configs=[to_config(run_id, each) async for each in targets])

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        with self._converting(params):
            self._require_push()
            run_id = (await self._find(params.task_id)).run.run_id
            await stop_push(self.gateway.session.client, run_id, params.id or run_id)

    def _require_push(self) -> None:
        if not self.gateway.session.settings.access["push"]:
            raise PushNotificationNotSupportedError(NO_PUSH)

    def _read_target(self, config: TaskPushNotificationConfig) -> PushTarget:
        allowed = PUSH.of(self.gateway.session.settings.file).allow_hosts
        return read_target(config, frozenset(host.lower() for host in allowed))

    async def _push(self, view: TaskView, target: PushTarget) -> TaskPushNotificationConfig:
        """Send the states of a task to an address, from the present one on. Without an id, its id is the task's."""
        target = target.evolve(id=target.id or view.run_id)
        session = self.gateway.session
        push = PushStart(run_id=view.run_id, context=view.context, target=target)
        await start_push(session.client, session.settings.task_queue, push)
        return to_config(view.run_id, target)

    # ---- the rest

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        raise ExtendedAgentCardNotConfiguredError("there is one card, at /.well-known/agent-card.json")

    @contextmanager
    def _converting(self, params: ProtocolMessage) -> Iterator[None]:
        """Check that the parameters are whole, and convert the errors of the block to those of the protocol."""
        try:
            validate_proto_required_fields(params)
            yield
        except (A2AError, ApiError):
            raise
        except Exception as error:  # noqa: BLE001 - a client must not read its text
            raise self._convert(error) from None

    def _convert(self, error: Exception) -> A2AError:
        kind: type[A2AError] = InternalError
        reason = str(error)
        match error:
            case RunNotFoundError():
                kind = TaskNotFoundError
            case ValidationError():
                kind, reason = InvalidParamsError, f"message: {format_validation_error(error)}"
            case BadStartError() | StartTooLargeError() | AnswerRejectedError():
                kind = InvalidParamsError
            case RequestRejectedError(kind=LaneFault.invalid_input | LaneFault.request_reused):
                kind = InvalidParamsError
            case RejectedError():
                kind = UnsupportedOperationError
            case ReportedError():
                pass
            case RPCError() | OSError():
                _log.warning("a call of A2A: %s", truncate(reason))
                reason = "Temporal or a store does not answer; try again"
            case _:
                _log.exception("a call of A2A failed", exc_info=error)
                reason = "the gateway failed; the error is in its log"
        return kind(self.gateway.session.settings.secrets.redact(truncate(reason, 1000)))
