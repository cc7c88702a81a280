"""Decisions: pure functions and values. No clock, no randomness, no I/O; these are passed in as facts.

errors         the first validation error, in one line; and the error of an illegal move
ids            every id and dedupe key, one function each
lane           a lane: which requests are accepted, in which order they become turns, and what people see of it
model_names    the provider that a model's name refers to
telemetry      metrics and attributes of spans: names, labels, buckets
tool_results   the verdict on each `tool_result` (A5)
tool_requests  the request to a tool outside: the same on every attempt of a call
unfinished     calls that a server does not finish at once: looks at its task, and the questions that it asks
tools          the built-in tools, the model APIs' rules for tools, names and schemas
people/        People: what a run asks them, which answers it takes, their notices, and the events that begin work
policy/        The policy of a project: rules over calls, and the verdict on one
run/           A run: its next move, and the state after each move
text/          Text for people, and text of others quoted as data
"""
