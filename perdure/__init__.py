"""What the processes of Perdure share, in rooms; what is started is at the root.

answer_keys  the keys that sign answers, and check them
codec        the same, encrypted
converter    what crosses to Temporal, and back
doctor       everything a run needs, looked at one by one
session      where a command runs: the configured Temporal, or an embedded server with a worker of its own
client/      Runs from outside, through a Temporal client: nothing here makes a worker, or reads a project's settings
commands/    What a person types: the commands of `perdure`, and how they show what they find
process/     What a process is made of: a worker, a bridge, an embedded server, a command with any of them inside
terminal/    The terminal: what commands print and ask
testkit/     For those who test their agents: fakes that speak the real protocols
"""
