"""Delegation: subtasks for peer agents, as a DAG of runs.

activities  `collect` and `find_delegation`: the result of a subtask or of a whole delegation
calls       calls of `delegate` by a run
contract    subtasks, their state and what they have spent
events      a delegation among the events of a run
rules       the checks on a request, which subtasks are ready, and the effect of each end on the rest
workflow    `Delegation`: child runs and messages to external peers, joined
"""

from perdure.registry import Feature, FeatureTool

FEATURE = Feature(
    workflows=("perdure.features.delegation.workflow:Delegation",),
    activities=("perdure.features.delegation.activities:Delegations",),
    tools={
        "delegate": FeatureTool(
            handler="perdure.features.delegation.calls:run_delegation",
            schema="perdure.features.delegation.rules:DELEGATE_SCHEMA",
            summary="perdure.features.delegation.rules:summarize_delegation",
            has_events=True,
        )
    },
    events={"Delegation": "perdure.features.delegation.events:read_delegation"},
)
