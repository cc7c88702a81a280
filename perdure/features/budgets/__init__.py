"""Budgets: allowances of money, tokens, runs and steps that many runs and workers share, and limits of providers.

activities       the notice about a budget, and the release of runs that wait for one
admission        the allowances, the bound and the cost of each model call
client           the budgets of a task queue for people: their list, raises and resets, checks
commands         `budget`
contract         the messages between workers and the workflow `Budgets`, and its state
journal          a file with the spend of a worker
provider_limits  the limits of a provider that all workers share
purse            the parts of the allowances that a worker holds
question         the question whether to raise an allowance, and its answer
routes           the budgets at the gateway
rules            windows, leases, and the marks that people hear of
settings         `[[budget]]`
workflow         `Budgets`: the entity of all budgets
"""

from perdure.registry import Command, Feature

FEATURE = Feature(
    workflows=("perdure.features.budgets.workflow:Budgets",),
    activities=("perdure.features.budgets.activities:BudgetActivities",),
    admission="perdure.features.budgets.admission:open_budgets",
    provider_limits="perdure.features.budgets.provider_limits:open_provider_limits",
    beside_worker="perdure.features.budgets.admission:serve_purse",
    tables=("perdure.features.budgets.settings:BUDGETS",),
    commands={
        "budget": Command(
            "perdure.features.budgets.commands:budget_command",
            "Operations",
            "List, raise and reset budgets that runs share.",
        )
    },
    routes="perdure.features.budgets.routes:router",
    on_answer={"budget": "perdure.features.budgets.question:apply_budget_answer"},
    server_checks=("perdure.features.budgets.client:check_budgets",),
    figures="perdure.features.budgets.client:count_spend",
)
