"""All I/O. Each activity does one thing outside the process; its clients are passed in.

conversation  `join_conversation` and `answer_turn`: conversation state that turns pass on to each other
parts         the parts that a worker's activities share
policy        `check_policy`: the verdicts of the policy on calls, reviews, and the count of calls of other runs
project       The agents, tools and model settings that a worker offers
redaction     the redaction of heartbeats and failures
rule_process  a program that evaluates expressions of rules, with bounds on time and memory
rule_values   the values of rules' expressions: quick ones in place, others in a process
temporal      Requests to the server: updates, errors, and the ids of an activity's workflow
effects/      Side effects: attempts, heartbeats, holds, and the ledger that keeps `once` calls from repeating
http          HTTP to untrusted servers: URLs, addresses, bodies, delays
media/        Images and PDF: their check, their storage, and their way into a request
model/        Model calls: one turn, its conversation and its summaries
providers/    Providers of models: one port, a file for each API, and what they have in common
run/          A run's files: opened, closed, forked, and read after its end
security      Secrets, redaction, and private files
storage/      Where runs keep bytes: the workspace folder, the store, large payloads
telemetry/    Search attributes, metrics, spans, and the trace file
tools/        Tools: one call, the kinds of tools, and the built-in tools with I/O
"""

if __name__ != "perdure.activities":  # by its folder at the root each module would be loaded twice
    raise ImportError("import perdure.activities: the folder activities at the root is where its files are")
