"""The MCP client: tools of the servers in `.mcp.json`, pinned as a person accepted them.

commands     the MCP servers of `tools`, and the logins to them
login        a login by OAuth: its link, and the code that comes back
loopback     a login at the terminal
offer        the tools of the servers, as accepted in the lock file
questions    the question of the project that asks for a login
routes       logins at the gateway
rules        names and effects of the tools, changes to their definitions, tasks, and what servers ask people
settings     `.mcp.json` and `[mcp.NAME]`
activities/  connections to servers, grants, the lock file, and the tool kind `mcp`
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
    tables=("perdure.features.mcp.settings:MCP",),
    routes="perdure.features.mcp.routes:router",
    gateway="perdure.features.mcp.routes:open_logins",
    project_checks=("perdure.features.mcp.commands:check_servers",),
)
