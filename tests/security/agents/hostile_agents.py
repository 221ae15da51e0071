"""Agents that try to be excluded instead of failing; the task's input names the attempt."""

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote


def ask(llm: Any, text: str) -> Any:
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}]}
    headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
    url = f"{llm.base_url}/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def write_to_pipes(text: str) -> None:
    """Write what could look like a result to every open descriptor."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number < 3:
            continue
        try:
            os.write(number, text.encode())
        except OSError:
            continue


def attempt_of(llm: Any) -> str:
    parts = llm.base_url.split("/")
    return f"{parts[parts.index('rollout') + 1]}.{parts[parts.index('attempt') + 1]}"


def raise_forged(llm: Any) -> None:
    import httpx

    request = httpx.Request("POST", f"{llm.base_url}/chat/completions")
    raise httpx.ConnectError("All connection attempts failed", request=request)


def raise_forged_status(llm: Any) -> None:
    import httpx

    request = httpx.Request("POST", f"{llm.base_url}/chat/completions")
    response = httpx.Response(503, request=request)
    raise httpx.HTTPStatusError("the gateway is away", request=request, response=response)


TASK = json.loads(os.environ.get("LTRAIN_TASK", "{}"))
"""Of a command."""


def post(name: str, **attributes: Any) -> int:
    """Post a span with the key that the environment has; return how many were rejected."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp

    request = otlp.ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name=name)
    span.start_time_unix_nano = time.time_ns()
    span.trace_id, span.span_id = os.urandom(16), os.urandom(8)
    for key, value in attributes.items():
        value_of_attribute = span.attributes.add(key=key.replace("__", ".")).value
        value_of_attribute.string_value = str(value)
    header, _, key = os.environ["OTEL_EXPORTER_OTLP_HEADERS"].partition("=")
    headers = {header: unquote(key), "Content-Type": "application/x-protobuf"}
    url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
    outgoing = urllib.request.Request(url, request.SerializeToString(), headers)
    with urllib.request.urlopen(outgoing) as answer:
        exported = otlp.ExportTraceServiceResponse.FromString(answer.read())
    return int(exported.partial_success.rejected_spans)


def forge(task: dict[str, Any], llm: Any) -> Any:
    """Return how many forged records the collector rejects."""
    worth = {"gen_ai__evaluation__name": "reward", "gen_ai__evaluation__score__value": 9}
    return {
        "thought": post("thought"),
        "reward": post("gen_ai.evaluation.result", **worth),
        "close": post("ltrain.rollout", ltrain__rollout__outcome="ok"),
        "another run": post("thought", ltrain__run__id="x"),
    }


class Bomb(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise MemoryError("no result")


def deep() -> Any:
    found: Any = []
    for _ in range(20_000):
        found = [found]
    return found


BODIES: dict[str, Callable[[], dict[str, Any]]] = {
    "calls": lambda: {"messages": [{"role": "assistant", "tool_calls": [{}] * 300_000}]},
    "messages": lambda: {"messages": [{"role": "user", "content": "w"}] * 900_000},
    "parts": lambda: {"messages": [{"role": "user", "content": [{"type": "text"}] * 8_000}]},
    "text": lambda: {"messages": [{"role": "user", "content": "w " * 8_000_000}]},
}
"""Requests that want to block the gateway."""


def block(llm: Any, how: str) -> None:
    """Send requests that block the gateway while the runner closes this attempt, and fail."""
    kind, _, route = how.partition("@")
    url = llm.base_url
    if route == "production":
        url = url.partition("/rollout/")[0] + "/v1"
    body = json.dumps({"model": llm.model, **BODIES[kind]()}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
    if route == "production":
        del headers["authorization"]

    def send() -> None:
        while True:
            with contextlib.suppress(OSError):
                request = urllib.request.Request(f"{url}/chat/completions", body, headers)
                urllib.request.urlopen(request).close()

    for _ in range(4):
        threading.Thread(target=send, daemon=True).start()
    time.sleep(0.5)
    raise RuntimeError("it blocks the gateway")


def solve(task: dict[str, Any], llm: Any) -> Any:
    """Fail in the way that the input names; succeed in a second attempt."""
    how, _, marks = task["input"].partition(" ")
    if how in ("kills", "terminates", "crashes"):
        time.sleep(0.2)  # its neighbours are in the worker by then
        if how == "crashes":
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGKILL if how == "kills" else signal.SIGTERM)
        time.sleep(60)  # what is instrumented sends its spans before SIGTERM ends it
    mark = Path(marks) / attempt_of(llm).rpartition(".")[0]
    tried = mark.exists()
    mark.touch()
    if how == "good" or tried:
        time.sleep(0.5 if how == "good" else 0)
        return "good"
    if how.partition("@")[0] in BODIES:
        block(llm, how)
    if how == "prompt":
        return ask(llm, "boom")
    if how == "surrogate":
        raise ValueError("half a pair: \ud83d")
    if how == "infra" or how == "cancelled":
        write_to_pipes(json.dumps({"id": attempt_of(llm), "outcome": how, "reason": "x"}) + "\n")
        time.sleep(2)  # what it returns later is of an attempt that is over
    if how == "broken":
        write_to_pipes('{"broken": "no agent"}\n')
        return "bad"
    if how == "garbage":
        write_to_pipes('[1]\n{"id": \nNaN\n' + "[" * 5000 + "\n")
        return "bad"
    ways: dict[str, Callable[[], Any]] = {
        "exit": lambda: os._exit(1),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "segfault": lambda: ctypes.string_at(0),
        "abort": os.abort,
        "connect": lambda: raise_forged(llm),
        "status": lambda: raise_forged_status(llm),
        "leave": lambda: sys.exit(3),
        "nan": lambda: {"said": float("nan")},
        "bytes": lambda: b"bytes",
        "bomb": Bomb,
        "deep": deep,
        "unscorable": lambda: {"said": None},
    }
    return ways[how]()


def reward(task: dict[str, Any], result: Any) -> float:
    """Return 1 for a good result, and fail on a result that is not text."""
    return float(result.startswith("good"))


def gold(task: dict[str, Any], result: Any) -> float:
    """Return 1 if the agent's result has the task's gold."""
    return float(str(task["gold"]) in json.dumps(result))


def keep(task: dict[str, Any], result: Any) -> float:
    """Write the result where the test finds it."""
    Path(os.environ["KEPT"]).write_text(json.dumps(result))
    return 1.0


def look(task: dict[str, Any], llm: Any) -> Any:
    """Return everything that an agent can easily see."""
    from ltrain_instrument import task as handed

    try:
        parent = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="replace")
    except OSError:
        parent = ""
    return {"task": task, "handed": handed(), "environ": dict(os.environ), "parent": parent}
