"""What a person types: the commands of `perdure`, and how they show what they find.

agents      agents
answer      answer, approve, deny, cancel
chat        a conversation at the terminal
completion  the script for a shell, and what it completes
control     worker, dev, doctor
event       what happened outside
export      trace --export
gateway     gateway; token: token create, list, revoke
mail        the bridge between a folder and a mailbox
new         new, which writes what is in project/
run         run, watch, resume, fork
schedule    runs that begin by the clock
show        list, show, trace, tools
token       `perdure token`: who may do what at the gateway
evaluate/   `perdure eval`: cases, runs, scores
mcp/        `perdure mcp`, and what `perdure tools` reports of MCP servers
"""
