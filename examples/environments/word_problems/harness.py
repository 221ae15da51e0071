"""The agent: it calls tools of MCP servers until it answers, in the process of verifiers."""

import json
from contextlib import AsyncExitStack
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

PROMPT = "Use the calculator once. Then write the number."
WORKED = (
    ("A bus has 44 seats. How many seats are in 13 buses?", "44 * 13", "572"),
    ("Ines has 915 beads and loses 208 of them. How many beads are left?", "915 - 208", "707"),
)
"""Question, expression and result of the worked examples before the question."""
MAX_TURNS = 3


class TwoTurnConfig(vf.HarnessConfig):
    id: str = "word_problems"


class TwoTurnHarness(vf.Harness[TwoTurnConfig]):
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def setup(self, runtime: vf.Runtime) -> None:
        return

    async def launch(
        self, ctx: vf.ModelContext, trace: vf.Trace, runtime: vf.Runtime, endpoint: str,
        secret: str, mcp_urls: dict[str, str], data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:  # fmt: skip
        specs = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
        async with (
            AsyncExitStack() as stack,
            AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client,
        ):
            tools, routes, servers = await connect_mcp(specs, stack)
            messages: Any = opening(data.prompt_text, tools[0]["function"]["name"])
            for _ in range(MAX_TURNS):
                response = await client.chat.completions.create(
                    model=ctx.model, messages=messages, tools=tools, max_tokens=48
                )
                message = response.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                calls: list[Any] = [*(message.tool_calls or [])]
                for call in calls:
                    result = await call_tool(servers, routes, call.function)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
                if not calls:
                    break
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def call_tool(servers: Any, routes: Any, function: Any) -> str:
    """Return the result of a tool call, or a sentence about a call that cannot be made."""
    try:
        return str(await call_mcp(servers, routes, function.name, json.loads(function.arguments)))
    except (KeyError, ValueError) as error:
        return f"error: {error}"


def opening(question: str, tool: str) -> list[dict[str, Any]]:
    """Return the messages before the first call: a prompt, worked examples and the question."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": PROMPT}]
    for number, (worked, expression, result) in enumerate(WORKED):
        function = {"name": tool, "arguments": json.dumps({"expression": expression})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages += [
            {"role": "user", "content": worked},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": result},
            {"role": "assistant", "content": result},
        ]
    return [*messages, {"role": "user", "content": question}]
