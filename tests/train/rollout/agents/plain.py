"""Agents without a framework; the task says what the agent does."""

import asyncio
import ctypes
import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any


def ask(llm: Any, text: str) -> Any:
    """Ask the endpoint once."""
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}]}
    headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
    url = f"{llm.base_url}/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def solve(task: dict[str, Any], llm: Any) -> Any:
    """Do what the task's `trouble` says, then call the model."""
    print('{"id": "not a result"}', flush=True)
    answer = ask(llm, task["input"])
    if task.get("raises"):
        raise ValueError("the agent gave up")
    if task.get("leaves"):
        raise SystemExit(3)
    if task.get("unsayable"):
        return {1, 2}
    time.sleep(task.get("sleeps", 0))
    if task.get("dies") and not Path(task["dies"]).exists():
        Path(task["dies"]).touch()
        os.kill(os.getpid(), 9)
    if task.get("crashes") and not Path(task["crashes"]).exists():
        Path(task["crashes"]).touch()
        ctypes.string_at(0)
    return {"answer": answer, "pid": os.getpid()}


def odd(task: dict[str, Any], llm: Any) -> Any:
    """Return what some JSON parsers do not read."""
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    return {"half a character": "\ud800", "deep": deep}


async def solve_async(task: dict[str, Any], llm: Any) -> Any:
    """Do the same in an event loop."""
    answer = await asyncio.to_thread(ask, llm, task["input"])
    await asyncio.sleep(task.get("sleeps", 0))
    return {"answer": answer}


def needs_openai(task: dict[str, Any], llm: Any) -> Any:
    """Call the model through the SDK, which raises its own errors."""
    import openai

    client = openai.OpenAI(base_url=llm.base_url, api_key=llm.api_key, max_retries=0)
    answer = client.chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": task["input"]}]
    )
    return {"answer": answer.choices[0].message.content}


def uses_service(task: dict[str, Any], llm: Any) -> Any:
    """Call the model, and then the service `db` at the path of the task."""
    answer = ask(llm, task["input"])
    path = f"{llm.services['db']}/{task.get('path', '')}"
    with urllib.request.urlopen(path) as reply:
        return {"answer": answer, "address": llm.services["db"], **json.load(reply)}
