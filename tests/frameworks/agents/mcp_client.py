"""An agent with the OpenAI client that uses the tools of an MCP server in its own process."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from mcp import Client, MCPError, StdioServerParameters, stdio_client
from openai import AsyncOpenAI

CLIENT = AsyncOpenAI(max_retries=2)
SERVER = StdioServerParameters(
    command=sys.executable, args=[str(Path(__file__).with_name("mcp_server.py"))]
)
PROMPT = "How is it? [[<Two cities.> weather(city=Paris) + weather(city=Rome); !search(query=hail)"


async def call(places: Client, name: str, arguments: dict[str, Any]) -> str:
    try:
        result = await places.call_tool(name, arguments)
    except MCPError as error:
        return str(error)
    return "".join(part.text for part in result.content if part.type == "text")


async def main() -> None:
    async with Client(stdio_client(SERVER)) as places:
        listed = (await places.list_tools()).tools
        tools: Any = [
            {"type": "function", "function": {"name": it.name, "parameters": it.input_schema}}
            for it in listed
        ]
        messages: list[Any] = [{"role": "user", "content": f"{PROMPT}; book(city=Bath); Sunny.]]"}]
        while True:
            response = await CLIENT.chat.completions.create(
                model="fake", messages=messages, tools=tools
            )
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            tool_calls: list[Any] = message.tool_calls
            calls = (
                call(places, it.function.name, json.loads(it.function.arguments))
                for it in tool_calls
            )
            for it, result in zip(tool_calls, await asyncio.gather(*calls), strict=True):
                messages.append({"role": "tool", "tool_call_id": it.id, "content": result})
        print(message.content)


asyncio.run(main())
