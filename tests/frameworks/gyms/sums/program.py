"""python program.py BASE_URL KEY MODEL PROMPT"""

import json
import sys
from typing import Any

from openai import OpenAI

base_url, key, model, prompt = sys.argv[1:]
client = OpenAI(base_url=base_url, api_key=key, max_retries=0)
parameters: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
}
add: Any = {"name": "add", "description": "Adds.", "parameters": parameters}
messages: list[Any] = [{"role": "user", "content": prompt}]
while True:
    response = client.chat.completions.create(
        model=model, messages=messages, tools=[{"type": "function", "function": add}]
    )
    message = response.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    calls: list[Any] = [*(message.tool_calls or [])]
    for call in calls:
        total = sum(map(int, json.loads(call.function.arguments).values()))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})
    if not calls:
        break
