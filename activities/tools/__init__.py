"""Tools: one call, the kinds of tools, and the built-in tools with I/O.

call          `call_tool`
fetch         `fetch`, and pages as text
files         The tools that read, write and list files of the workspace
interface     The interface of every tool
json_schema   Validation of a call's arguments against the tool's schema
outcome       An outcome as it is recorded: bounded, readable, with a large result as an artifact
outside       the kinds `http`, `queue` and `signal`
printing      a flag that is set while a tool runs in this process
python        The kind `python`: a typed function with a docstring, from which the schema is derived
server_tasks  Calls that their servers have made tasks: a look, an answer, a cancel
"""
