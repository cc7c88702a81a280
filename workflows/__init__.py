"""Workflows ask `decisions` for the next step, carry it out, and record it.

activities         the core's activities: names, requests and results
conversation       `Conversation`: a lane that runs one turn at a time
execution          activities as a workflow runs them: policies, cancellation, failures; waits for other workflows
handlers           the start, signals, updates and queries of a workflow; an unknown type ends at once
interceptors       facts that a worker gives its workflows: its transcript cache, and whether payloads are encrypted
rotation           continue-as-new: when it is due; workflows that never end move to the current build
sandbox            the sandbox in which all of them run
search_attributes  the search attributes
shared_calls       `SharedCalls`: the calls of one request over all of its runs
agent_run/         `AgentRun`: the durable loop of one run
"""

if __name__ != "perdure.workflows":  # by its folder at the root each module would be loaded twice
    raise ImportError("import perdure.workflows: the folder workflows at the root is where its files are")
