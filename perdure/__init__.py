"""Code shared by Perdure's processes; the programs themselves are at the root.

answer_keys  keys that sign and verify answers
codec        encryption of Temporal payloads
converter    conversion of values to Temporal payloads and back
doctor       the checks of `perdure doctor`
session      a command's connection: the configured Temporal, or an embedded server with a worker
client/      runs from the outside, through a Temporal client
commands/    the commands of `perdure`
process/     parts of a process: worker, bridge, embedded server
terminal/    the terminal: output and questions of commands
testkit/     fakes for tests of agents, with the real protocols
"""
