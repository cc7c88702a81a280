"""The HTTP door: what a program or a page may do with runs, by bearer tokens with scopes (docs/gateway.md).

app            puts the parts together; server: the process that serves them
access         who asks, and what else holds of every route; tokens: what is kept of tokens
access_log     one line for each request
bodies         how much of a body is read, for how long, and what JSON is taken
slashes        ids that have one in addresses
problems       every refusal as RFC 9457 problem details
runs           start, list, read, cancel, answer, tool results; live: a run as server-sent events
conversations  requests to lanes
questions      what waits for people
events         what happened outside; webhooks: the same from others, signed; schemes: how they sign, and what they say
health         whether it works; page: the static files for a browser
"""
