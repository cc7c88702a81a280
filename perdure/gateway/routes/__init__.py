"""The gateway's routes, one module for each resource.

conversations  requests to lanes
files          uploads, and artifacts of runs
health         health and readiness probes
project        an overview of the project, its agents, and dead letters
questions      open questions of runs and follow-ups
runs           start, list, read, cancel and answer runs; tool results
session        sign in and out of the page, and who is signed in
sse            a run as server-sent events; streams that end if they are not read
"""
