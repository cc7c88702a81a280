"""Parts of a process: a worker, a bridge, an embedded server.

encryption_marker   the keys that a task queue's workers hold
environment         fixes environment variables for libraries, and hides secrets in them from tools
forked              a process of a fork server, which ends with the one that started it
mailbox_bridge      delivers files of a folder to its mailbox
mcp_tools           tools of MCP servers, as accepted in the lock file
models              a client for each model provider
project             a project's agents, tools, models and limits, from its settings
reconcile_schedule  the reconciler's schedule
shutdown            immediate exit of a process
streams             the standard streams, which tools cannot use
supervisor          ends an embedded server with its last user
workflows           the workflows, their sandbox, and a worker for queries and updates only
"""
