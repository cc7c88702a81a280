"""Tools: one call, the kinds of tools, and the built-in tools with I/O.

call           `call_tool`
content_type   the suffix of a file by its content type
fetch          the tool that fetches pages
files          the tools that read, write and list files of the workspace
html           HTML to Markdown
http           The kind `http`: the tool request event is POSTed, and the answer is the result
interface      what every tool looks like to it
json_schema    what is wrong with a call's arguments, by the schema of its tool
printing       whether a tool of this process speaks just now
python         The kind `python`: a typed function with a docstring; its schema is derived from both
queue          The kind `queue`: the workflow schedules the activity of another worker; here is what happens to a …
result_budget  how many large ones at a time
signal         The kind `signal`: the request is handed out, and the result comes back as the signal `tool_result`
"""
