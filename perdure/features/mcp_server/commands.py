"""`perdure mcp`: the MCP server over standard input and output."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from time import monotonic
from typing import Annotated, Any, ParamSpec, TypeVar

import anyio
import click
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import BaseModel, Field, ValidationError
from temporalio.service import RPCError

from perdure.activities.run.outcome import RunEnd
from perdure.activities.storage.workspace import folder_name
from perdure.client.details import ListedSubtask, RunRecord
from perdure.client.door import set_sender
from perdure.client.errors import RejectedError, TemporalUnavailableError
from perdure.client.run_list import iterate_runs
from perdure.contracts.model_settings import Pace
from perdure.contracts.models import omit_no_result
from perdure.contracts.people import MCP
from perdure.contracts.run.signals import Decision
from perdure.contracts.run.state import QuestionView, RunStatus
from perdure.decisions.errors import ReportedError, format_validation_error
from perdure.decisions.run.outcome import event_text
from perdure.decisions.run.question import QUESTIONS
from perdure.decisions.text.formatting import truncate
from perdure.decisions.text.visible_text import render_values
from perdure.features.mcp.commands import login_command, logins_command
from perdure.python_client import Perdure
from perdure.session import Needs, Session, open_session
from perdure.settings import load_settings
from perdure.terminal.command import format_examples, run_async
from perdure.terminal.follow import stop_event


@click.group(
    "mcp", invoke_without_command=True, epilog=format_examples("mcp", "mcp --may-approve", "mcp login tickets")
)
@click.option(
    "--may-approve",
    is_flag=True,
    help="Let the client decide questions for people: approvals, and calls with an unknown outcome.",
)
@click.pass_context
def mcp_command(context: click.Context, may_approve: bool) -> None:
    """Serve runs to an MCP client over standard input and output.

    It exits when the input is closed. The client can start, inspect, await, answer and cancel runs. The client is a
    model, so approvals are left to a person: see perdure approve.
    """
    if context.invoked_subcommand is not None:  # of the MCP client: its servers
        return
    sent, received = _claim_stdio()  # before any module is loaded that could print

    async def main() -> int:
        import asyncio

        settings = load_settings()
        set_sender(MCP)
        stop = asyncio.create_task(stop_event(is_read=False).wait())
        async with open_session(settings, Needs.work) as session:
            serving = asyncio.create_task(
                serve_mcp(create_mcp_server(session, may_approve=may_approve), received, sent)
            )
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            serving.cancel()
        return 0

    run_async(main)


mcp_command.add_command(login_command)
mcp_command.add_command(logins_command)


def _claim_stdio() -> tuple[int, int]:
    """Return the descriptors for MCP. Other code reads an empty standard input, and prints to standard error."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed; run this command from an MCP client")
    sent, received = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return sent, received


MCP_SENDER = "perdure mcp"  # the name under which the client answers and cancels
MAX_WAIT_SECONDS = 50.0  # seconds; many clients time out after 60
WAIT_POLL_SECONDS = 0.5  # seconds between polls, each one small request to the server
MAX_WAITING_LISTED = 50

_P = ParamSpec("_P")
_R = TypeVar("_R")


class StartedRun(BaseModel):
    run_id: str
    page: str | None = Field(description="its page in Temporal's Web UI")
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


class _OneLineErrors(MCPServer[Any]):
    """A server that reports an expected error in one line."""

    redact: Callable[[str], str] = str

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            match error.__cause__:
                case ReportedError() as cause:
                    reason = truncate(str(cause), 500)
                case ValidationError() as cause:
                    reason = format_validation_error(cause, without="payload")
                case RPCError() as cause:
                    reason = f"Temporal does not do it: {truncate(cause.message)}"
                case _:
                    raise
            raise ToolError(self.redact(f"{name}: {reason}")) from None


def create_mcp_server(session: Session, *, may_approve: bool) -> MCPServer[Any]:
    server = _OneLineErrors(
        "perdure", instructions=_build_instructions(session), version=version("perdure"), log_level="WARNING"
    )
    server.redact = session.settings.secrets.redact
    door = RunTools(session, may_approve=may_approve)
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    # An answer lets the agent continue, and a run can do whatever its tools can.
    acts = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
    stops = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool, hints in (
        (door.start_run, acts),
        (door.run_state, reads),
        (door.wait_for_run, reads),
        (door.answer_question, acts),
        (door.list_waiting, reads),
        (door.cancel_run, stops),
    ):
        server.tool(annotations=hints)(_with_visible_text(tool))
    return server


