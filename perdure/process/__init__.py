"""What a process is made of: a worker, a bridge, an embedded server, a command with any of them inside.

concealing          what a worker keeps from its tools: where Temporal is, and keys
encryption_marker   who in a task queue holds which keys
mailbox_bridge      between a folder and its mailbox
mcp_tools           tools of MCP servers, as they were accepted
models              a client for each provider
project             what a project offers its runs: agents, tools, models, limits, where files and messages go
reconcile_schedule  the reconciler's schedule
shutdown            how a process ends
streams             the standard streams, which tools do not have
supervisor          beside an embedded server, which it ends with its last user
variables           what is written otherwise than our libraries read it
workflows           a worker that answers for runs and makes no call; every worker has its workflows and its sandbox …
"""
