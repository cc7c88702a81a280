"""`AgentRun`: the durable loop of one run.

agent_run       `AgentRun`: plan, act, reflect, until there is an ending
compaction      what is done when the window is full
context         a run while a worker has it in memory
delegate        a call of `delegate`: a child workflow, and what it brings
events          the structured events of a run
followup_tools  the `workflow_*` tools
local_first     what a run does with its own files, in passing or in sight
model_turn      a model call, whatever stands in its way
queue_tool      a call that is an activity of another worker
start           how a run begins: what it goes on from, the snapshot of its agent
tool_calls      carrying out the calls of a turn
turn            The edges of a turn: what a user says meanwhile, what a person is asked, its close, and its failure
"""
