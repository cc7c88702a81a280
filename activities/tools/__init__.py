"""Tools: one call, the kinds of tools, and the built-in tools with I/O.

call           `call_tool`
content_type   File suffixes by content type
fetch          The tool that fetches pages
files          The tools that read, write and list files of the workspace
html           HTML to Markdown
http           The kind `http`: POST the tool request event; the response is the result
interface      The interface of every tool
json_schema    Validation of a call's arguments against the tool's schema
outcome        An outcome as it is recorded: bounded, readable, with a large result as an artifact
printing       A flag that is set while a tool runs in this process
python         The kind `python`: a typed function with a docstring, from which the schema is derived
queue          The kind `queue`: another worker's activity, scheduled by the workflow
result_budget  The bound on large results in memory
signal         The kind `signal`: the result arrives as the signal `tool_result`
"""
