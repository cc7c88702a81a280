"""Follow-ups: tasks that resolve later, at an event from outside, and then resume the work.

activities  commands to a follow-up, messages, topics, and the resumed work
calls       calls of `workflow_*` by a run
client      follow-ups in a list, the state of one, and events from outside
commands    `event`, and follow-ups in `show`
contract    follow-ups, their tasks, and events of a topic
events      a follow-up in the events of the run that it belongs to
outbox      the port for outgoing messages
project     the outbox, as the settings describe it
routes      the gateway's list of follow-ups
settings    `[outbox]`
stub        the typed shell of `FollowUp`
workflow    `FollowUp`, and `EventTopic`, in which an event meets the task that waits for it
rules/      tasks by kind, the state of a follow-up, topics, and the tools `workflow_*`
"""

from perdure.registry import Addressed, Command, Feature, FeatureTool

_CALL = "perdure.features.follow_ups.calls:run_followup_tool"
_TOOLS = "perdure.features.follow_ups.rules.tools"

_STUBS = (
    "CancelCommand",
    "CreateCommand",
    "FollowUp",
    "FollowUpState",
    "LifecycleEvent",
    "TaskCommand",
    "TaskResolved",
)
FEATURE = Feature(
    workflows=("perdure.features.follow_ups.workflow:FollowUp", "perdure.features.follow_ups.workflow:EventTopic"),
    activities=("perdure.features.follow_ups.activities:FollowUps",),
    acting=("command_follow_up", "notify"),
    tools={
        "workflow_create": FeatureTool(_CALL, f"{_TOOLS}:CREATE_SCHEMA", "keyed"),
        "workflow_task_create": FeatureTool(_CALL, f"{_TOOLS}:TASK_CREATE_SCHEMA", "keyed"),
        "workflow_wait_for_reply": FeatureTool(_CALL, f"{_TOOLS}:WAIT_FOR_REPLY_SCHEMA", "keyed"),
    },
    events={"command_follow_up": "perdure.features.follow_ups.events:read_command"},
    tables=("perdure.features.follow_ups.settings:OUTBOX",),
    project="perdure.features.follow_ups.project:create_outbox",
    routes="perdure.features.follow_ups.routes:router",
    commands={
        "event": Command("perdure.features.follow_ups.commands:event_command", "Runs", "Publish an external event.")
    },
    addressed={
        "wf:": Addressed(
            query="perdure.features.follow_ups.client:query_follow_up",
            show="perdure.features.follow_ups.commands:print_follow_up",
        )
    },
    stubs=tuple(f"perdure.features.follow_ups.stub:{name}" for name in _STUBS),
)
