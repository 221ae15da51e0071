"""Asks policies through clients, as its argument says; prints what each saw, as JSON.

With a second argument it instruments itself.
"""

import asyncio
import json
import sys
from typing import Any

import ltrain

if sys.argv[2:]:
    ltrain.configure()
base, URL = "", ""
body: Any = {}
seen: list[str] = []
held: list[Any] = []


def openai() -> None:
    from openai import OpenAI

    answer = OpenAI(base_url=f"{base}/v1").chat.completions.create(**body)
    if body.get("stream"):
        seen.extend(chunk.model_dump_json() for chunk in answer)
    else:
        seen.append(answer.model_dump_json())


def openai_completions() -> None:
    from openai import OpenAI

    answer = OpenAI(base_url=f"{base}/v1").completions.create(**body)
    parts = answer if body.get("stream") else [answer]
    seen.extend(part.model_dump_json() for part in parts)


def openai_leaves() -> None:
    from openai import OpenAI

    for chunk in OpenAI(base_url=f"{base}/v1").chat.completions.create(**body):
        if chunk.choices[0].delta.content:
            break
    seen.append("left")


def openai_holds() -> None:
    from openai import OpenAI

    held.append(OpenAI(base_url=f"{base}/v1").chat.completions.create(**body))
    next(chunk for chunk in held[-1] if chunk.choices[0].delta.content)
    seen.append("held")


def openai_async() -> None:
    from openai import AsyncOpenAI

    async def ask() -> None:
        answer = await AsyncOpenAI(base_url=f"{base}/v1").chat.completions.create(**body)
        if body.get("stream"):
            seen.extend([chunk.model_dump_json() async for chunk in answer])
        else:
            seen.append(answer.model_dump_json())

    asyncio.run(ask())


def httpx() -> None:
    import httpx

    seen.append(httpx.post(URL, json=body, timeout=60).text)


def httpx_generator() -> None:
    import httpx

    seen.append(httpx.post(URL, content=iter([json.dumps(body).encode()]), timeout=60).text)


def httpx_stream() -> None:
    import httpx

    with httpx.stream("POST", URL, json=body, timeout=60) as response:
        seen.append("".join(response.iter_text()))


def httpx_async() -> None:
    import httpx

    async def ask() -> None:
        client = httpx.AsyncClient(timeout=60)
        async with client, client.stream("POST", URL, json=body) as response:
            seen.append("".join([text async for text in response.aiter_text()]))

    asyncio.run(ask())


def aiohttp() -> None:
    import aiohttp

    async def ask() -> None:
        async with aiohttp.ClientSession() as session, session.post(URL, json=body) as response:
            seen.append(await response.text())

    asyncio.run(ask())


def aiohttp_lines() -> None:
    import aiohttp

    async def ask() -> None:
        data, headers = json.dumps(body), {"content-type": "application/json"}
        session = aiohttp.ClientSession(base, headers=headers)
        async with session, session.post(URL.removeprefix(base), data=data) as response:
            seen.append("".join([line.decode() async for line in response.content]))

    asyncio.run(ask())


def aiohttp_chunks() -> None:
    import aiohttp

    async def ask() -> None:
        async with aiohttp.ClientSession() as session, session.post(URL, json=body) as response:
            rest = ""
            async for data, ends in response.content.iter_chunks():
                rest += data.decode()
                if ends and rest:  # the end of a body that arrives apart is an empty chunk
                    seen.append(rest)
                    rest = ""

    asyncio.run(ask())


def aiohttp_leaves() -> None:
    import aiohttp

    async def ask() -> None:
        async with aiohttp.ClientSession() as session, session.post(URL, json=body) as response:
            while b"w3" not in await response.content.readline():
                pass
            seen.append("left")

    asyncio.run(ask())


def requests() -> None:
    import requests

    seen.append(requests.post(URL, json=body, timeout=60).text)


def requests_lines() -> None:
    import requests

    with requests.post(URL, json=body, stream=True, timeout=60) as response:
        seen.extend(line.decode() for line in response.iter_lines(chunk_size=7))


def requests_raw() -> None:
    import requests

    with requests.post(URL, json=body, stream=True, timeout=60) as response:
        seen.extend(iter(lambda: response.raw.read(9).decode(), ""))


answers = {}
for name, (client, *question) in json.loads(sys.argv[1]).items():
    base, route, body = question
    URL, seen = base + route, []
    with ltrain.rollout(rollout=name):
        try:
            globals()[client]()
        except Exception as error:
            seen.append(type(error).__name__)
    answers[name] = seen
print(json.dumps(answers))
