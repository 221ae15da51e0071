"""Calls models that answer, fail or are unreachable, and another page."""

import asyncio
import sys
from typing import Any

import httpx
from openai import APIConnectionError, AsyncOpenAI, InternalServerError, OpenAI

working, failing, unreachable = (f"http://127.0.0.1:{port}/v1" for port in sys.argv[1:])
request: Any = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}


def expect_error(url: str, error: type[Exception]) -> None:
    try:
        OpenAI(base_url=url, max_retries=1).chat.completions.create(**request)
    except error:
        return
    raise AssertionError("the request succeeded")


async def expect_error_async(url: str, error: type[Exception]) -> None:
    try:
        await AsyncOpenAI(base_url=url, max_retries=0).chat.completions.create(**request)
    except error:
        return
    raise AssertionError("the request succeeded")


OpenAI(base_url=working).chat.completions.create(**request)
expect_error(failing, InternalServerError)
expect_error(unreachable, APIConnectionError)
asyncio.run(expect_error_async(failing, InternalServerError))
asyncio.run(expect_error_async(unreachable, APIConnectionError))
httpx.post(f"{working}/nothing", json={})
