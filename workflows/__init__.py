"""When: the durable order of things. Workflows ask `decisions` for the step, do it, and record it.

agent_run     `AgentRun`: plan, act, reflect, until there is an ending
live_run      a run while a worker has it in memory
opening       how a run begins: what it goes on from, the snapshot of its agent
thinking      a model call, whatever stands in its way
context       what is done when the window is full
asking        a person's word on how a run goes on
acting        carrying out the calls of a turn
queue_tool    a call that is an activity of another worker
conversation  `Conversation`: a lane, one run at a time
live_lane     a lane while a worker has it in memory
lane_turn     its turns: how one begins, and is watched to its end
lane_errand   what it brings to its turn, and tells mailboxes
listening     what a run's user says while it is at work
delegating    a call of `delegate`: a child workflow, and what it brings
delegation    `Delegation`: a DAG of child runs, joined
post          what a delegation exchanges with peers that live outside
watching      the wait for the end of a workflow that another one started
filing        what a run does with its own files, in passing or in sight
closing       the end of a turn, and the look for circles
fate          what became of an activity that failed
halt          how a run is stopped from outside without cutting an effect in half
handlers      how signals, updates and queries read their one argument
followup      `FollowUp`: tasks that resolve later; then a new request enters a lane
topic         `EventTopic`: where an event and the task that waits for it meet
mailbox       `Mailbox`: what comes to an agent as files, and what its bridges are to do with it
live_followup a follow-up while a worker has it in memory
following     the `workflow_*` tools
reconcile     `Reconcile`: a look at all runs of the task queue, every five minutes
policies      timeouts and retries, each with its why
attributes    the search attributes
events        the structured events of a run
confidential  what encryption asks of a run
sandbox       the sandbox in which all of them run
unknown       a start of a type that there is not ends at once
sharing       what the worker's activities may read of a run in its memory
"""
