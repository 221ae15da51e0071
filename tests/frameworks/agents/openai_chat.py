"""The OpenAI client: a manual tool loop, a stream, and a retry after a 500."""

import json
from typing import Any

from openai import OpenAI

CLIENT = OpenAI(max_retries=2)
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Return the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
PLAN = "[[!<Two cities.> weather(city=Paris) + weather(city=Rome); weather(city=Oz); Sunny.]]"


def weather(city: str) -> str:
    if city == "Oz":
        raise LookupError("no such city")
    return f"It is sunny in {city}."


def result(arguments: str) -> str:
    try:
        return weather(**json.loads(arguments))
    except LookupError as error:
        return f"Error: {error}"


messages: list[Any] = [{"role": "user", "content": f"How is it? {PLAN}"}]
while True:
    response = CLIENT.chat.completions.create(model="fake", messages=messages, tools=[TOOL])
    message = response.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    tool_calls: list[Any] = message.tool_calls
    for call in tool_calls:
        content = result(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
print(message.content)

stream = CLIENT.chat.completions.create(
    model="fake",
    messages=[{"role": "user", "content": "Say it. [[One by one.]]"}],
    stream=True,
    stream_options={"include_usage": True},
)
print("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
