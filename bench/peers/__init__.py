"""The same work in other frameworks, each as its own documentation writes it, in an environment of its own.

NAME.py    its worker: `connect` to a server, and `build` a worker with a workflow `Peer` that does one `Work`
NAME.lock  what its environment holds
__main__   the process of one worker
crash/     the agent of `python -m bench.crash`

What is not of the framework comes from `bench.work` and `bench.reports`: nothing of ours is installed there.
"""
