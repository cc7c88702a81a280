"""Pushes: the states of a run, POSTed to an address that a caller has named, in order and at least once.

activities  `await_state` and `send_state`
client      start, read, list and stop a push
contract    a push, and the states that it sends
rules       a run's status as the state of a task
sender      the rules for addresses, and the signed request
settings    `[push]`
workflow    `Push`: one address for one run
"""

from perdure.registry import Feature

FEATURE = Feature(
    workflows=("perdure.features.pushes.workflow:Push",),
    activities=("perdure.features.pushes.activities:Pushes",),
    dead_letters={"Push": "perdure.features.pushes.contract:PushStart"},
    tables=("perdure.features.pushes.settings:PUSH",),
    project="perdure.features.pushes.sender:create_sender",
    check_worker="perdure.features.pushes.sender:check_secret",
)
