"""An MCP server over stdio: tools that succeed, return an error and raise one."""

import asyncio

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import INTERNAL_ERROR

server = MCPServer("places", log_level="ERROR")


@server.tool()
async def weather(city: str) -> str:
    """Return the weather of a city."""
    await asyncio.sleep(0.3)
    return f"It is sunny in {city}."


@server.tool()
def search(query: str) -> str:
    """Search for places; what it says is a result with is_error."""
    raise ToolError(f"which {query}?")


@server.tool()
def book(city: str) -> str:
    """Book a room; it fails as JSON-RPC does."""
    raise MCPError(INTERNAL_ERROR, f"no room in {city}")


if __name__ == "__main__":
    server.run("stdio")
