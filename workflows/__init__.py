"""Workflows ask `decisions` for the next step, carry it out, and record it.

cancellation       cancellation of a workflow without cutting an effect in half
delegation         `Delegation`: a DAG of child runs, joined
delegation_peers   messages of a delegation with external peers
encryption         rules for runs with encrypted payloads
execution          activities as a workflow runs them, and the wait for another workflow
failures           classification of a failed activity
handlers           the start, signals, updates and queries of a workflow, and their one argument
mailbox            `Mailbox`: admits messages that come as files, and gives tasks to its bridges
policies           timeouts and retries, each with its reason
reconcile          `Reconcile`: a look at all runs of the task queue, every five minutes
sandbox            the sandbox in which all of them run
search_attributes  the search attributes
sharing            the transcript of a run, shared with the worker's activities
unknown            a workflow of an unknown type ends at once
agent_run/         `AgentRun`: the durable loop of one run
conversation/      `Conversation`: a lane that runs one turn at a time
followup/          `FollowUp` and `EventTopic`: tasks that wait for outside events
"""
