"""Calls policies through the clients of its argument, and prints what each client saw, as JSON.

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
output: list[str] = []
open_streams: list[Any] = []


def openai() -> None:
    from openai import OpenAI

    response = OpenAI(base_url=f"{base}/v1").chat.completions.create(**body)
    if body.get("stream"):
        output.extend(chunk.model_dump_json() for chunk in response)
    else:
        output.append(response.model_dump_json())


def openai_completions() -> None:
    from openai import OpenAI

    response = OpenAI(base_url=f"{base}/v1").completions.create(**body)
    parts = response if body.get("stream") else [response]
    output.extend(part.model_dump_json() for part in parts)


def openai_leaves() -> None:
    from openai import OpenAI

    for chunk in OpenAI(base_url=f"{base}/v1").chat.completions.create(**body):
        if chunk.choices[0].delta.content:
            break
    output.append("stopped")


def openai_holds() -> None:
    from openai import OpenAI

    open_streams.append(OpenAI(base_url=f"{base}/v1").chat.completions.create(**body))
    next(chunk for chunk in open_streams[-1] if chunk.choices[0].delta.content)
    output.append("held")


def openai_async() -> None:
    from openai import AsyncOpenAI

    async def send_request() -> None:
        # a client that is left open closes itself in the loop that runs when it is collected
        async with AsyncOpenAI(base_url=f"{base}/v1") as client:
            response = await client.chat.completions.create(**body)
            if body.get("stream"):
                output.extend([chunk.model_dump_json() async for chunk in response])
            else:
                output.append(response.model_dump_json())

    asyncio.run(send_request())


def httpx() -> None:
    import httpx

    output.append(httpx.post(URL, json=body, timeout=60).text)


def httpx_generator() -> None:
    import httpx

    output.append(httpx.post(URL, content=iter([json.dumps(body).encode()]), timeout=60).text)


def httpx_stream() -> None:
    import httpx

    with httpx.stream("POST", URL, json=body, timeout=60) as response:
        output.append("".join(response.iter_text()))


def httpx_async() -> None:
    import httpx

    async def send_request() -> None:
        client = httpx.AsyncClient(timeout=60)
        async with client, client.stream("POST", URL, json=body) as response:
            output.append("".join([text async for text in response.aiter_text()]))

    asyncio.run(send_request())


def aiohttp() -> None:
    import aiohttp

    async def send_request() -> None:
        async with aiohttp.ClientSession() as session, session.post(URL, json=body) as response:
            output.append(await response.text())

    asyncio.run(send_request())


def aiohttp_lines() -> None:
    import aiohttp

    async def send_request() -> None:
        data, headers = json.dumps(body), {"content-type": "application/json"}
        session = aiohttp.ClientSession(base, headers=headers)
        async with session, session.post(URL.removeprefix(base), data=data) as response:
            output.append("".join([line.decode() async for line in response.content]))

    asyncio.run(send_request())


def aiohttp_chunks() -> None:
    import aiohttp

    async def send_request() -> None:
        async with aiohttp.ClientSession() as session, session.post(URL, json=body) as response:
            rest = ""
            async for data, ends in response.content.iter_chunks():
                rest += data.decode()
                if ends and rest:  # the end of the body may arrive as a separate, empty chunk
                    output.append(rest)
                    rest = ""

    asyncio.run(send_request())


def aiohttp_leaves() -> None:
    import aiohttp

    async def send_request() -> None:
        async with aiohttp.ClientSession() as session, session.post(URL, json=body) as response:
            while b"w3" not in await response.content.readline():
                pass
            output.append("stopped")

    asyncio.run(send_request())


def requests() -> None:
    import requests

    output.append(requests.post(URL, json=body, timeout=60).text)


def requests_lines() -> None:
    import requests

    with requests.post(URL, json=body, stream=True, timeout=60) as response:
        output.extend(line.decode() for line in response.iter_lines(chunk_size=7))


def requests_raw() -> None:
    import requests

    with requests.post(URL, json=body, stream=True, timeout=60) as response:
        output.extend(iter(lambda: response.raw.read(9).decode(), ""))


outputs = {}
for name, (client, *request) in json.loads(sys.argv[1]).items():
    base, route, body = request
    URL, output = base + route, []
    with ltrain.rollout(rollout=name):
        try:
            globals()[client]()
        except Exception as error:
            output.append(type(error).__name__)
    outputs[name] = output
print(json.dumps(outputs))
