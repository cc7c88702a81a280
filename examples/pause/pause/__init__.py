"""A feature of another package: a tool `pause`, by which an agent waits for days and costs nothing meanwhile.

activities  the limit of a pause, from the project's settings
calls       a call of `pause`, as a run makes it
rules       the tool's schema, and its arguments
settings    `[pause]`
"""

from perdure.registry import Feature, FeatureTool

FEATURE = Feature(
    tools={"pause": FeatureTool(handler="pause.calls:run_pause", schema="pause.rules:PAUSE_SCHEMA")},
    activities=("pause.activities:PauseLimits",),
    tables=("pause.settings:PAUSE",),
    project="pause.settings:read_limit",
)
