"""The MCP server: runs as tools of an MCP client.

commands  `mcp`: the server and its tools
"""

from perdure.registry import Command, Feature

FEATURE = Feature(
    commands={
        "mcp": Command(
            "perdure.features.mcp_server.commands:mcp_command",
            "Operations",
            "Serve runs to an MCP client over standard input and output.",
        )
    },
)
