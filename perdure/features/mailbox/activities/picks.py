"""The input files that a person picks: read from the request file, answered to the waiting run, then cleaned up."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.storage.workspace import WrongFileTypeError
from perdure.activities.temporal import QueryCache, await_update
from perdure.contracts.people import MAILBOX
from perdure.contracts.run.signals import HumanInput, QuestionKind
from perdure.contracts.run.state import QuestionView, RunStatus, RunView
from perdure.decisions.ids import run_workflow_id
from perdure.decisions.text.formatting import truncate
from perdure.features.mailbox.activities.server import QUERY_TIMEOUT
from perdure.features.mailbox.activities.writer import REQUEST, MailWriter

_log = logging.getLogger(__name__)

ANSWERED_WITHIN = 10.0  # seconds; the folder's bridge waits that long
CHECKS_PER_QUERY = 5  # checks of a file between queries of its run
# Its lane has not begun the run yet, or the run does not answer.
_NO_ANSWER = {RPCStatusCode.NOT_FOUND, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}


class InputPicks:
    """The open requests. The question comes from a copy: of the file itself, which people edit, only `pick` is read."""

    def __init__(
        self,
        client: Client,
        writer: MailWriter,
        report: Callable[[str], Awaitable[None]],
        sign: Callable[[RunView, HumanInput], HumanInput] | None = None,
    ) -> None:
        """`report` receives the key of a message whose question is answered."""
        self._client = client
        self._writer = writer
        self._report = report
        self._sign = sign or (lambda _, answer: answer)
        self._queries = QueryCache()
        self._checks: dict[str, int] = {}
        self._spoiled: dict[str, str] = {}  # by task, the error in its request

    async def check_requests(self) -> int:
        """Answer the requests that a person has decided. Return the number of open ones. Raises OSError, RPCError."""
        tasks = await asyncio.to_thread(self._writer.list_open_requests)
        self._checks = {task: self._checks.get(task, 0) for task in tasks}
        self._spoiled = {task: problem for task, problem in self._spoiled.items() if task in self._checks}
        for task in tasks:
            try:
                await self._check_request(task)
            except WrongFileTypeError as error:
                self._log_problem(task, f"expected a regular file, in a folder: {error.filename}")
        return len(tasks)

    async def _check_request(self, task: str) -> None:
        question = await asyncio.to_thread(self._writer.read_question, task)
        if not question.get("run_id") or not _parse_choices(question):
            await asyncio.to_thread(self._writer.remove_request, task)  # the question is lost
            return
        stored = await asyncio.to_thread(self._writer.read_request, task)
        is_due = self._checks[task] % CHECKS_PER_QUERY == 0
        self._checks[task] += 1
        request = question | {name: value for name, value in (stored or {}).items() if name in {"pick", "fault"}}
        if stored == {}:
            self._log_problem(task, "it is not a JSON object any more: fix it, or remove it to have it written again")
        else:
            self._spoiled.pop(task, None)
        if is_due or any(_parse_picks(request).values()):
            await self._decide_request(task, request, is_gone=stored is None)

    def _log_problem(self, task: str, problem: str) -> None:
        """Log an error of a request, once."""
        if self._spoiled.get(task) != problem:
            _log.warning("tasks/%s/%s: %s", task, REQUEST, problem)
        self._spoiled[task] = problem

    async def _decide_request(self, task: str, request: dict[str, Any], *, is_gone: bool) -> None:
        handle = self._client.get_workflow_handle(run_workflow_id(str(request.get("run_id"))))
        view = await self._query_run(handle)
        if view is None:
            return
        question = view.question
        if question is None or question.kind != QuestionKind.choice:
            if view.turns > 0 or view.status is RunStatus.running:  # otherwise it has not asked yet
                await self._close_request(task, request)
            return
        if is_gone:  # an editor may put it back in a moment
            await asyncio.to_thread(self._writer.ask_again, task, request)
            return
        name, picked = _picked_input(request, question)
        if picked is None:
            return
        reason = await self._answer_question(handle, view, question, picked)
        if reason is None:
            self._checks[task] = 0  # check its next question soon
            if name == _parse_choices(request)[-1][0]:
                await self._close_request(task, request)
        elif reason and request.get("fault") != f"{name}: {reason}":
            await asyncio.to_thread(self._writer.rewrite_request, task, {**request, "fault": f"{name}: {reason}"})

    async def _query_run(self, handle: WorkflowHandle[Any, Any]) -> RunView | None:
        """Return the run's state, if it answers."""

        async def ask() -> RunView:
            view: RunView = await handle.query("state", result_type=RunView, rpc_timeout=QUERY_TIMEOUT)
            return view

        try:
            return await self._queries.read(handle, "state", ask)
        except (WorkflowQueryFailedError, RPCError) as error:
            if isinstance(error, RPCError) and error.status not in _NO_ANSWER:
                raise
            return None

    async def _answer_question(
        self, handle: WorkflowHandle[Any, Any], view: RunView, question: QuestionView, picked: str
    ) -> str | None:
        """Answer the run. Return why it failed, or empty text if it is to be tried again."""
        if picked not in question.options:
            return f"expected one of the options, not {truncate(picked, 200)!r}"
        answer = HumanInput(question_id=question.id, text=picked, by="the request's file", sender=MAILBOX)
        update = handle.execute_update("answer", self._sign(view, answer).model_dump(mode="json", exclude_none=True))
        try:
            await await_update(update, ANSWERED_WITHIN)
        except TimeoutError:
            return ""
        except WorkflowUpdateFailedError as error:
            return truncate(error.cause.message if isinstance(error.cause, ApplicationError) else str(error.cause), 200)
        return None

    async def _close_request(self, task: str, request: dict[str, Any]) -> None:
        """Report that the question is answered, and remove the request."""
        await self._report(str(request.get("key", "")))
        await asyncio.to_thread(self._writer.remove_request, task)


def _parse_picks(request: dict[str, Any]) -> dict[str, str]:
    """Return the picks by input. For a single input, `pick` may be a plain string."""
    pick, names = request.get("pick"), [name for name, _ in _parse_choices(request)]
    if isinstance(pick, str) and len(names) == 1:
        return {names[0]: pick} if pick else {}
    return {name: value for name, value in pick.items() if isinstance(value, str)} if isinstance(pick, dict) else {}


def _parse_choices(request: dict[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    rows = [row for row in _as_list(request.get("choices")) if isinstance(row, dict)]
    return [(str(row.get("name")), tuple(map(str, _as_list(row.get("options"))))) for row in rows]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _picked_input(request: dict[str, Any], question: QuestionView) -> tuple[str, str | None]:
    """Return the input that the run asks for, matched by options and then by name, and its pick."""
    picks = _parse_picks(request)
    fitting = [name for name, options in _parse_choices(request) if options == question.options]
    matches = [name for name in fitting if name in question.text] or fitting or [_parse_choices(request)[0][0]]
    return matches[0], picks.get(matches[0])
