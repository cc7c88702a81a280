"""Model calls: one turn, its provider, its price.

anthropic         the Messages API
claude            the Claude models: their windows and prices
errors            its failures
fallback          which model answers: the first of the list that can
plain_answer      no stream
port              what they want of a model
price             what a call costs
rate_limit        how fast a provider is asked
summarize         `summarize`: what stands for old messages
transcript_cache  the worker's cache of conversations, and how it gets what it misses
turn              `plan` and `reflect`: one model call each
"""
