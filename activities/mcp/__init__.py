"""MCP servers and their tools.

config      The servers of `.mcp.json`
connection  One shared connection a server
http        The HTTP client of servers at a URL
listing     The tools of a server
lock        `mcp.lock.json`
result      Conversion of a server's answer to a tool outcome
stdio       Servers that run as programs
tool        The kind `mcp`
"""
