"""An MCP server with one tool, which returns an image."""

from mcp.server.mcpserver import Image, MCPServer
from mcp_types import ToolAnnotations

from tests.media_files import same_image

camera = MCPServer("camera")


@camera.tool(description="Take a photo.", annotations=ToolAnnotations(read_only_hint=True))
def photo(image: int) -> Image:
    return Image(data=same_image(image), format="png")


if __name__ == "__main__":
    camera.run()
