"""Model calls: one turn, its provider, its price.

anthropic         the Messages API client: requests out, streamed replies in
cache_marks       the places up to which a provider caches a request
errors            provider failures as named kinds
fallback          the first model of a list that can answer
fused_turn        `read_and_reflect`: the reads of a turn and the next model call
openai            the Chat Completions API client, converted to and from the Messages API's form
options           the settings of a request, and what each Claude model takes of them
pieces            a reply that the length limit cut off, joined from its pieces
plain_answer      answers that are not an event stream
port              the interface between activities and models
prices            the cost of a call; the Claude models, their windows and prices
rate_limit        the rate at which a provider is called
reply             a reply under construction, and what is common to all wires
summarize         `summarize`: a summary in place of old messages
transcript_cache  the worker's cache of conversations
turn              `plan` and `reflect`: one model call each
"""
