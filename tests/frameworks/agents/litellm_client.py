"""litellm calls a model over OpenAI's and Anthropic's APIs: complete, streamed, and with tools."""

import json
import os
from typing import Any

import litellm

litellm.suppress_debug_info = True
BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
PROVIDERS = {"openai/gpt-5": BASE, "anthropic/claude-sonnet-4-5": BASE.removesuffix("/v1")}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def ask(model: str, base: str, content: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": content}]
    # litellm's MCP gateway wants mcp 2, crewai beside it mcp 1
    own = {"api_base": base, "api_key": KEY, "max_tokens": 9, "_skip_mcp_handler": True}
    return litellm.completion(model=model, messages=messages, **own, **fields)


for model, base in PROVIDERS.items():
    whole = ask(model, base, "w3 w14")
    print(whole.choices[0].message.content)
    chunks = ask(model, base, "w3 w14", stream=True)
    print(*"".join(chunk.choices[0].delta.content or "" for chunk in chunks).split())
    calls = ask(model, base, "call", tools=[TOOL]).choices[0].message.tool_calls
    print([json.loads(call.function.arguments)["city"] for call in calls])
several = ask("openai/gpt-5", BASE, "w3 vary", n=2)
print(*[choice.message.content for choice in several.choices])
try:
    ask("anthropic/claude-sonnet-4-5", BASE.removesuffix("/v1"), "long")
except litellm.BadRequestError as error:
    print("maximum context length is 4096 tokens" in str(error))
