"""The HTTP gateway: runs for programs and browsers, by bearer tokens with scopes (docs/gateway.md).

access_log  one log line for each request
app         the FastAPI application with all routes, and the web page's files
auth        authentication, and the rules that apply to every route
inbound     signed events as the start of work
lists       lists that the requests of two seconds share
problems    errors as RFC 9457 problem details
requests    a request before its route: slashes in ids, limits of its body, strict JSON
server      the HTTP server, until it is stopped
signatures  signed webhooks: check the signature, then read the event
slack       answers by the buttons of a message in Slack
tokens      bearer tokens, stored as SHA-256
routes/     the routes, one module for each resource
"""
