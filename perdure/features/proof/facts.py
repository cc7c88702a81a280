"""The facts of a run that an expectation is checked against."""

import asyncio
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from temporalio.client import Client

from perdure.activities.run.outcome import RunEnd
from perdure.activities.storage.workspace import Workspace, folder_name
from perdure.client.records.run_facts import collect_facts
from perdure.client.run_list import find_run
from perdure.client.runs import query_run_state, wait_for_run_end
from perdure.client.watch import HistoryReader
from perdure.contracts.failures import ToolFault
from perdure.contracts.run.export import Export, ExportedCall
from perdure.contracts.run.limits import Spent
from perdure.decisions.tools import builtin_names
from perdure.features.proof.contract import Facts

EVAL_RUN_ID = re.compile(r"eval-[0-9a-f]{6}-\d+-\d+")  # of a run that an evaluation made
MAX_EVAL_FILES = 10_000


async def facts_of_run(
    client: Client, workspaces: Path, run_id: str, asked: Sequence[str], unanswered: str | None = None
) -> Facts:
    """Return what an expectation is checked against. `asked` are the questions of the run, which has ended."""
    end = await wait_for_run_end(client, run_id)
    view, run = await query_run_state(client, run_id), await find_run(client, run_id)
    calls = collect_facts(await HistoryReader(client).read_executions(run)).calls.values()
    files = await asyncio.to_thread(_list_files, workspaces, run_id)
    spent = Spent()
    if view is not None:  # a run that was rejected at its start has no usage
        own = Spent(steps=view.step, tokens=view.usage.total, usd=view.cost_usd)
        spent = own + (view.delegated or Spent())
    spending = {"steps": spent.steps, "tokens": spent.tokens, "cost_usd": spent.usd}
    return _to_facts(end, calls, files, asked=tuple(asked), unanswered=unanswered, **spending)


def facts_of_record(record: Export) -> Facts:
    """Return what an expectation is checked against. Steps, tokens and cost are the run's own, without subtasks."""
    end = RunEnd(**(record.end or {"status": record.status}))
    return _to_facts(
        end,
        record.calls,
        (file.path for file in record.artifacts),
        asked=tuple(question.text for question in record.questions),
        steps=max((call.step or 0 for call in record.calls), default=0),
        tokens=record.usage.total,
        cost_usd=record.cost_usd,
    )


def _to_facts(end: RunEnd, calls: Collection[ExportedCall], files: Iterable[str], **others: Any) -> Facts:
    """Return the facts of a run: its end, its calls, the files in its folder and those that it reports, and others."""
    payload = end.event["payload"] if end.event else {}
    return Facts(
        status=end.status,
        text=end.text,
        result=end.result,
        files=tuple(dict.fromkeys([*files, *payload.get("artifacts", ())])),
        made=called_tools(calls),
        requested=tuple(dict.fromkeys(call.tool for call in calls)),
        **others,
    )


def called_tools(calls: Iterable[ExportedCall]) -> tuple[str, ...]:
    """Return the tools that were called, each once, in the order of their first calls.

    A built-in tool has no attempts; it counts unless the record shows that its call was denied.
    """
    return tuple(dict.fromkeys(call.tool for call in calls if _was_made(call)))


def _was_made(call: ExportedCall) -> bool:
    is_denied = bool(call.is_error) and str(call.shown).startswith(ToolFault.denied)
    return bool(call.made or call.tool in builtin_names()) and not is_denied


def _list_files(workspaces: Path, run_id: str) -> list[str]:
    """Return the files in the run's folder, if it is on this machine."""
    with suppress(OSError):
        return [path for path, _ in Workspace(workspaces / folder_name(run_id)).list_files(MAX_EVAL_FILES)]
    return []
