"""The HTTP door: what a program or a page may do with runs, by bearer tokens with scopes (docs/gateway.md).

access_log    one line for each request
app           puts the parts together; server: the process that serves them
auth          who asks, and what else holds of every route; tokens: what is kept of tokens
page          The page: static files of ours, and nothing from elsewhere
problems      every refusal as RFC 9457 problem details
request_body  how much of a body is read, for how long, and what JSON is taken
server        The process that serves the gateway, until it is told to stop
signatures    How others sign what they send, and what it means here. Nothing is read before its signature is right
slashes       ids that have one in addresses
tokens        Bearer tokens: 32 random bytes each, of which only the SHA-256 is kept
routes/       The gateway's routes, one module a resource
"""
