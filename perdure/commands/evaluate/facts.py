"""The facts of a run that an expectation is checked against."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from temporalio.client import Client

from activities.storage.workspace import Workspace, folder_name
from contracts.delegation import Spent
from contracts.failures import ToolFault
from contracts.run.evaluation import Facts
from contracts.run.export import ExportedCall
from decisions import builtin_tools
from decisions.run.outcome import event_text
from perdure.client.history import HistoryReader
from perdure.client.records.run_facts import collect_facts
from perdure.client.run_list import find_run
from perdure.client.runs import query_run_state, wait_for_run_end

EVAL_RUN_ID = re.compile(r"eval-[0-9a-f]{6}-\d+-\d+")  # of a run that an evaluation made
MAX_EVAL_FILES = 10_000


async def collect_case_facts(
    client: Client, workspaces: Path, run_id: str, asked: Sequence[str], unanswered: str | None = None
) -> Facts:
    """Return what an expectation is checked against. `asked` are the questions of the run, which has ended."""
    end = await wait_for_run_end(client, run_id)
    view, run = await query_run_state(client, run_id), await find_run(client, run_id)
    calls = collect_facts(await HistoryReader(client).read_executions(run)).calls.values()
    payload = end.event["payload"] if end.event else {}
    spent = Spent()
    if view is not None:  # a run that was rejected at its start has no usage
        own = Spent(steps=view.step, tokens=view.usage.total, usd=view.cost_usd)
        spent = own + (view.delegated or Spent())
    return Facts(
        status=end.status,
        text=event_text(end.event) if end.event else end.message,
        result=end.result,
        asked=tuple(asked),
        unanswered=unanswered,
        files=await asyncio.to_thread(_list_files, workspaces, run_id, payload.get("artifacts", ())),
        made=called_tools(calls),
        tried=tuple(dict.fromkeys(call.tool for call in calls)),
        steps=spent.steps,
        tokens=spent.tokens,
        cost_usd=spent.usd,
    )


def called_tools(calls: Iterable[ExportedCall]) -> tuple[str, ...]:
    """Return the tools that were called, each once, in the order of their first calls.

    A built-in tool has no attempts; it counts unless the record shows that its call was denied.
    """
    return tuple(dict.fromkeys(call.tool for call in calls if _was_made(call)))


def _was_made(call: ExportedCall) -> bool:
    is_denied = bool(call.is_error) and str(call.shown).startswith(ToolFault.denied)
    return bool(call.made or call.tool in builtin_tools.BUILTIN_NAMES) and not is_denied


def _list_files(workspaces: Path, run_id: str, named: Sequence[str]) -> tuple[str, ...]:
    """Return the files in the run's folder, if it is on this machine, and those that the run reports."""
    paths: list[str] = []
    with suppress(OSError):
        paths = [path for path, _ in Workspace(workspaces / folder_name(run_id)).list_files(MAX_EVAL_FILES)]
    return tuple(dict.fromkeys([*paths, *named]))
