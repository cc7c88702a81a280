"""Parts of a process: a worker, a bridge, an embedded server.

agents        the agents of a project and their tools, as far as they load here
guard         the guard of a worker against another server
models        a client for each model provider
project       a project's agents, tools, models and limits, from its settings
queue_marker  the project of a task queue and of a server, and the keys that workers hold
streams       the standard streams, environment variables, and the exit of a process
supervisor    ends an embedded server with its last user
worker        a worker, also in the process of a command
workflows     the workflows, their sandbox, and a worker for queries and updates only
"""
