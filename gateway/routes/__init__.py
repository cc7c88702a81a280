"""The gateway's routes, one module a resource.

conversations  requests to lanes
events         what happened outside; webhooks: the same from others, signed; schemes: how they sign, and what they …
health         whether it works; page: the static files for a browser
questions      what waits for people
runs           start, list, read, cancel, answer, tool results; live: a run as server-sent events
sse            A run as server-sent events: what happens in it, as JSON, each with its place in history, and its end
webhooks       Events from others, who sign them: nothing is read of a body before its signature and its time are …
"""
