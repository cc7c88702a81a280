"""The HTTP gateway: runs for programs and browsers, by bearer tokens with scopes (docs/gateway.md).

app       the FastAPI application with all routes, and the web page's files
auth      authentication, and the rules that apply to every route
lists     lists that the requests of two seconds share
problems  errors as RFC 9457 problem details
requests  a request before its route, and its log line
server    the HTTP server, until it is stopped
tokens    bearer tokens, stored as SHA-256
routes/   the routes, one module for each resource
"""
