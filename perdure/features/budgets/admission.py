"""The admission of runs and model calls: the allowances that a call needs, the bound of its cost, and its cost.

It is asked at each request to a provider, so summaries, reviews, checks of outcomes, fallbacks and retries count, too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import ceil
from typing import Any
from weakref import WeakKeyDictionary

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.effects.holding import HeldError, confirm_hold
from perdure.activities.project import Project
from perdure.activities.providers.errors import NoReplyError, model_refused_error
from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.activities.providers.prices import SEARCH_PRICE, Price, call_cost
from perdure.activities.providers.rate_limit import RateLimitedError
from perdure.activities.run.account import read_account
from perdure.activities.security import make_private
from perdure.activities.storage.workspace import folder_name
from perdure.activities.telemetry.metrics import add_counts
from perdure.activities.temporal import own_run_id, own_workflow_id
from perdure.client.run_list import RunInfo, read_start
from perdure.contracts.failures import RunFailure, Stop
from perdure.contracts.people import UNKNOWN, Account, Sender
from perdure.decisions.ids import conversation_workflow_id
from perdure.decisions.people.terms import name_of
from perdure.decisions.run.compaction import complete_usage, estimate_content
from perdure.decisions.run.reply import MAX_CALLS
from perdure.decisions.telemetry import BUDGET_REFUSALS, Count
from perdure.decisions.text.formatting import format_duration
from perdure.features.budgets.contract import USD, Every, Measure, Per, Terms
from perdure.features.budgets.journal import Costs, Reservation
from perdure.features.budgets.purse import AwayError, Need, Purse, UsedUpError
from perdure.features.budgets.question import STOP, budget_question
from perdure.features.budgets.rules import METER, format_whose, holder_of, key_of, split_key
from perdure.features.budgets.settings import BUDGETS, BudgetSettings
from perdure.features.mcp.settings import MCP
from perdure.features.project_questions.client import wait_for_answer
from perdure.settings import ProjectError, Settings
from perdure.settings.problems import raise_all

SAFE_INPUT, SPARE_INPUT = 1.25, 500  # the bound of a request's tokens: so much above the estimate
MOST_SEARCHES = 10  # of a reply, if a provider's tool sets no limit
AWAY_PAUSE, ANSWER_PAUSE = timedelta(seconds=5), timedelta(seconds=1)
MAX_ACCOUNTS = 1000  # of runs, in memory
MAX_VALUE = 200  # characters
CALL_MEASURES = (Measure.usd, Measure.tokens, Measure.steps)
OWNER_FILE = "owner"  # in a conversation's store
METER_TERMS = Terms(every=Every.day)

Bounds = Mapping[Measure, int]


@dataclass(frozen=True)
class Allowance:
    """An allowance that a call needs."""

    key: str
    terms: Terms
    measure: Measure


@dataclass
class BudgetAdmission:
    """The admission of a worker's runs and model calls, by the budgets of its project."""

    client: Client
    project: Project
    budgets: tuple[BudgetSettings, ...]
    purse: Purse
    _accounts: dict[str, Account] = field(default_factory=dict)  # by execution

    async def open_account(self, known: Account | None) -> Account:
        """Return the account of the run that begins; `known` is that of the run that has set it off."""
        if known is not None:
            return known
        own = self.client.get_workflow_handle(own_workflow_id(), run_id=activity.info().workflow_run_id)
        run = RunInfo(own_run_id(), await own.describe())
        start = await self._read_start(run)
        payload = start.get("payload") or {}
        requester = name_of(_sender_of(start)) or UNKNOWN
        conversation = payload.get("conversation_id") if start.get("is_turn") else None
        owner = requester if conversation is None else await self._owner_of(str(conversation), requester)
        return Account(
            requester=requester[:MAX_VALUE],
            owner=owner[:MAX_VALUE],
            schedule=run.schedule[:MAX_VALUE],
            key=str(payload.get("budget_key") or "")[:MAX_VALUE],
        )

    async def _read_start(self, run: RunInfo) -> Mapping[str, Any]:
        """Return the input of a run; nothing if it is past retention, as of a run that is older than the budgets."""
        try:
            start, _ = await read_start(self.client, run)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return {}
        return start if isinstance(start, dict) else {}

    async def _owner_of(self, conversation: str, requester: str) -> str:
        """Return the requester of the conversation's first request, which its first turn writes down."""
        shared = conversation_workflow_id(conversation)
        await asyncio.to_thread(make_private, self.project.workspace(shared).root)
        store = self.project.stores.of(shared)
        with suppress(FileExistsError):
            await asyncio.to_thread(store.create, OWNER_FILE, requester.encode())
        return (await asyncio.to_thread(store.read, OWNER_FILE)).decode()

    async def admit_run(self, agent: str, account: Account) -> None:
        """Count a run that begins. It counts again if its first activity is repeated."""
        allowances = self._allowances(agent, account, (Measure.runs,))
        if allowances:
            reservation = await self._reserve(allowances, {Measure.runs: 1})
            self.purse.charge(reservation, {})

    async def make_call(
        self, model: str, call: ModelCall, ask: Callable[[ModelCall], Awaitable[ModelReply]]
    ) -> ModelReply:
        """Ask for a reply if the allowances cover its bound, and charge what it cost."""
        price = self.project.price_of(model)
        allowances = self._allowances(call.definition.agent, await self._own_account(), CALL_MEASURES)
        paid = [allowance for allowance in allowances if allowance.measure is Measure.usd]
        if price is None and paid:
            name = split_key(paid[0].key)[0]
            raise model_refused_error(f"budget {name} is in USD, and the price of {model} is unknown: set [prices]")
        estimate = estimate_call(call)
        if price is not None:
            meter = key_of(METER, Measure.usd, call.definition.agent)
            allowances = [*allowances, Allowance(meter, METER_TERMS, Measure.usd)]
        reservation = await self._reserve(allowances, bounds_of_call(call, estimate, price))
        try:
            reply = await ask(call)
        except BaseException as error:
            self._charge(reservation, allowances, None if may_have_cost(error) else {})
            raise
        self._charge(reservation, allowances, costs_of_reply(reply, estimate, price))
        return reply

    async def refuse_batched(self, call: ModelCall) -> None:
        """Raise ApplicationError if a budget counts the call: it is sent later, and may cost more than is left then."""
        allowances = self._allowances(call.definition.agent, await self._own_account(), CALL_MEASURES)
        if allowances:
            name, measure, _ = split_key(allowances[0].key)
            raise model_refused_error(f"budget {name} of {measure} does not count batches: start the run at pace live")

    async def _own_account(self) -> Account:
        """Return the account of the run that calls. One that began before there were budgets has none."""
        execution = activity.info().workflow_run_id or ""
        if execution not in self._accounts:
            read = await asyncio.to_thread(read_account, self.project.stores.of(own_run_id()))
            if len(self._accounts) >= MAX_ACCOUNTS:
                del self._accounts[next(iter(self._accounts))]
            self._accounts[execution] = read or Account(requester=UNKNOWN, owner=UNKNOWN)
        return self._accounts[execution]

    def _allowances(self, agent: str, account: Account, measures: Iterable[Measure]) -> list[Allowance]:
        found = []
        for budget in self.budgets:
            value = value_of(budget.per, agent, account)
            if budget.agent not in (None, agent) or value is None:
                continue
            limits = budget.limits
            found += [
                Allowance(key_of(budget.name, measure, value), limits[measure], measure)
                for measure in measures
                if measure in limits
            ]
        return found

    async def _reserve(self, allowances: Iterable[Allowance], bounds: Bounds) -> Reservation:
        needs = {each.key: Need(each.terms, bounds[each.measure]) for each in allowances}
        try:
            return await self.purse.reserve(needs)
        except UsedUpError as used_up:
            name, measure, _ = split_key(used_up.key)
            refused = Count(BUDGET_REFUSALS, {"budget": name, "measure": measure})
            if not activity.info().is_local:  # which the run repeats as a normal one
                add_counts(activity.metric_meter(), [refused])
            raise await self._refuse(used_up, needs[used_up.key].terms) from None
        except (AwayError, OSError) as error:
            raise _hold_back(str(error), AWAY_PAUSE) from None

    async def _refuse(self, used_up: UsedUpError, terms: Terms) -> ApplicationError:
        """Return the error of a call that is not covered. Raises HeldError if people are asked about it."""
        name, measure, value = split_key(used_up.key)
        whose = format_whose(name, value)
        resets = "" if used_up.seconds is None else f"; it resets in {format_duration(used_up.seconds)}"
        message = f"budget {whose}: what is left of its {measure} does not cover another call{resets}"
        if used_up.is_stopped or not terms.waits:
            return ApplicationError(message, type=Stop.budget_used_up, non_retryable=True)
        if terms.asks and used_up.occasion is not None:
            queue = self.purse.task_queue
            question = budget_question(queue, used_up.key, terms, used_up.occasion, used_up.seconds)
            answer = await wait_for_answer(self.client, question, message)
            if answer.option == STOP:
                return ApplicationError(message, type=Stop.budget_used_up, non_retryable=True)
            if not await self.purse.is_denied(used_up.key):
                return _hold_back(f"budget {whose} was changed", ANSWER_PAUSE)
        confirm_hold(partial(self.purse.is_denied, used_up.key))
        return HeldError(holder_of(used_up.key), message)

    def _charge(self, reservation: Reservation, allowances: Iterable[Allowance], costs: Bounds | None) -> None:
        by_key: Costs = {} if costs is None else {each.key: costs.get(each.measure, 0) for each in allowances}
        self.purse.charge(reservation, by_key)


