"""Workflows ask `decisions` for the next step, carry it out, and record it.

cancellation       cancellation of a workflow without cutting an effect in half
delegation         `Delegation`: a DAG of child runs and of messages to external peers, joined
execution          activities as a workflow runs them, and the wait for another workflow
failures           classification of a failed activity
followup           `FollowUp`: tasks that resolve later; then a new request enters a lane
handlers           the start, signals, updates and queries of a workflow; an unknown type ends at once
interceptors       facts that a worker gives its workflows: its transcript cache, and whether payloads are encrypted
mailbox            `Mailbox`: admits messages that come as files, and gives tasks to its bridges
policies           timeouts and retries, each with its reason
reconcile          `Reconcile`: a look at all runs of the task queue, every five minutes
rotation           continue-as-new of the workflows that never end, which move to the current build
sandbox            the sandbox in which all of them run
search_attributes  the search attributes
topic              `EventTopic`: matches events with the tasks that wait for them
model_batches/     `ModelBatches`: model calls of all runs, sent in batches
agent_run/         `AgentRun`: the durable loop of one run
conversation/      `Conversation`: a lane that runs one turn at a time
"""
