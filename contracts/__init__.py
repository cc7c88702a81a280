"""What is said: every value that crosses a boundary, as frozen pydantic models.

agent         an agent's definition and the snapshot a run keeps of it
conversation  what a lane takes and answers
delegation    subtasks, how they stand, what they have used
duration      "30s", "15m", "2h" as `timedelta`
evaluation    goals and what should come of each, and how a run of them ended
failures      the kinds of failure, by whose fault they are
followup      tasks that resolve later: their commands, states and events
mcp           the definitions of MCP tools that were accepted
models        the two base classes: `Value` (history, tolerant) and `Edge` (outside, strict)
reconcile     what the reconciler finds, and the mark by which it knows a store again
sender        where something came in, as Perdure knows it
strict_json   the one reader of JSON from outside
tool          what a tool is, one call of it, what came back
topic         events from outside, and who waits for them
mail/         Mailboxes: messages as files, and what a mailbox and its bridges exchange
run/          A run: its state, its limits, its transcript, and what enters and leaves it
"""