def _build_instructions(session: Session) -> str:
    agents = [agent for agent in session.settings.agents.values() if not agent.mailbox]
    listed = "\n".join(f"- {agent.name}: {agent.description or 'no description'}" for agent in agents)
    return (
        "Durable agent runs. A run goes on whatever becomes of this connection: keep its run_id, and look again later. "
        f"Start one with start_run, then call wait_for_run until it is over or asks something. The agents:\n{listed}"
    )


async def serve_mcp(server: MCPServer[Any], received: int, sent: int) -> None:
    """Serve until the client closes its descriptors."""
    source = _LineReader(os.fdopen(received, encoding="utf-8", errors="replace"))
    sink = anyio.wrap_file(os.fdopen(sent, "w", encoding="utf-8"))
    async with stdio_server(source, sink) as (read, write):
        lowlevel = server._lowlevel_server  # noqa: SLF001 - the public method reads in a way that cannot be cancelled
        await lowlevel.run(read, write, lowlevel.create_initialization_options())


class _LineReader(anyio.AsyncFile[str]):
    """A line reader whose pending read can be abandoned."""

    async def readline(self) -> str:
        return await anyio.to_thread.run_sync(self.wrapped.readline, abandon_on_cancel=True)


def _with_visible_text(tool: Callable[_P, Awaitable[_R]]) -> Callable[_P, Awaitable[_R]]:
    """Make hidden characters in the texts of a result visible, as the client may show them to people."""

    @wraps(tool)
    async def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        result = await tool(*args, **kwargs)
        if not isinstance(result, BaseModel):
            return result
        return type(result).model_validate(render_values(result.model_dump()))

    return wrapper


class RunTools:
    """The tools. The client's model reads their docstrings."""

    def __init__(self, session: Session, *, may_approve: bool) -> None:
        self._session = session
        self._perdure = Perdure.over(session)
        self._may_approve = may_approve

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
    ) -> StartedRun:
        """Start an agent run and return at once with its run_id. With a dedupe_key a repeat starts no second run."""
        attachments = [{"name": file.rpartition("/")[2], "artifact": file} for file in attach or ()]
        run = await self._perdure.start(
            goal,
            agent=agent,
            dedupe_key=dedupe_key,
            context=context or {},
            attachments=attachments,
            pace=pace,
            dry_run=dry_run,
        )
        note = await self._session.missing_worker_message(run.id) or ""
        return StartedRun(run_id=run.id, page=self._session.web_ui_page(run.id), note=note)

    async def run_state(self, run_id: str) -> RunStateResult:
        """The state of a run: status, step, plan, last finding, open question, cost, and its outcome at the end."""
        details = await self._perdure.get_run(run_id).details()
        known, view = details.known, details.state
        folder = self._session.settings.workspaces / folder_name(known.run_id)
        result = RunStateResult(
            **dict(known),
            is_over=not known.is_open,
            step=known.steps,
            handoff=details.handoff,
            subtasks=details.subtasks,
            folder=str(folder) if folder.is_dir() else "",
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
            run = await self._perdure.get_run(run_id).info()
            remaining = until - monotonic()
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
    ) -> str:
        """Answer the open question of a run. A question that only a person may answer is refused."""
        run = self._perdure.get_run(run_id)
        await run.info()
        view = await run.state()
        if view is None:
            raise TemporalUnavailableError(f"no worker answers for run {run_id} now: is one running? (perdure worker)")
        question = view.question
        if question is None or question.id != question_id:  # the check below is for the question that the client saw
            now = f"the open one is {question.id}: {truncate(question.text, 200)}" if question else "none is"
            raise RejectedError(f"question {question_id} is not open on run {run_id}; {now}")
        if not self._may_answer(question):
            raise RejectedError(
                f"question {question_id} is for a person ({question.kind}): perdure show {run_id} tells how to answer "
                "it; an MCP client may do so only if the server was started with --may-approve"
            )
        shown = question.text if call is not None and call == question.call else None
        await run.answer(text, decision=decision, question_id=question_id, call=call, by=MCP_SENDER, shown=shown)
        return "accepted"

    async def list_waiting(self) -> list[RunRecord]:
        """List the runs, follow-ups and questions of the project that wait for an answer, the latest first."""
        return [
            RunRecord.of(run)
            async for run in iterate_runs(self._session.client, waiting=True, limit=MAX_WAITING_LISTED)
        ]

    async def cancel_run(
        self,
        run_id: str,
        reason: Annotated[str | None, Field(description="kept with the run")] = None,
    ) -> str:
        """Ask a run to stop. An effect that is running is finished first; wait_for_run tells when it has stopped."""
        run = self._perdure.get_run(run_id)
        await run.info()
        await run.cancel(reason, by=MCP_SENDER)
        return "asked to stop"


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
