"""Decisions: pure functions and values. No clock, no randomness, no I/O; these are passed in as facts.

api_tool       the Messages API's own rules for a tool
builtin_tools  the tools that the workflow settles itself, and their schemas
cron           a cron line: its time zone, its meaning in words, and the lines that are rejected
delegation     subtasks: the checks on a request, which are ready, and the effect of each end on the rest
errors         the first validation error, in one line; and the error of an illegal move
evaluation     the checks of a run against its expectation
ids            every id and dedupe key, one function each
mcp            tools of MCP servers: names, effects, and changes to their definitions
model_names    the provider that a model's name refers to
reconcile      problems of runs, claims and stores, and which of them are repaired
telemetry      metrics and attributes of spans: names, labels, buckets
tool_requests  the request to a tool outside: the same on every attempt of a call
conversation/  Lanes: which requests are accepted, and in which order they become turns
followup/      Follow-ups and topics: their tasks, by kind, and the events that resolve them
mailbox/       Mailboxes: which messages are accepted, and what happens to each
people/        People: what a run asks them, which answers it takes, their notices, and the events that begin work
policy/        The policy of a project: rules over calls, and the verdict on one
run/           A run: its next move, and the state after each move
text/          Text for people, and text of others quoted as data
"""