def value_of(per: Per, agent: str, account: Account) -> str | None:
    """Return whose allowance a call of a run uses; None if the budget is not about the run: no schedule started it."""
    match per:
        case Per.project:
            return ""
        case Per.agent:
            return agent
        case Per.schedule:
            return account.schedule or None
        case Per.owner:
            return account.owner
        case Per.requester:
            return account.requester
        case Per.key:
            return account.key or UNKNOWN


def _sender_of(start: Mapping[str, Any]) -> Sender | None:
    sent = start.get("sender")
    try:
        return Sender.model_validate(sent) if sent else None
    except ValueError:
        return None


def _hold_back(reason: str, pause: timedelta) -> RateLimitedError:
    return RateLimitedError(
        f"held back: {reason}",
        type=RunFailure.rate_limited,
        next_retry_delay=pause,
        category=ApplicationErrorCategory.BENIGN,
    )


def estimate_call(call: ModelCall) -> int:
    """Estimate the tokens of a request."""
    front = [{"type": "text", "text": text} for text in call.front]
    tools = [tool.model_dump() for tool in call.definition.tools]
    messages = sum(estimate_content(message["content"]) for message in call.messages)
    return estimate_content([*front, *tools]) + messages


def bounds_of_call(call: ModelCall, estimate: int, price: Price | None) -> dict[Measure, int]:
    """Return what a call may use at most: its input as counted, and the longest reply, at the dearest price."""
    options = call.definition.options
    sent, received = round(estimate * SAFE_INPUT) + SPARE_INPUT, options.max_tokens
    searches = sum(int(tool.get("max_uses") or MOST_SEARCHES) for tool in options.server_tools)
    bounds = {Measure.tokens: sent + received, Measure.steps: MAX_CALLS if call.definition.tools else 0}
    if price is not None:
        prices = [each for each in (price, price.long) if each is not None]
        dearest = max(max(each.input, each.cache_read, each.cache_write, each.hour_write) for each in prices)
        output = max(each.output for each in prices)
        bounds[Measure.usd] = ceil(sent * dearest + received * output) + round(searches * SEARCH_PRICE * USD)
    return bounds


