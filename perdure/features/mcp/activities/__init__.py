"""MCP servers and their tools.

config      The servers of `.mcp.json`
connection  One shared connection a server
listing     The tools of a server
extension   Tasks in the SDK's types
grants      Tokens by OAuth, their lease and their refresh
lock        `mcp.lock.json`
stdio       Servers that run as programs
tool        The kind `mcp`
"""
