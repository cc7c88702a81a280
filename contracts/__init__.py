"""The contracts: every value that crosses a boundary, as frozen pydantic models.

agent         an agent's definition and the snapshot a run keeps of it
conversation  a lane's requests, answers and state
delegation    subtasks, their state and what they have spent
duration      "30s", "15m", "2h" as `timedelta`
failures      the kinds of failure, by who has to act
followup      tasks that resolve later: their commands, states and events
media         images and PDF: attachments, and what a store holds of them
model_settings  the settings of model calls: tokens, thinking, cache, headers
models        the base classes: `FrozenModel` (history, tolerant) and `StrictModel` (input, strict)
reconcile     the reconciler's findings, and its mark in a run's store
sender        the entry point that a message came through
strict_input  the one reader of JSON and YAML from outside
tool          tools, tool calls, their outcomes, and the accepted definitions of MCP tools
topic         events from outside and their subscribers
mail/         Mailboxes: messages as files, and what a mailbox and its bridges exchange
run/          A run: its state, its limits, its transcript, and its input and output
"""
