"""The contracts: every value that crosses a boundary, as frozen pydantic models.

agent           an agent's definition and the snapshot a run keeps of it
bounds          the latest entries of a list, and growing pauses between attempts
conversation    a lane's requests, answers and state
failures        the kinds of failure, by who has to act
media           images and PDF: attachments, and what a store holds of them
model_settings  the settings of model calls: tokens, thinking, cache, headers
models          the base classes: `FrozenModel` (history, tolerant) and `StrictModel` (input, strict)
people          people around a run: their notices, the work that they begin, senders
policy          the rules of a policy, its verdict on a call, rubrics, and the calls of one request over all of its runs
strict_input    the one reader of JSON from outside
strict_yaml     the one reader of YAML from outside
tool            tools, tool calls, their outcomes, and the accepted definitions of MCP tools
run/            A run: its state, its limits, its transcript, and its input and output
"""
