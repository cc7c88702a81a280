"""Activities: the only I/O. Each one performs a single outside action, with clients that are passed in.

conversation       `join_conversation`, `open_turn` and `answer_turn`: the parts and journal that turns share
delegation         `collect` and `find_delegation`: the outcome of a subtask, or of a whole delegation
project            a worker's project: agents, tools, model settings
update_with_start  updates with a deadline, and updates that start their workflow if needed
demo/         The demo model: a rule-based stand-in for a provider
effects/      Side effects: attempts, heartbeats, and the ledger that keeps `once` calls from repeating
followup/     Follow-ups: topics, outgoing messages, and the lane that resumes the work
http/         HTTP that is safe to point at strangers: URLs, addresses, bodies, delays
mailbox/      Mailbox folders: claim, deliver, answer and archive messages as files
mcp/          MCP servers and their tools
model/        Model calls: one turn, its provider, its price
reconcile/    The reconciler: find runs and stores that need repair
run/          A run's files: opened, closed, forked, and read after its end
security/     Secrets, redaction, and private files
storage/      Where runs keep bytes: the workspace folder, the store, large payloads
telemetry/    Search attributes, metrics, spans, and the trace file
tools/        Tools: one call, the kinds of tools, and the built-in tools with I/O
"""
