"""The budgets of a task queue, for people: their list, raises and resets, and the checks of `perdure doctor`."""

from time import time

from temporalio.client import Client, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.door import ANSWER_WITHIN, stamp_sender
from perdure.client.errors import RejectedError, TemporalUnavailableError, convert_rpc_errors, to_unavailable_error
from perdure.decisions.errors import ReportedError
from perdure.decisions.text.formatting import format_duration, truncate
from perdure.features.budgets.contract import AllowanceView, BudgetChange, BudgetsState, KeyState, Measure, Per, Terms
from perdure.features.budgets.purse import start_budgets
from perdure.features.budgets.rules import (
    METER,
    PROVIDER,
    budgets_id,
    format_amount,
    format_share,
    format_whose,
    is_budget,
    key_of,
    view_all,
    view_of,
)
from perdure.features.budgets.settings import BUDGETS, BudgetSettings
from perdure.registry import Check, Figures
from perdure.settings import Settings
from perdure.settings.problems import format_suggestion

MAX_SHOWN = 5  # allowances in a line


async def read_state(client: Client, task_queue: str) -> BudgetsState:
    """Return what the entity knows; nothing if no worker has asked it yet. Raises ReportedError."""
    handle = client.get_workflow_handle(budgets_id(task_queue))
    try:
        state: BudgetsState = await handle.query("state", result_type=BudgetsState, rpc_timeout=ANSWER_WITHIN)
    except WorkflowQueryFailedError as error:
        raise RejectedError(f"the workflow of the budgets does not answer: {truncate(str(error))}") from None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return BudgetsState()
        if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
            raise TemporalUnavailableError("no worker answers for the budgets; start one: perdure worker") from None
        raise to_unavailable_error(error) or RejectedError(truncate(error.message)) from None
    return state


async def list_allowances(client: Client, settings: Settings) -> list[AllowanceView]:
    """Return the allowances of the project's budgets; one that no run has used is whole. Raises ReportedError."""
    state, now = await read_state(client, settings.task_queue), time()
    used = [view for view in view_all(state, now) if is_budget(view.name)]
    known = {(view.name, view.measure) for view in used}
    unused = []
    for budget in BUDGETS.of(settings.file):
        for measure, terms in budget.limits.items():
            if (budget.name, measure) not in known:
                fresh = BudgetsState(terms={f"{budget.name}/{measure}": terms})
                unused.append(view_of(key_of(budget.name, measure), KeyState(), fresh, now))
    return sorted([*used, *unused], key=lambda view: (view.name, view.measure, view.value))


async def raise_budget(
    client: Client, settings: Settings, name: str, amounts: dict[Measure, int], value: str = ""
) -> list[AllowanceView]:
    """Raise a budget's allowance in its window, by an amount of each measure. Raises ReportedError."""
    budget = find_budget(settings, name, value)
    for measure in amounts:
        if measure not in budget.limits:
            raise RejectedError(f"budget {name} does not limit {measure}, but {' and '.join(budget.limits)}")
    keys = {key_of(name, measure, value): (budget.limits[measure], amount) for measure, amount in amounts.items()}
    return [await _change(client, settings, key, terms, amount) for key, (terms, amount) in keys.items()]


async def reset_budget(client: Client, settings: Settings, name: str, value: str = "") -> list[AllowanceView]:
    """Count a budget's allowance from zero again. Raises ReportedError."""
    budget = find_budget(settings, name, value)
    keys = {key_of(name, measure, value): terms for measure, terms in budget.limits.items()}
    return [await _change(client, settings, key, terms, 0) for key, terms in keys.items()]


def find_budget(settings: Settings, name: str, value: str) -> BudgetSettings:
    """Return the project's budget. Raises RejectedError."""
    budgets = {budget.name: budget for budget in BUDGETS.of(settings.file)}
    if (budget := budgets.get(name)) is None:
        raise RejectedError(f"there is no budget {name!r}{format_suggestion(name, budgets)}")
    if (budget.per is Per.project) == bool(value):
        whose = "is the project's: leave out whose it is" if value else f"is one for each {budget.per}: say whose"
        raise RejectedError(f"budget {name} {whose}")
    return budget


async def _change(client: Client, settings: Settings, key: str, terms: Terms, amount: int) -> AllowanceView:
    change = stamp_sender(BudgetChange(key=key, amount=amount, terms=terms))
    handle = client.get_workflow_handle(budgets_id(settings.task_queue))
    with convert_rpc_errors("budget"):
        await start_budgets(client, settings.task_queue, ANSWER_WITHIN)
        try:
            view: AllowanceView = await handle.execute_update(
                "change_allowance", change, result_type=AllowanceView, rpc_timeout=ANSWER_WITHIN
            )
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            reason = cause.message if isinstance(cause, ApplicationError) else str(cause)
            raise RejectedError(truncate(reason)) from None
    return view


def format_allowance(view: AllowanceView) -> str:
    """Format an allowance in one line: "team: USD 12.5 of 50 used, USD 2 leased, resets in 5 h"."""
    parts = [f"{format_share(view.measure, view.used, view.limit or 0)} used"]
    parts += [f"{format_amount(view.measure, view.leased)} leased"] if view.leased else []
    parts += [f"{format_amount(view.measure, view.unaccounted)} unaccounted"] if view.unaccounted else []
    parts += [f"resets in {format_duration(view.resets_in)}"] if view.resets_in is not None else []
    return f"{format_whose(view.name, view.value)}: {', '.join(parts)}"


async def check_budgets(client: Client, settings: Settings) -> list[Check]:
    """Say how much of the budgets is used, if the project has some. That one is used up is no fault."""
    if not BUDGETS.of(settings.file):
        return []
    try:
        views = await list_allowances(client, settings)
    except ReportedError as error:
        return [Check("budgets", ok=False, found=str(error))]
    shown = sorted(views, key=lambda view: (not view.is_used_up, -view.used / (view.limit or 1)))
    lines = [f"{'used up: ' if view.is_used_up else ''}{format_allowance(view)}" for view in shown[:MAX_SHOWN]]
    more = [f"{len(shown) - MAX_SHOWN:,} more"] if len(shown) > MAX_SHOWN else []
    return [Check("budgets", ok=True, found="; ".join([*lines, *more]))]


async def count_spend(client: Client, settings: Settings) -> Figures | None:
    """Return today's spend by agent (`agent:NAME`) in micro-USD, and what is used of each allowance."""
    if not BUDGETS.of(settings.file):
        return None
    state = await read_state(client, settings.task_queue)
    views = [view for view in view_all(state, time()) if not view.name.startswith(PROVIDER)]
    names = ((f"agent:{view.value}" if view.name == METER else _name_of(view), view.used) for view in views)
    return Figures(dict(names), are_findings=False)


def _name_of(view: AllowanceView) -> str:
    return key_of(view.name, view.measure, view.value).rstrip("/")