def costs_of_reply(reply: ModelReply, estimate: int, price: Price | None) -> dict[Measure, int]:
    """Return what a reply has used."""
    usage = complete_usage(reply.usage, estimate, reply.content)
    costs = {
        Measure.tokens: usage.total,
        Measure.steps: min(sum(block.get("type") == "tool_use" for block in reply.content), MAX_CALLS),
    }
    usd = call_cost(usage, price)
    if usd is not None:
        costs[Measure.usd] = ceil(round(usd * USD, 3))
    return costs


def may_have_cost(error: BaseException) -> bool:
    """Return whether the provider may charge a call that failed: not if it refused the request or was not reached."""
    free = (RunFailure.model_refused, Stop.context_too_long)
    return not (
        isinstance(error, NoReplyError | RateLimitedError)
        or (isinstance(error, ApplicationError) and error.type in free)
    )


def unpriced_models(project: Project, budgets: Iterable[BudgetSettings]) -> list[str]:
    """Return a line for each agent whose models a budget in USD cannot count, as they have no price."""
    lines = []
    for agent in project.agents.values():
        paid = [each.name for each in budgets if each.usd is not None and each.agent in (None, agent.name)]
        models = [] if agent.mailbox or not paid else project.models_of(agent)
        if unknown := [model for model in models if project.price_of(model) is None]:
            table = " and ".join(f'[prices."{model}"]' for model in unknown)
            lines.append(f"budget {paid[0]} is in USD, and agent {agent.name} uses {', '.join(unknown)}: set {table}")
    return lines


