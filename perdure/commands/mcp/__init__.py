"""`perdure mcp`, and what `perdure tools` reports of MCP servers.

runs     Runs as the tools of an MCP server
server   Perdure as an MCP server; mcp_runs: its tools
servers  what `tools` says of MCP servers
"""
