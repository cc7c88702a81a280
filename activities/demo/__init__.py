"""The demo model: a rule-based stand-in for a provider.

model   the rule-based model
page    what it measures
review  what it writes
sse     how it is streamed
"""
