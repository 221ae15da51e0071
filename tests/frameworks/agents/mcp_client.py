"""An agent with the OpenAI client whose tools are an MCP server's, in a process of its own."""

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
ASKED = "How is it? [[<Two cities.> weather(city=Paris) + weather(city=Rome); !search(query=hail)"


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
        messages: list[Any] = [{"role": "user", "content": f"{ASKED}; book(city=Bath); Sunny.]]"}]
        while True:
            answer = await CLIENT.chat.completions.create(
                model="fake", messages=messages, tools=tools
            )
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            asked: list[Any] = message.tool_calls
            calls = (
                call(places, it.function.name, json.loads(it.function.arguments)) for it in asked
            )
            for it, result in zip(asked, await asyncio.gather(*calls), strict=True):
                messages.append({"role": "tool", "tool_call_id": it.id, "content": result})
        print(message.content)


asyncio.run(main())
