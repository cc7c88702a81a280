"""What is said: every value that crosses a boundary, as frozen pydantic models.

value       the two base classes: `Value` (history, tolerant) and `Edge` (outside, strict)
strict_json  the one reader of JSON from outside
duration    "30s", "15m", "2h" as `timedelta`
events      the agentic.* events, field for field as their source has them
conversation  what a lane takes and answers
followup    tasks that resolve later: their commands, states and events
topic       events from outside, and who waits for them
mail        a message as a file
letter      a message in hand
carry       what bridges are to do in a folder, and what came of it
mailbox     what a mailbox is told, keeps and shows
mail_outside  subtasks for peers that live outside, and their replies
delegation  subtasks, how they stand, what they have used
sender      where something came in, as Perdure knows it
signals     what people send to a run: answers and cancel requests
question    the one open question of a run
agent       an agent's definition and the snapshot a run keeps of it
limits      steps, turns, reframes, time, budgets
tool        what a tool is, one call of it, what came back
mcp         the definitions of MCP tools that were accepted
turn        one model call: request and reply
transcript  parts, cursor, page, segment: the conversation by reference
context     how full the window is, and what stands for old messages
thrash      the latest calls of a run, and what was seen in them
journal     the eight sections of the run journal
run         a run's state, and the view of it that `state` answers
reconcile   what the reconciler finds, and the mark by which it knows a store again
export      one run as one record, for an audit
evaluation  goals and what should come of each, and how a run of them ended
failures    the kinds of failure, by whose fault they are
"""
