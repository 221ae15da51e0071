"""The OpenAI client in all of its request methods; prints a part of each response."""

import asyncio
from typing import Any

from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

client, async_client = OpenAI(), AsyncOpenAI()


class City(BaseModel):
    name: str


def say(text: str) -> Any:
    return {"model": "fake", "messages": [{"role": "user", "content": f"Say it. [[{text}]]"}]}


def respond(text: str) -> Any:
    return {"model": "fake", "input": f"Say it. [[{text}]]"}


def texts(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


CITY = '{"name": "Rome"}'

print(client.chat.completions.create(**say("1 whole")).choices[0].message.content)
print(texts(client.chat.completions.create(**say("2 streamed"), stream=True)))
for chunk in client.chat.completions.create(**say("3 streamed and left"), stream=True):
    if chunk.choices[0].delta.content:
        break
with client.chat.completions.stream(**say("4 by events")) as events:
    print(events.get_final_completion().choices[0].message.content)
print(client.chat.completions.parse(**say(CITY), response_format=City).choices[0].message.parsed)
raw = client.chat.completions.with_raw_response.create(**say("6 raw"))
print(raw.parse().choices[0].message.content)
print(client.completions.create(model="fake", prompt="Say it. [[7 text]]").choices[0].text)

print(client.responses.create(**respond("8 response")).output_text)
done = [e for e in client.responses.create(**respond("9 streamed"), stream=True)][-1]
print(done.response.output_text if done.type == "response.completed" else done)
with client.responses.stream(**respond("10 by events")) as response_events:
    print(response_events.get_final_response().output_text)
print(client.responses.parse(**respond(CITY), text_format=City).output_parsed)


async def main() -> None:
    streamed = await async_client.chat.completions.create(**say("12 async streamed"), stream=True)
    print("".join([c.choices[0].delta.content or "" async for c in streamed if c.choices]))
    stopped = await async_client.chat.completions.create(**say("13 async and left"), stream=True)
    async for chunk in stopped:
        if chunk.choices[0].delta.content:
            break
    await stopped.close()
    both = await asyncio.gather(
        async_client.chat.completions.create(**say("14 async")),
        async_client.responses.create(**respond("15 async response")),
    )
    print(both[0].choices[0].message.content, both[1].output_text)
    events = await async_client.responses.create(**respond("16 async streamed"), stream=True)
    print([event.type async for event in events][-1])


asyncio.run(main())