def batched_agents(project: Project, budgets: Iterable[BudgetSettings]) -> list[str]:
    """Return a line for each agent whose model calls go in batches, which budgets do not count."""
    return [
        f"budget {budget.name} does not count batches, and the pace of agent {agent.name} is batch: give it pace live"
        for budget in budgets
        if budget.usd or budget.tokens or budget.steps
        for agent in project.agents.values()
        if budget.agent in (None, agent.name) and not agent.mailbox and (agent.pace or project.pace) == "batch"
    ]


_purses: WeakKeyDictionary[Client, Purse] = WeakKeyDictionary()  # of the workers of this process


def open_budgets(
    client: Client, settings: Settings, project: Project, closing: AsyncExitStack
) -> BudgetAdmission | None:
    """Return the admission of a worker, if the project has budgets, limits of owners or logins of requesters.

    Raises ProjectError.
    """
    budgets = BUDGETS.of(settings.file)
    needs_account = any(row.grant == "requester" for row in MCP.of(settings.file).values())
    if not budgets and not needs_account and not any(agent.per_owner for agent in project.agents.values()):
        return None
    faults = (*unpriced_models(project, budgets), *batched_agents(project, budgets))
    raise_all([ProjectError(f"{settings.at('budget')}: {line}") for line in faults])
    return BudgetAdmission(client, project, budgets, purse_of(client, settings, closing))


def purse_of(client: Client, settings: Settings, closing: AsyncExitStack) -> Purse:
    """Return the purse of a worker, which `closing` closes."""
    if client not in _purses:
        folder = settings.home / "budgets" / folder_name(settings.task_queue)
        limits = {
            f"{each.name}/{measure}": terms
            for each in BUDGETS.of(settings.file)
            for measure, terms in each.limits.items()
        }
        meter = {f"{METER}/{Measure.usd}": METER_TERMS}
        _purses[client] = Purse(client, settings.task_queue, {**limits, **meter}, folder)
        closing.push_async_callback(_close_purse, client)
    return _purses[client]


async def _close_purse(client: Client) -> None:
    await _purses.pop(client).close()


@asynccontextmanager
async def serve_purse(client: Client, task_queue: str) -> AsyncIterator[None]:  # noqa: ARG001 - of the row
    """Settle what is idle while the worker runs, and give back the rest as it stops."""
    purse = _purses.get(client)
    if purse is None:
        yield
        return
    serving = asyncio.create_task(purse.serve())
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        await purse.give_back()
