"""What the processes of Perdure share, in rooms; what is started is at the root.

client     runs from outside: start one, look at it, speak to it
process    what a process is made of: tools, models, bridges
commands   what a person types
testkit    fakes for those who test their agents
converter  what crosses to Temporal, and back (codec: the same, encrypted)
answer_keys  the keys that sign answers, and check them
session    where a command runs: the configured Temporal, or an embedded server with a worker of its own
doctor     everything a run needs, looked at one by one
"""
