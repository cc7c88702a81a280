"""`AgentRun`: the durable loop of one run.

agent_run       `AgentRun`: plan, act, reflect, until the run ends
approval        a person's approval of a call
compaction      recovery of a run whose context is full
context         a run in a worker's memory
delegate        the tool `delegate`: a child workflow, and its outcome
events          the structured events of a run
followup_tools  the `workflow_*` tools
model_turn      a model call and its failures
queue_tool      the tool kind `queue`: an activity of another worker
start           the start of a run: its input, its origin, the snapshot of its agent
tool_calls      the tool calls of a turn, and their recovery
turn            the edges of a turn: a user's messages, its close, its failure
waiting         waits for a person's answer, and for results from outside
"""
