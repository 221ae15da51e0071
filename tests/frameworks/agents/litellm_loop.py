"""litellm: a manual tool loop, a stream, concurrent requests, and a router that retries."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import litellm

MODEL = "openai/fake"
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": {key: {"type": "string"}}},
        },
    }
    for name, key, text in (
        ("weather", "city", "Return the weather of a city."),
        ("search", "query", "Search the web."),
    )
]


def weather(city: str) -> str:
    return f"It is sunny in {city}."


def search(query: str) -> str:
    return f"Error: nothing found for {query}"


RUN: dict[str, Callable[..., str]] = {"weather": weather, "search": search}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def loop() -> None:
    plan = "<Two cities.> weather(city=Paris) + weather(city=Rome); !search(query=hail); Sunny."
    messages = user(f"How is it? [[{plan}]]")
    while True:
        # litellm's MCP gateway wants mcp 2, crewai beside it mcp 1
        response = litellm.completion(
            model=MODEL, messages=messages, tools=TOOLS, num_retries=1, _skip_mcp_handler=True
        )
        message = response.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            result = RUN[call.function.name](**arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(message.content)


def streamed() -> None:
    options: Any = {"include_usage": True}
    chunks = litellm.completion(
        model=MODEL, messages=user("Say it. [[One by one.]]"), stream=True, stream_options=options
    )
    print("".join(chunk.choices[0].delta.content or "" for chunk in chunks))


async def several() -> None:
    prompts = ("Left? [[Left.]]", "Right? [[Right.]]")
    responses = await asyncio.gather(
        *(litellm.acompletion(model=MODEL, messages=user(prompt)) for prompt in prompts)
    )
    print(*(response.choices[0].message.content for response in responses))
    chunks = await litellm.acompletion(
        model=MODEL, messages=user("And? [[Word by word.]]"), stream=True
    )
    print("".join([chunk.choices[0].delta.content or "" async for chunk in chunks]))
    embeddings = await litellm.aembedding(model="openai/fake-embedding", input=["left", "right"])
    print(len(embeddings.data))


def routed() -> None:
    served = {"model": MODEL, "api_base": litellm.get_secret_str("OPENAI_BASE_URL")}
    router = litellm.Router([{"model_name": "guide", "litellm_params": served}], num_retries=1)
    print(router.completion("guide", user("Well? [[!All well.]]")).choices[0].message.content)


def failing() -> None:
    try:
        litellm.completion(model=MODEL, messages=user("Gone?"), base_url="http://127.0.0.1:9")
    except litellm.exceptions.InternalServerError as error:
        print(type(error).__name__)


for name in sys.argv[1:]:
    {
        "loop": loop,
        "streamed": streamed,
        "several": lambda: asyncio.run(several()),
        "routed": routed,
        "failing": failing,
    }[name]()
