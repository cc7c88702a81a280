"""The HTTP gateway: runs for programs and browsers, by tokens with scopes, and sessions of them (docs/gateway.md).

app       the FastAPI application with all routes, and the web page's files
auth      authentication, and the rules that apply to every route
chats     chats of front ends: conversations of their callers
lists     lists that the requests of two seconds share
problems  errors as RFC 9457 problem details
requests  a request before its route, and its log line
server    the HTTP server, until it is stopped
sessions  sessions of the page: signed cookies
tokens    bearer tokens, stored as SHA-256
routes/   the routes, one module for each resource
"""
