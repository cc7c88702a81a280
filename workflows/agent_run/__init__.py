"""`AgentRun`: the durable loop of one run.

agent_run         `AgentRun`: plan, act, reflect, until the run ends
arrivals          results, answers and messages from outside, judged as they arrive
compaction        recovery of a run whose context is full
context           a run in a worker's memory: its state, transcript and inbox
events            the structured events of a run
model_turn        a model call and its failures
start             the start of a run: its input, its origin, the snapshot of its agent
tool_calls        the calls of a turn, also of tools on other task queues
turn              the edges of a turn: a user's messages, its close, its failure; the report of a run's end
unfinished_calls  calls that their servers have made tasks, or ask people about
waiting           waits for a person's answer or approval, and for results from outside
"""
