"""What next: pure functions and values. No clock, no randomness, no I/O; these come in as facts.

ids         every id and dedupe key, one function each
cron        a cron line: the zone that holds, its words, and what is refused
visibility  what a visibility query says of them
limits      which limit is in force, and which is used up
builtins    the tools that are decisions themselves, and their schemas
calls       a reply of the model -> the calls it asks for, in batches
api_tool    what the Messages API takes for a tool
mcp         tools of MCP servers: names, effects, and what has changed of them
faults      what is wrong with a value that was given, in a line
framing     frame and plan, read from the first turn
loop        the run's state machine: the rules of what to do next, in their order
reply       a reply of the model -> what it makes of the run
illegal     a move that no rule allows: a bug
settlement  what becomes of a call: pending, approved, made again, settled
conversation  a lane: which requests it takes, and in which order they become turns
lane_move   what a lane does next, by rules in their order
conversation_told  what people read of a lane
thrash      does the run go in circles, and what is done about it
context     what of a long conversation the model is shown, and how full its window is
omission    what of a conversation is left out: turns without an answer, and those that a person took out
recovery    what is done about a full window, rung by rung
delegation  which subtasks are refused, which are ready, what each end makes of the rest
resume      how a run goes on from another one
followup    a follow-up's state machine: when its tasks are resolved, and when the work goes on
followup_told  its events, the request that resumes the work, and what people read of it
following   the `workflow_*` tools -> the source's commands
topic       what a topic keeps, whom it tells, and when it is over
mailbox     which messages a mailbox takes, what becomes of each, and what it remembers
letter      a message in hand, from state to state (mail_room: what there is room for)
mail_dead   dead letters, and how they come back (mail_outside: subtasks for peers outside)
mail_orders what the bridges of a folder are to do next, and what comes of it
mailbox_told  what a person reads of a mailbox
kinds       the kinds of task (kind: what one is; kind_reply, kind_prompt, kind_wait, kind_notify)
correlate   what a `tool_result` means to this run (A5)
requests    what a tool outside is asked
question    which answers a question takes
sender      who sent something: what is known, what is claimed
signature   what a signed answer covers, and whether its signature holds
visible_text text of models and tools as people read it: nothing in it is hidden
transcript  the conversation as a hash chain of parts
endings     how a run ends, and how that is told: completion and escalation events, hand-off
ack         what the files tell of a message and of its task (task_file: its page)
inputs      which file is an input of a task, of those that fit
mail_mode   how awake a bridge is
plan        the items of a plan, and which the journal ticks
journal     the run journal: written by its tools, shown whole or as a digest
reconcile   what is wrong with runs, claims and stores, and which of it may be repaired
providers   whom the name of a model means
metrics     what is counted of runs, and under which names
spans       what a span says of a run, an attempt, an event
export      what a run's events tell of its turns, calls and questions
evaluation  whether a run came to what was expected of it
quoting     quotes the text of others as data
narrate     what a person reads: summaries, current details, the state view
"""
