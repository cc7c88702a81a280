"""Providers of models: one port, a file for each API, and what they have in common.

anthropic    the Messages API client: requests out, streamed replies in
chat_schema  schemas of tools as the Chat Completions API wants them
errors       provider failures as named kinds
fallback     the first model of a list that can answer
media        the bytes in place of stored media, in the messages of a request
openai       the Chat Completions API client, converted to and from the Messages API's form
options      the settings of a request, and what each Claude model takes of them
port         the interface between activities and models
prices       the cost of a call; the Claude models, their windows and prices
rate_limit   the rate at which a provider is called
relay        no model, but a tool that does all the work
replies/     replies as they come: their events, pieces and ends
"""
