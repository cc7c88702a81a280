"""Starts from outside: signed webhooks begin runs, resolve tasks and answer questions.

activities  `prepare_start` and `submit_start`
contract    an event that begins a run or a turn
project     the starts and webhooks, as the settings describe them
routes      the gateway's routes of events and webhooks
rules       a `[[start]]`: the events that it is for; their goal, conversation and answer
settings    `[[start]]`
signatures  signed webhooks: check the signature, then read the event
workflow    `Inbound`: an event, the work that it begins, and the answer
"""

from perdure.registry import Feature

FEATURE = Feature(
    workflows=("perdure.features.starts.workflow:Inbound",),
    activities=("perdure.features.starts.activities:InboundStarts",),
    gateway="perdure.features.starts.project:read_inbound_work",
    dead_letters={"Inbound": "perdure.features.starts.contract:InboundRequest"},
    tables=("perdure.features.starts.settings:START",),
    project="perdure.features.starts.project:compile_starts",
    routes="perdure.features.starts.routes:router",
)
