"""`[[budget]]`: allowances that many runs and workers share."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from perdure.contracts.models import StrictModel
from perdure.features.budgets.contract import USD, Every, Measure, Per, Terms, WhenUsedUp
from perdure.features.budgets.rules import METER
from perdure.settings.tables import Table


class BudgetSettings(StrictModel):
    """A budget: one allowance, or one for each agent, owner, requester, schedule or key."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """The name of the budget."""
    per: Per = Per.project
    """The holders of allowances. `requester` is the token or person that started the first run of the work, `owner` the
    one of the conversation's first request, `schedule` the schedule's name, `key` the `budget_key` of the start."""
    agent: str | None = Field(default=None, min_length=1, max_length=200)
    """The only agent whose calls count; by default those of all agents do."""
    usd: float | None = Field(default=None, gt=0, le=10**9, allow_inf_nan=False)
    """Cost of model calls in USD, by the price list. All models must have a price."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens sent and received."""
    runs: int | None = Field(default=None, ge=1)
    """Runs that begin, subtasks and turns of conversations included."""
    steps: int | None = Field(default=None, ge=1)
    """Tool calls that the models ask for."""
    every: Literal[Every.hour, Every.day, Every.week, Every.month] | None = None
    """The window, by the calendar in UTC; a week begins on Monday. Without it the allowance is for ever."""
    warn_at: int | None = Field(default=80, ge=1, le=99)
    """The percentage at which people are told, once a window; they are told, too, when it is used up."""
    when_used_up: WhenUsedUp = WhenUsedUp.stop
    """`stop`: the run escalates with `shared_budget`. `wait`: the call waits until the window ends, or until the
    allowance is raised or reset. `ask`: it waits, and people are asked whether to raise the allowance or to stop."""
    raise_by: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    """The groups of `[people]` that may raise and reset it; by default everyone who may use the command or token."""

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if not self.limits:
            raise ValueError("sets no limit: give usd, tokens, runs or steps")
        if self.name == METER:
            raise ValueError(f"the name {METER!r} is taken by Perdure's own count")
        return self

    @property
    def limits(self) -> dict[Measure, Terms]:
        """The terms by measure."""
        given = {measure: getattr(self, measure, None) for measure in Measure}
        return {
            measure: Terms(
                limit=round(limit * USD) if measure is Measure.usd else limit,
                every=self.every,
                warn_at=self.warn_at,
                raise_by=self.raise_by,
                has_credit=self.every is not None and self.per not in (Per.project, Per.agent),
                waits=self.when_used_up is not WhenUsedUp.stop,
                asks=self.when_used_up is WhenUsedUp.ask,
            )
            for measure, limit in given.items()
            if limit is not None
        }


def _check_unique(budgets: tuple[BudgetSettings, ...]) -> tuple[BudgetSettings, ...]:
    """Return the budgets. Raises ValueError if two have one name."""
    names = [budget.name for budget in budgets]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two budgets are named {twice}")
    return budgets


def _check_people(budgets: tuple[BudgetSettings, ...], file: Any) -> None:
    """Raise ValueError if a budget is raised by a group that `[people]` does not have."""
    for budget in budgets:
        if unknown := next((group for group in budget.raise_by if group not in file.people), None):
            raise ValueError(f"budget {budget.name}: raise_by: [people] has no group {unknown!r}")


BUDGETS: Table[tuple[BudgetSettings, ...]] = Table(
    "budget", Annotated[tuple[BudgetSettings, ...], AfterValidator(_check_unique)], (), check=_check_people
)
