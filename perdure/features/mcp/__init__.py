"""The MCP client: tools of the servers in `.mcp.json`, pinned as a person accepted them.

commands     the MCP servers of `tools`
offer        the tools of the servers, as accepted in the lock file
rules        names and effects of the tools, and changes to their definitions
settings     `.mcp.json`
activities/  connections to servers, the lock file, and the tool kind `mcp`
"""

from perdure.registry import Feature, ToolSource

FEATURE = Feature(
    tool_source=ToolSource(
        file=".mcp.json",
        read="perdure.features.mcp.settings:read_servers",
        show="perdure.features.mcp.offer:offer_accepted_tools",
        open="perdure.features.mcp.offer:offered_tools",
        open_known="perdure.features.mcp.offer:open_accepted_tools",
        print_servers="perdure.features.mcp.commands:print_servers",
        print_unseen="perdure.features.mcp.commands:print_unseen_servers",
    ),
    project_checks=("perdure.features.mcp.commands:check_servers",),
)
