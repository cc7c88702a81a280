"""`Budgets`: the budgets of a task queue. Workers lease blocks of them; one turn carries all allowances of a worker."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow

from perdure.features.budgets.activities import BudgetActivities
from perdure.features.budgets.contract import BudgetChange, BudgetNews, BudgetsState, BudgetTurn, Release
from perdure.features.budgets.rules import (
    change_budget,
    current_key,
    drop_old,
    ended_waits,
    format_whose,
    is_late,
    refuse_change,
    release_of,
    seconds_to_next_end,
    settle_and_lease,
    split_key,
    view_of,
)
from perdure.features.notices.announce import start_notice
from perdure.features.notices.contract import NoticeRequest
from perdure.workflows.execution import FILES
from perdure.workflows.handlers import ValidatedWorkflow, invalid_input, read_argument, read_optional_argument
from perdure.workflows.rotation import Rotation, continue_as_new

MAX_TURNS = 1000  # of one execution
CHANGES = "changes"  # the memo that workers read: how often a budget was raised or reset


@workflow.defn
class Budgets(ValidatedWorkflow[BudgetsState]):
    """The budgets of a task queue. Workers start it, with the state of the one before if that was terminated."""

    UNKNOWN_SIGNAL = "no such signal; there are none"

    @workflow.init
    def __init__(self, *args: Any) -> None:
        self._rotation = Rotation()
        self._turns = 0
        self._news: list[BudgetNews] = []
        self._free: list[Release] = []
        self._is_woken = False
        super().__init__(_begin_budgets, args)

    @workflow.run
    async def run(self, *args: Any) -> None:  # noqa: ARG002 - Temporal requires the signature of `__init__`
        while True:
            self._is_woken = False
            self._rotation.decide()
            self._free_ended()
            while self._news or self._free:
                await self._announce()
            if self._is_due:
                await workflow.wait_condition(workflow.all_handlers_finished)
                if not (self._news or self._free):
                    continue_as_new(drop_old(self.context, workflow.time()))
            else:
                await self._wait()

    @property
    def _is_due(self) -> bool:
        return self._turns >= MAX_TURNS or self._rotation.is_due

    async def _wait(self) -> None:
        """Wait for work: until a window ends that runs wait for, too."""
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._is_woken or self._is_due or self._rotation.is_undecided,
                timeout=seconds_to_next_end(self.context, workflow.time()),
                timeout_summary="until a budget's window ends",
            )

    async def _announce(self) -> None:
        """Tell people of a mark, and the runs that wait that they may go on."""
        if self._news:
            news = self._news.pop(0)
            request: NoticeRequest | None = await workflow.execute_activity_method(
                BudgetActivities.describe_news, news, summary=f"budget {news.allowance.name}: {news.mark}", **FILES
            )
            if request is not None:
                await start_notice(request.id, request)
        if self._free:
            release = self._free.pop(0)
            name, _, value = split_key(release.key)
            summary = f"runs that wait for {format_whose(name, value)} go on"
            await workflow.execute_activity_method(BudgetActivities.release_waiting, release, summary=summary, **FILES)

    def _free_ended(self) -> None:
        """Let runs go on that wait for windows that have ended."""
        now = workflow.time()
        if ended := ended_waits(self.context, now):
            self._free += (release_of(self.context, key, workflow.info().task_queue) for key in ended)
            keys = {name: key for name, key in self.context.keys.items() if name not in ended}
            self.context = self.context.evolve(keys=keys)
            self._is_woken = True

    @workflow.update(description="For workers: settle what was spent, and lease more")
    def turn(self, *args: Any) -> dict[str, Any]:
        turn = read_argument(BudgetTurn, args)
        self._free_ended()
        waits = seconds_to_next_end(self.context, workflow.time()) is not None
        taken = settle_and_lease(self.context, turn, workflow.time())
        self.context, self._turns = taken.state, self._turns + 1
        self._news += taken.news
        self._is_woken |= bool(taken.news) or waits != (seconds_to_next_end(self.context, workflow.time()) is not None)
        return taken.answer.model_dump(mode="json")

    @turn.validator
    def _is_turn(self, *args: Any) -> None:
        read_argument(BudgetTurn, args)
        self.context  # noqa: B018 - a rejected start takes no turns

    @workflow.update(description='Raise an allowance in its window, or reset it: {"key", "amount"?, "terms"}')
    def change_allowance(self, *args: Any) -> dict[str, Any]:
        change, now = read_argument(BudgetChange, args), workflow.time()
        if not is_late(self.context, change, now):
            self._free.append(release_of(self.context, change.key, workflow.info().task_queue))
            self.context = change_budget(self.context, change, now)
            workflow.upsert_memo({CHANGES: self.context.changes})
            self._is_woken = True
        key = current_key(self.context, change.key, now)
        return view_of(change.key, key, self.context, now).model_dump(mode="json")

    @change_allowance.validator
    def _may_change(self, *args: Any) -> None:
        if reason := refuse_change(self.context, read_argument(BudgetChange, args)):
            raise invalid_input(reason)

    @workflow.query(description="The allowances in use: what is spent, and what workers hold")
    def state(self, *_: Any) -> BudgetsState:
        return self.context


def _begin_budgets(args: Sequence[Any]) -> BudgetsState:
    return read_optional_argument(BudgetsState, args)
