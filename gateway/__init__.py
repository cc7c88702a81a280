"""The HTTP gateway: runs for programs and browsers, by bearer tokens with scopes (docs/gateway.md).

access_log    one log line for each request
app           the FastAPI application with all routes
auth          authentication, and the rules that apply to every route
page          the web page: static files
problems      errors as RFC 9457 problem details
request_body  limits on size and time of a body, and its strict JSON
server        the HTTP server, until it is stopped
signatures    signed webhooks: check the signature, then read the event
slashes       ids with a slash in addresses
tokens        bearer tokens, stored as SHA-256
routes/       the routes, one module for each resource
"""
