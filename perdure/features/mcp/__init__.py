"""The MCP client: tools of the servers in `.mcp.json`, pinned as a person accepted them.

calls        the calls that a server does not finish at once, as a run follows them
commands     the MCP servers of `tools`, and the logins to them
login        a login by OAuth: its link, and the code that comes back
loopback     a login at the terminal
offer        the tools of the servers, as accepted in the lock file
questions    the question of the project that asks for a login
routes       logins at the gateway
rules        names and effects of the tools, changes to their definitions, tasks, and what servers ask people
settings     `.mcp.json` and `[mcp.NAME]`
activities/  connections to servers, grants, the lock file, the tool kind `mcp`, and its tasks
"""

from perdure.registry import Feature, ToolSource

FEATURE = Feature(
    activities=("perdure.features.mcp.activities.tasks:McpTasks",),
    acting=("update_task",),
    tool_source=ToolSource(
        file=".mcp.json",
        read="perdure.features.mcp.settings:read_servers",
        show="perdure.features.mcp.offer:offer_accepted_tools",
        open="perdure.features.mcp.offer:offered_tools",
        open_known="perdure.features.mcp.offer:open_accepted_tools",
        follow="perdure.features.mcp.calls:follow_call",
        print_servers="perdure.features.mcp.commands:print_servers",
        print_unseen="perdure.features.mcp.commands:print_unseen_servers",
    ),
    tables=("perdure.features.mcp.settings:MCP",),
    routes="perdure.features.mcp.routes:router",
    gateway="perdure.features.mcp.routes:open_logins",
    project_checks=("perdure.features.mcp.commands:check_servers",),
)
