"""What next: pure functions and values. No clock, no randomness, no I/O; these come in as facts.

api_tool       what the Messages API takes for a tool
builtin_tools  the tools that are decisions themselves, and their schemas
cron           a cron line: the zone that holds, its words, and what is refused
delegation     which subtasks are refused, which are ready, what each end makes of the rest
errors         What is wrong with a value that was given, in one line: the first fault that pydantic found, and …
evaluation     whether a run came to what was expected of it
ids            every id and dedupe key, one function each
mcp            tools of MCP servers: names, effects, and what has changed of them
model_names    whom the name of a model means
reconcile      what is wrong with runs, claims and stores, and which of it may be repaired
sender         who sent something: what is known, what is claimed
signature      what a signed answer covers, and whether its signature holds
tool_requests  What a tool outside is asked: the same on every attempt of a call, whichever way it goes
conversation/  Lanes: which requests are accepted, and in which order they become turns
followup/      Follow-ups and topics: their tasks, by kind, and the events that resolve them
mailbox/       Mailboxes: which messages are accepted, and what happens to each
run/           A run: its next move, and the state after each move
telemetry/     Metrics, spans and exports: what each one contains
text/          Text for people, and text of others quoted as data
"""
