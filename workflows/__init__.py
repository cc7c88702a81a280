"""When: the durable order of things. Workflows ask `decisions` for the step, do it, and record it.

agent_run     `AgentRun`: plan, act, reflect, until there is an ending
halt          how a run is stopped from outside without cutting an effect in half
handlers      how signals, updates and queries read their one argument
reconcile     `Reconcile`: a look at all runs of the task queue, every five minutes
policies      timeouts and retries, each with its why
attributes    the search attributes
confidential  what encryption asks of a run
"""
