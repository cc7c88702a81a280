"""Runs as tools of an MCP client, which is usually a model: it starts, reads, answers in words and cancels."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field

from perdure.activities.run.outcome import RunEnd
from perdure.activities.storage.workspace import folder_name
from perdure.client.details import ListedSubtask, RunRecord
from perdure.client.errors import RejectedError, RunNotFoundError, TemporalUnavailableError
from perdure.client.run_list import iterate_runs
from perdure.client.runs import digest_of_start, read_start_digest
from perdure.contracts.model_settings import Pace
from perdure.contracts.models import omit_no_result
from perdure.contracts.run.events import StartEvent
from perdure.contracts.run.signals import Decision
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.decisions import ids
from perdure.decisions.run.outcome import event_text
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.formatting import truncate
from perdure.features.mcp_server.callers import McpCaller, find_own_run
from perdure.features.mcp_server.forms import page_of
from perdure.python_client import Perdure
from perdure.session import Session

MAX_WAIT_SECONDS = 50.0  # seconds; many clients time out after 60
WAIT_POLL_SECONDS = 0.5  # seconds between polls, each one small request to the server
MAX_WAITING_LISTED = 50
KEY = "perdure/idempotency-key"  # in `_meta` of start_run: the key of a start, of this caller alone
MAX_KEY = 500  # characters

CallContext = Context[Any, Any]
CallerOf = Callable[[Any], McpCaller]  # of an HTTP request; of None, over standard input and output


def of_this_process(_: Any) -> McpCaller:
    return McpCaller()


class StartedRun(BaseModel):
    run_id: str
    page: str | None = Field(description="its page, in Temporal's Web UI or at the gateway")
    note: str = Field(default="", description="what keeps it from going on")


class PendingQuestion(BaseModel):
    """`answered_by` is "you" or "a person". `call` is the digest of a call, which comes with the answer."""

    id: str
    kind: str
    text: str
    options: tuple[str, ...]
    call: str | None = Field(default=None, exclude_if=lambda call: call is None, description="of the call to approve")
    answered_by: str


class RunStateResult(RunRecord):
    """A run as it is now. At its end it has an `outcome` and `artifacts` (in `folder`), or a `failure`.

    `result` is by its output schema; without one, it is left out. A dry run makes reads only; `dry_calls` are the other
    calls, which it did not make.
    """

    dry_calls: tuple[dict[str, Any], ...] = ()
    is_over: bool
    goal: str = ""
    step: int = 0
    max_steps: int | None = None
    plan: str = ""
    last_finding: str = ""
    question: PendingQuestion | None = None
    outcome: str = ""
    result: Any = omit_no_result()
    failure: str = ""
    handoff: dict[str, str] | None = None
    subtasks: tuple[ListedSubtask, ...] | None = ()
    folder: str = ""
    artifacts: tuple[str, ...] = ()
    note: str = ""


class RunTools:
    """The tools. The client's model reads their docstrings."""

    def __init__(
        self,
        session: Session,
        *,
        may_approve: bool,
        caller_of: CallerOf = of_this_process,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self.session = session
        self.caller_of = caller_of
        self._stopping = stopping or asyncio.Event()
        self.perdure = Perdure.over(session)
        self._may_approve = may_approve
        self._is_local = caller_of is of_this_process

    async def start_run(
        self,
        goal: Annotated[str, Field(description="what to do, in words")],
        agent: Annotated[str | None, Field(description="one of the agents; the default one if left out")] = None,
        context: Annotated[dict[str, Any] | None, Field(description="facts for the agent")] = None,
        attach: Annotated[
            list[str] | None, Field(description="images or PDF of other runs, each as RUN/artifacts/FILE")
        ] = None,
        dedupe_key: Annotated[
            str | None, Field(min_length=1, description="the same key finds the same run again")
        ] = None,
        pace: Annotated[
            Pace | None, Field(description="batch: half the price, with replies after minutes to 24 hours")
        ] = None,
        dry_run: Annotated[
            bool, Field(description="make reads only, and list the calls that would change something")
        ] = False,
        at: CallContext | None = None,
    ) -> StartedRun:
        """Start an agent run and return at once with its run_id. With a dedupe_key a repeat starts no second run."""
        caller, key = self._caller(at), _key_of(at)
        caller.require_start()
        if key is not None and dedupe_key is not None:
            raise RejectedError(f"give either dedupe_key or {KEY}: they mean different runs")
        shared = key if key is not None else dedupe_key
        event = StartEvent.model_validate(
            {
                "type": "agentic.start",
                "payload": {
                    "goal": goal,
                    "agent": agent,
                    "context": context or {},
                    "attachments": [{"name": file.rpartition("/")[2], "artifact": file} for file in attach or ()],
                    "pace": pace,
                    "dry_run": dry_run,
                },
                "dedupe_key": None if shared is None else ids.start_key(shared),
            }
        )
        run = await self.perdure.begin(event, None if key is None else ids.run_id_for_caller(caller.name, key))
        if key is not None and not run.is_new:
            await self._require_same_start(run.id, event)
        note = await self.session.missing_worker_message(run.id) or ""
        return StartedRun(run_id=run.id, page=self.page(run.id), note=note)

    async def _require_same_start(self, run_id: str, event: StartEvent) -> None:
        first, second = await read_start_digest(self.session.client, run_id), digest_of_start(event)
        if first is not None and first != second:
            raise RejectedError(f"the key started a run with other arguments: {first}, not {second}; use another key")

    def page(self, run_id: str) -> str | None:
        """Return the run's page: on this machine in Temporal's Web UI, elsewhere at the gateway."""
        return self.session.web_ui_page(run_id) if self._is_local else self.page_for_people(run_id)

    def page_for_people(self, run_id: str) -> str | None:
        """Return the run's page at the gateway, for a person to decide there, if its address is known."""
        return page_of(self.session.settings.file.gateway.public_url, run_id)

    def _caller(self, at: CallContext | None) -> McpCaller:
        return self.caller_of(at.request_context.request if at is not None else None)

    async def _require_right(self, caller: McpCaller, run_id: str) -> None:
        """Raises RejectedError if the caller may not answer or cancel this run."""
        if caller.may_answer:
            return
        try:
            await find_own_run(self.session.client, caller, run_id)
        except RunNotFoundError:
            raise RejectedError(f"token {caller.name} has no scope human:answer, and did not start this run") from None
        caller.require_start()

    async def run_state(self, run_id: str) -> RunStateResult:
        """The state of a run: status, step, plan, last finding, open question, cost, and its outcome at the end."""
        details = await self.perdure.get_run(run_id).details()
        known, view = details.known, details.state
        folder = self.session.settings.workspaces / folder_name(known.run_id)
        result = RunStateResult(
            **dict(known),
            is_over=not known.is_open,
            step=known.steps,
            handoff=details.handoff,
            subtasks=details.subtasks,
            folder=str(folder) if self._is_local and folder.is_dir() else "",
        )
        if view is not None:
            plain = {"goal", "agent", "step", "max_steps", "plan", "last_finding", "cost_usd", "artifacts", "dry_calls"}
            result = result.evolve(**view.model_dump(include=plain), question=self._to_open_question(view.question))
        if known.wedged:
            return result.evolve(note=f"wedged, it needs its operator: {known.wedged_by}")
        if details.held_by is not None:
            return result.evolve(note=f"held before its next call: {details.held_by.why}")
        if details.end is not None:
            return _with_end(result, details.end)
        if view is not None:
            return result
        return result.evolve(
            note=f"no worker answers now: this is what the server knows, {details.age_seconds:.0f} s old"
        )

    def _to_open_question(self, question: QuestionView | None) -> PendingQuestion | None:
        if question is None:
            return None
        by = "you" if self._may_answer(question) else "a person"
        return PendingQuestion(**question.model_dump(include={"id", "kind", "text", "options", "call"}), answered_by=by)

    def _may_answer(self, question: QuestionView) -> bool:
        row = QUESTIONS[question.kind]
        return self._may_approve or row.is_textual or (row.takes_own_words and not row.needs_person)

    async def wait_for_run(
        self,
        run_id: str,
        seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, description="how long at most")] = MAX_WAIT_SECONDS,
    ) -> RunStateResult:
        """Wait until a run is over or has a question, at most `seconds`, and tell its state. Call it again to go on."""
        until = monotonic() + seconds
        while True:
            run = await self.perdure.get_run(run_id).info()
            remaining = 0.0 if self._stopping.is_set() else until - monotonic()
            if not run.is_open or run.status == RunStatus.waiting_on_human or remaining <= 0:
                result = await self.run_state(run_id)
                if result.is_over or result.question is not None or result.note or remaining <= 0:
                    return result  # without these, its question was answered just now
            await asyncio.sleep(min(WAIT_POLL_SECONDS, remaining))

    async def answer_question(
        self,
        run_id: str,
        question_id: Annotated[str, Field(description="of the open question, from run_state")],
        text: Annotated[str | None, Field(description="the answer in words")] = None,
        decision: Annotated[Decision | None, Field(description="one of the question's options")] = None,
        call: Annotated[str | None, Field(description="the question's `call`, to approve exactly that one")] = None,
        at: CallContext | None = None,
    ) -> str:
        """Answer the open question of a run. A question that only a person may answer is refused."""
        run, caller = self.perdure.get_run(run_id), self._caller(at)
        await run.info()
        await self._require_right(caller, run_id)
        view = await run.state()
        if view is None:
            raise TemporalUnavailableError(f"no worker answers for run {run_id} now: is one running? (perdure worker)")
        question = view.question
        if question is None or question.id != question_id:  # the check below is for the question that the client saw
            now = f"the open one is {question.id}: {truncate(question.text, 200)}" if question else "none is"
            raise RejectedError(f"question {question_id} is not open on run {run_id}; {now}")
        if not self._may_answer(question):
            raise RejectedError(f"question {question_id} is for a person ({question.kind}): {self._place(run_id)}")
        shown = question.text if call is not None and call == question.call else None
        await run.answer(text, decision=decision, question_id=question_id, call=call, by=caller.name, shown=shown)
        return "accepted"

    def _place(self, run_id: str) -> str:
        """Return where a person answers."""
        if not self._is_local:
            return self.page_for_people(run_id) or f"perdure show {run_id}"
        how = "an MCP client may do so only if the server was started with --may-approve"
        return f"perdure show {run_id} tells how to answer it; {how}"

    async def list_waiting(self) -> list[RunRecord]:
        """List the runs, follow-ups and questions of the project that wait for an answer, the latest first."""
        return [
            RunRecord.of(run) async for run in iterate_runs(self.session.client, waiting=True, limit=MAX_WAITING_LISTED)
        ]

    async def cancel_run(
        self,
        run_id: str,
        reason: Annotated[str | None, Field(description="kept with the run")] = None,
        at: CallContext | None = None,
    ) -> str:
        """Ask a run to stop. An effect that is running is finished first; wait_for_run tells when it has stopped."""
        run, caller = self.perdure.get_run(run_id), self._caller(at)
        await run.info()
        await self._require_right(caller, run_id)
        await run.cancel(reason, by=caller.name)
        return "asked to stop"


def _key_of(at: CallContext | None) -> str | None:
    """Return the key of a start in `_meta`. Raises RejectedError."""
    key = ((at.request_context.meta or {}) if at is not None else {}).get(KEY)
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= MAX_KEY):
        raise RejectedError(f"{KEY} must be a text of 1 to {MAX_KEY} characters")
    return key


def _with_end(result: RunStateResult, end: RunEnd) -> RunStateResult:
    payload = (end.event or {}).get("payload", {})
    escalated = event_text(end.event) if end.event and "reason" in payload else ""
    return result.evolve(
        status=end.status,
        question=None,
        outcome=payload.get("outcome", ""),
        result=end.result,
        failure=escalated or f"{end.kind}: {end.message}".strip(": "),
        artifacts=tuple(payload.get("artifacts", result.artifacts)),
        dry_calls=tuple(payload.get("dry_calls", result.dry_calls)),
    )
