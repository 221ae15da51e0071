"""Uses only the OpenAI client: a complete response, a stream, and asynchronously."""

import asyncio
from typing import Any

from openai import AsyncOpenAI, OpenAI

message: Any = {"role": "user", "content": "hello"}
OpenAI().chat.completions.create(model="fake", messages=[message])
for _ in OpenAI().chat.completions.create(model="fake", messages=[message], stream=True):
    pass
asyncio.run(AsyncOpenAI().chat.completions.create(model="fake", messages=[message]))
