"""The MCP server at the gateway, over HTTP and with its tokens. It is off until a project names it.

routes  the address of the server, and its metadata
"""

from perdure.registry import Feature

FEATURE = Feature(
    gateway="perdure.features.mcp_http.routes:open_mcp_door", routes="perdure.features.mcp_http.routes:router"
)
