"""When: the durable order of things. Workflows ask `decisions` for the step, do it, and record it.

cancellation       how a run is stopped from outside without cutting an effect in half
delegation         `Delegation`: a DAG of child runs, joined
delegation_peers   what a delegation exchanges with peers that live outside
encryption         what encryption asks of a run
failures           what became of an activity that failed
handlers           how signals, updates and queries read their one argument
mailbox            `Mailbox`: what comes to an agent as files, and what its bridges are to do with it
policies           timeouts and retries, each with its why
reconcile          `Reconcile`: a look at all runs of the task queue, every five minutes
sandbox            the sandbox in which all of them run
search_attributes  the search attributes
sharing            what the worker's activities may read of a run in its memory
unknown            a start of a type that there is not ends at once
watching           the wait for the end of a workflow that another one started
agent_run/         `AgentRun`: the durable loop of one run
conversation/      `Conversation`: a lane that runs one turn at a time
followup/          `FollowUp` and `EventTopic`: tasks that wait for outside events
"""
