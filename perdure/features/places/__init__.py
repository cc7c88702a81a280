"""Places: how many runs of an agent, or calls of a tool, are at work at once, over all workers.

activities  the release of those whose turn it is, the check for those that are gone, and a run that comes back
client      the places of a task queue for people
contract    the messages to the workflow `Places`, and its state
keeper      places as a worker takes and leaves them
rules       who has a place, and whose turn it is
runs        a run that leaves its place while it waits, and takes one again
settings    the limits of tools
workflow    `Places`: the entity of all places of a task queue
"""

from perdure.registry import Feature

FEATURE = Feature(
    workflows=("perdure.features.places.workflow:Places",),
    activities=("perdure.features.places.activities:PlaceActivities",),
    acting=("take_place",),
    places="perdure.features.places.keeper:open_places",
    on_rest="perdure.features.places.runs:leave_place",
    on_return="perdure.features.places.runs:take_place_again",
    on_end="perdure.features.places.runs:leave_at_end",
    project="perdure.features.places.settings:limits_of_tools",
    server_checks=("perdure.features.places.client:check_places",),
)
