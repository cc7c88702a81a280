"""MCP in the command line.

runs     runs as the tools of an MCP server
server   `perdure mcp`
servers  the MCP servers in `perdure tools`
"""
