"""What a person types: the commands of `perdure`, and how they show what they find.

free_text  commands whose text may begin with "-"
common     what every command has in common: where it prints, how it ends
completion the script for a shell, and what it completes
agents     agents
run        run, watch, resume, fork (goal: one that is too long for a conversation)
look       list, show, trace, tools (mcp_servers: what `tools` says of MCP servers)
listed     the list
export     trace --export
people     answer, approve, deny, cancel
new        new, which writes what is in project/
evaluation eval; cases: the files that it reads; scores: what it reports
schedule   runs that begin by the clock
chat       a conversation at the terminal (chat_page: its turns, as they are printed; wrapping: text in pieces)
event      what happened outside
mail       the bridge between a folder and a mailbox
mcp        Perdure as an MCP server; mcp_runs: its tools
operate    worker, dev, doctor
gateway    gateway; token: token create, list, revoke
follow     following a run to its end; report: tables and pages
terminal   a run on a screen; lines: what a happening says; asking: its questions; area and progress: what changes
console    where everything is printed
"""
