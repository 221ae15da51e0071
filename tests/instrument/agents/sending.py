"""Calls models that answer, that fail and that are not there, and a page beside them."""

import asyncio
import sys
from typing import Any

import httpx
from openai import APIConnectionError, AsyncOpenAI, InternalServerError, OpenAI

good, bad, gone = (f"http://127.0.0.1:{port}/v1" for port in sys.argv[1:])
asked: Any = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}


def ask(url: str, kind: type[Exception]) -> None:
    try:
        OpenAI(base_url=url, max_retries=1).chat.completions.create(**asked)
    except kind:
        return
    raise AssertionError("it answered")


async def ask_async(url: str, kind: type[Exception]) -> None:
    try:
        await AsyncOpenAI(base_url=url, max_retries=0).chat.completions.create(**asked)
    except kind:
        return
    raise AssertionError("it answered")


OpenAI(base_url=good).chat.completions.create(**asked)
ask(bad, InternalServerError)
ask(gone, APIConnectionError)
asyncio.run(ask_async(bad, InternalServerError))
asyncio.run(ask_async(gone, APIConnectionError))
httpx.post(f"{good}/nothing", json={})
