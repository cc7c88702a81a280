"""The MCP server: runs as tools and as tasks of an MCP client.

callers   who calls, and which runs are their own
commands  `mcp`: the server over standard input and output
forms     questions as forms and links
server    the server over a session, for both transports
tasks     runs as tasks
tools     runs as tools
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
