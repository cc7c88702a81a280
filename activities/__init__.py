"""All I/O. Each activity does one thing outside the process; its clients are passed in.

conversation  `join_conversation` and `answer_turn`: conversation state that turns pass on to each other
delegation    `collect` and `find_delegation`: the result of a subtask or of a whole delegation
policy        `check_policy`: the verdicts of the project's policy on calls
project       The agents, tools and model settings that a worker offers
review        reviews of calls that rules of the policy ask for
temporal      Requests to the server: updates, errors, and the ids of an activity's workflow
demo/         The demo model: a rule-based stand-in for a provider
effects/      Side effects: attempts, heartbeats, and the ledger that keeps `once` calls from repeating
followup/     Follow-ups: topics, outgoing messages, and the lane that resumes the work
http/         HTTP to untrusted servers: URLs, addresses, bodies, delays
mailbox/      Mailbox folders: claim, deliver, answer and archive messages as files
mcp/          MCP servers and their tools
media/        Images and PDF: their check, their storage, and their way into a request
model/        Model calls: one turn, its conversation and its summaries
providers/    Providers of models: one port, a file for each API, and what they have in common
reconcile/    The reconciler: find runs and stores that need repair
run/          A run's files: opened, closed, forked, and read after its end
security/     Secrets, redaction, and private files
storage/      Where runs keep bytes: the workspace folder, the store, large payloads
telemetry/    Search attributes, metrics, spans, and the trace file
tools/        Tools: one call, the kinds of tools, and the built-in tools with I/O
"""
