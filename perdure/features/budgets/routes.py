"""The budgets at the gateway: their list, raises and resets."""

from typing import Self

from fastapi import APIRouter
from pydantic import Field, model_validator

from perdure.contracts.models import FrozenModel, StrictModel
from perdure.features.budgets.client import list_allowances, raise_budget, reset_budget
from perdure.features.budgets.contract import USD, AllowanceView, Measure
from perdure.gateway.auth import CurrentGateway, Gateway, ScopedRoute, needs_scope
from perdure.gateway.problems import describe_problems
from perdure.gateway.tokens import Scope

router = APIRouter(prefix="/v1", tags=["budgets"], route_class=ScopedRoute)
MOST_RAISE = 10**9  # USD, tokens, runs or steps


class BudgetList(FrozenModel):
    """Allowances by name. Amounts are whole: micro-USD, tokens, runs or steps."""

    budgets: tuple[AllowanceView, ...]


class ResetBody(StrictModel):
    value: str = Field(default="", max_length=200)
    """The holder of the allowance, unless it is the project."""


class RaiseBody(ResetBody):
    usd: float | None = Field(default=None, gt=0, le=MOST_RAISE, allow_inf_nan=False)
    tokens: int | None = Field(default=None, ge=1, le=MOST_RAISE)
    runs: int | None = Field(default=None, ge=1, le=MOST_RAISE)
    steps: int | None = Field(default=None, ge=1, le=MOST_RAISE)

    @model_validator(mode="after")
    def _check_amounts(self) -> Self:
        if not self.amounts:
            raise ValueError("say by how much: usd, tokens, runs or steps")
        return self

    @property
    def amounts(self) -> dict[Measure, int]:
        given = {measure: getattr(self, measure, None) for measure in Measure}
        return {
            measure: round(amount * USD) if measure is Measure.usd else amount
            for measure, amount in given.items()
            if amount is not None
        }


@router.get(
    "/budgets",
    dependencies=[needs_scope(Scope.read)],
    responses=describe_problems(400, 401, 403, 408, 413, 422, 500, 503),
)
async def list_all_budgets(gateway: CurrentGateway) -> BudgetList:
    """List the allowances of the project's budgets, as `perdure budget list`."""
    return await gateway.lists.read(("budgets",), lambda: _read_budgets(gateway))


async def _read_budgets(gateway: Gateway) -> BudgetList:
    session = gateway.session
    return BudgetList(budgets=tuple(await list_allowances(session.client, session.settings)))


@router.post(
    "/budgets/{name}/raise",
    dependencies=[needs_scope(Scope.budget)],
    responses=describe_problems(400, 401, 403, 404, 408, 409, 413, 422, 500, 503),
)
async def raise_one_budget(gateway: CurrentGateway, name: str, body: RaiseBody) -> BudgetList:
    """Raise an allowance for its current window; each request raises it again. Runs that wait for it go on."""
    session = gateway.session
    raised = await raise_budget(session.client, session.settings, name, body.amounts, body.value)
    return BudgetList(budgets=tuple(raised))


@router.post(
    "/budgets/{name}/reset",
    dependencies=[needs_scope(Scope.budget)],
    responses=describe_problems(400, 401, 403, 404, 408, 409, 413, 422, 500, 503),
)
async def reset_one_budget(gateway: CurrentGateway, name: str, body: ResetBody) -> BudgetList:
    """Count an allowance from zero again. Runs that wait for it go on."""
    session = gateway.session
    return BudgetList(budgets=tuple(await reset_budget(session.client, session.settings, name, body.value)))
