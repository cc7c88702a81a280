"""A stop for all runs, or for some: no model call and no effect begins until it ends, and nothing is lost.

activities  the release of what a pause held
client      pause, unpause, what is paused, and what still runs
commands    `pause`, `unpause`
contract    a pause, a change of pauses, and the state of `Pauses`
follow      the pauses as a worker knows them
rules       which pause holds a run, and ids
traits      what pauses select a run by, as the server has it
workflow    `Pauses`: the pauses of a task queue
"""

from perdure.registry import Command, Feature

_COMMANDS = "perdure.features.pauses.commands"

FEATURE = Feature(
    workflows=("perdure.features.pauses.workflow:Pauses",),
    activities=("perdure.features.pauses.activities:Releases",),
    guard="perdure.features.pauses.follow:open_guard",
    commands={
        "pause": Command(
            f"{_COMMANDS}:pause_command", "Operations", "Hold runs before their next call, or list pauses."
        ),
        "unpause": Command(f"{_COMMANDS}:unpause_command", "Operations", "End a pause, so that its runs go on."),
    },
    figures="perdure.features.pauses.client:count_held_runs",
    server_checks=("perdure.features.pauses.client:check_pauses",),
)
