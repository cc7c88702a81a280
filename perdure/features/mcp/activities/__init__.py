"""MCP servers and their tools.

config      The servers of `.mcp.json`
connection  One shared connection to a server, with one grant
connections All connections of a worker, one for each requester of a server that they log in to
listing     The tools of a server
extension   Tasks in the SDK's types
grants      Tokens by OAuth, their lease and their refresh
lock        `mcp.lock.json`
stdio       Servers that run as programs
tool        The kind `mcp`
"""
