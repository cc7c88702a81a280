"""What a process is made of: a worker, a bridge, an embedded server, a command with any of them inside.

offered     what a project offers its runs: agents, tools, models, limits, where files and messages go
models      a client for each provider
mcp_tools   tools of MCP servers, as they were accepted
concealing  what a worker keeps from its tools: where Temporal is, and keys
answering   a worker that answers for runs and makes no call; every worker has its workflows and its sandbox from here
reconcile   the reconciler's schedule
bridge      between a folder and its mailbox
seal        who in a task queue holds which keys
supervisor  beside an embedded server, which it ends with its last user
leaving     how a process ends
streams     the standard streams, which tools do not have
variables   what is written otherwise than our libraries read it
"""
