"""`AgentRun`: the durable loop of one run.

agent_run       `AgentRun`: plan, act, reflect, until the run ends
arrivals        results, answers and messages from outside, judged as they arrive
builtin_calls   the tools `delegate` and `workflow_*`
compaction      recovery of a run whose context is full
context         a run in a worker's memory: its state, transcript and inbox
events          the structured events of a run
fused_turn      reads and the model call after them in one activity
inbox           the content that the loop has not taken in yet
model_turn      a model call and its failures
queue_tool      the tool kind `queue`: an activity of another worker
start           the start of a run: its input, its origin, the snapshot of its agent
tool_calls      the tool calls of a turn, and their recovery
turn            the edges of a turn: a user's messages, its close, its failure; the report of a run's end
waiting         waits for a person's answer or approval, and for results from outside
"""
