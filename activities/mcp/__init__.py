"""MCP servers and their tools.

config      where a server is
connection  the one to it, over mcp_stdio or mcp_http
http        The HTTP client behind a connection to an MCP server at a URL: bounded, and telling of what the SDK …
listing     its tools
lock        `mcp.lock.json`
result      what it answers
stdio       An MCP server as a program: its start and end, and its messages as lines, whatever it writes
tool        the kind `mcp`
"""
