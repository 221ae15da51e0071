"""Waits of `/health`, closes and other attempts beside an agent that tries to block the gateway."""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median

from benchmarks.support.request_shapes import CHAT, MESSAGES, RESPONSES, SHAPES, TOOL, USER
from benchmarks.support.servers import AGENTS, Stack, ltrain, policy_server

from ltrain_collector.access import AttemptKey
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity
from ltrain_train.gateway import GatewayClient
from ltrain_train.store import home_secret

ITEMS = 8192
"""The default of LTRAIN_REQUEST_ITEMS."""
MIB = 1 << 20
SHAPE_SECONDS, WAY_SECONDS = 0.7, 3.0
"""Seconds in which the waits beside one shape, and one way, are measured."""
ATTEMPTS, CALLS, PAUSE = 4, 5, 1.0
"""Attempts of a wave, the calls of each, and the seconds after each for sampling and own work."""
CALMS = 5
"""Waves without a hostile agent."""
MAX_WAIT_MS, MAX_LOSS = 100.0, 0.05
"""Limits: the longest wait of `/health` and of a close; the share of time that a wave loses."""


class Agent:
    """An attempt that wants to block the gateway."""

    def __init__(self, url: str, secret: str, rollout: str) -> None:
        self.identity = Identity(run="b", task="t", rollout=rollout, attempt=1, mode="train")
        claims = AttemptKey(identity=self.identity, policy="policy", expires=Deadline.after(3600))
        self.key = claims.sign(secret)
        self.host = url.removeprefix("http://")
        self.path = f"/rollout/{rollout}/attempt/1"
        self.ended = threading.Event()

    def post(self, path: str, body: bytes, key: str | None = None) -> int:
        """Send a request; return its status, or 0 if the connection ended."""
        headers = {"authorization": f"Bearer {key or self.key}"}
        connection = HTTPConnection(self.host, timeout=120)
        try:
            connection.request("POST", self.path + path, body, headers)
            response = connection.getresponse()
            response.read()
            return response.status
        except (OSError, HTTPException):
            return 0
        finally:
            connection.close()

    def connect(self, lines: str = "") -> socket.socket:
        """Send the head of a chat completion with more header lines."""
        host, port = self.host.split(":")
        connection = socket.create_connection((host, int(port)), timeout=120)
        head = f"POST {self.path}{CHAT} HTTP/1.1\r\nhost: {host}\r\n"
        connection.sendall(f"{head}authorization: Bearer {self.key}\r\n{lines}\r\n".encode())
        return connection

    def repeat(self, act: Callable[[], object], threads: int = 4) -> None:
        """Do something again and again, in several threads, until the wave ends."""

        def loop() -> None:
            while not self.ended.is_set():
                with suppress(OSError):
                    act()

        running = [threading.Thread(target=loop) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()


def chat(**fields: object) -> bytes:
    return json.dumps({"model": "policy", "messages": USER, **fields}).encode()


def user(content: object) -> bytes:
    return chat(messages=[{"role": "user", "content": content}])


def held(agent: Agent, lines: str, data: bytes = b"") -> None:
    """Hold connections open until the wave ends."""
    connections = [agent.connect(lines) for _ in range(64)]
    while not agent.ended.is_set():
        for connection in connections:
            with suppress(OSError):
                connection.sendall(data or b"x")
        agent.ended.wait(0.2)
    for connection in connections:
        connection.close()


def abandoned(agent: Agent) -> None:
    """Send a request and go away."""
    body = user("w" * 50_000)
    with agent.connect(f"content-length: {len(body)}\r\n") as connection:
        connection.sendall(body)


def unread(agent: Agent) -> None:
    """Request a stream and read nothing of it."""
    body = chat(stream=True)
    with agent.connect(f"content-length: {len(body)}\r\n") as connection:
        connection.sendall(body)
        agent.ended.wait(1)


def posted(path: str, body: bytes, threads: int = 4) -> Callable[[Agent], None]:
    """Return the way of one request, sent again and again by several threads."""
    return lambda agent: agent.repeat(lambda: agent.post(path, body), threads)


EMPTY_CALLS = chat(messages=[{"role": "assistant", "tool_calls": [{}] * 300_000}])
MANY_CALLS = chat(messages=[{"role": "assistant", "tool_calls": [{}] * (ITEMS - 64)}])
WAYS: dict[str, Callable[[Agent], None]] = {
    "300,000 empty tool calls": posted(CHAT, EMPTY_CALLS),
    "as many tool calls as are allowed": posted(CHAT, MANY_CALLS),
    "100,000 messages": posted(CHAT, chat(messages=USER * 100_000)),
    "as many messages as are allowed": posted(CHAT, chat(messages=USER * (ITEMS - 64))),
    "as many tools as are allowed": posted(CHAT, chat(tools=[TOOL] * (ITEMS - 64))),
    "as many parts as are allowed": posted(
        MESSAGES,
        json.dumps(
            {
                "model": "policy",
                "max_tokens": 1,
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "w"}] * (ITEMS - 64)}
                ],
            }
        ).encode(),
    ),
    "one turn of many calls": posted(
        RESPONSES,
        json.dumps(
            {
                "model": "policy",
                "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}]
                * (ITEMS - 64),
            }
        ).encode(),
    ),
    "31 MB of text": posted(CHAT, user("w" * 31_000_000)),
    "a text of quotes": posted(CHAT, user('"' * 15_000_000)),
    "24 requests of 16 MB": posted(CHAT, user("w1 " * (16 * MIB // 3)), threads=24),
    "a body beyond the limit": posted(CHAT, user("w" * 40_000_000)),
    "an image of 30 MB": posted(
        CHAT,
        user(
            [
                {
                    "type": "image_url",
                    "image_url": {"url": "data:image/png;base64," + "A" * 30_000_000},
                }
            ]
        ),
    ),
    "4,000,000 JSON values": posted(
        CHAT, b'{"model":"policy","messages":[' + b"1," * 4_000_000 + b"1]}"
    ),
    "deep JSON": posted(CHAT, b"[" * 1_000_000),
    "long headers": lambda agent: agent.repeat(lambda: agent.connect("a: " + "a" * 10**6).close()),
    "bodies that never arrive": lambda agent: held(agent, "content-length: 33554432\r\n"),
    "bodies of unknown length": lambda agent: held(
        agent, "transfer-encoding: chunked\r\n", b"1\r\n[\r\n"
    ),
    "calls that are abandoned": lambda agent: agent.repeat(lambda: abandoned(agent), 1),
    "streams that are not read": lambda agent: agent.repeat(lambda: unread(agent), 16),
    "tokens of prompts that are counted": posted(
        f"{MESSAGES}/count_tokens", chat(messages=USER * (ITEMS - 64))
    ),
}
"""Ways in which an agent can fill, block or slow the gateway."""


Start = Callable[[float], Callable[[], dict[str, float]]]


@contextmanager
def prober(url: str, secret: str) -> Iterator[Start]:
    """Yield a function that starts to measure, and returns one that waits for the longest waits."""
    command = [sys.executable, str(AGENTS / "probing.py"), url, secret]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]

    def start(seconds: float) -> Callable[[], dict[str, float]]:
        process.stdin.write(f"{seconds}\n")
        process.stdin.flush()
        return lambda: json.loads(process.stdout.readline())

    start(0.5)()
    try:
        yield start
    finally:
        process.communicate()


def waits_of_shapes(url: str, secret: str, start: Start) -> dict[str, dict[str, float]]:
    """Return the longest waits beside each shape, below and beyond the limits, in milliseconds."""
    agent, waits = Agent(url, secret, "shapes"), {}
    for shape in SHAPES:
        for count in (ITEMS - 64, 20 * ITEMS):
            body = json.dumps(shape.body(count)).encode()
            measured = start(SHAPE_SECONDS)
            agent.post(shape.path, body)
            waits[f"{shape} * {count}"] = measured()
    return waits


def wave(url: str, secret: str) -> float:
    """Run a wave; return its seconds."""
    arguments = (url, secret, str(ATTEMPTS), str(CALLS), str(PAUSE))
    command = [sys.executable, str(AGENTS / "waving.py"), *arguments]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def loss_of_ways(stack: Stack, secret: str, start: Start) -> dict[str, dict[str, float]]:
    """Return what each way costs a wave, the waits beside it, and what its close reports."""
    calm = median(wave(stack.gateway, secret) for _ in range(CALMS))
    client, ways = GatewayClient(stack.gateway, secret), {}
    for number, (name, way) in enumerate(WAYS.items()):
        agent = Agent(stack.gateway, secret, f"a{number}")
        blocking = threading.Thread(target=way, args=(agent,))
        blocking.start()
        seconds = wave(stack.gateway, secret)
        waits = start(WAY_SECONDS)()
        began = time.perf_counter()
        counts = client.close_attempt(agent.identity, agent.key)
        closed = 1e3 * (time.perf_counter() - began)
        agent.ended.set()
        blocking.join()
        ways[name] = {
            "loss": round(seconds / calm - 1, 3),
            "health": waits["health"],
            "close": max(waits["close"], closed),
            "outages": counts.failures,
        }
        print(json.dumps({"way": name, **ways[name]}), flush=True)
    return ways


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with ExitStack() as opened:
        place = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="ltrain-block-")))
        stack = opened.enter_context(ltrain(place, opened.enter_context(policy_server())))
        secret = home_secret(Path(stack.environment["LTRAIN_HOME"]))
        start = opened.enter_context(prober(stack.gateway, secret))
        calm = start(5)()
        ways = loss_of_ways(stack, secret, start)
        waits = ways | waits_of_shapes(stack.gateway, secret, start)
    health, close = (max(each[name] for each in waits.values()) for name in ("health", "close"))
    loss = max(each["loss"] for each in ways.values())
    slowest = sorted(waits, key=lambda name: -max(waits[name]["health"], waits[name]["close"]))[:5]
    result = {
        "name": "block",
        "value": round(max(health, close), 1),
        "unit": f"ms, the longest wait beside {len(waits)} requests, at most {MAX_WAIT_MS}; a wave "
        f"loses at most {MAX_LOSS}, and no way counts as an outage",
        "health_ms": round(health, 1),
        "close_ms": round(close, 1),
        "without": calm,
        "slowest": {name: waits[name] for name in slowest},
        "loss": loss,
        "outages": sum(each["outages"] for each in ways.values()),
    }
    print(json.dumps(result))
    met = max(health, close) <= MAX_WAIT_MS and loss <= MAX_LOSS and not result["outages"]
    sys.exit(not met)


if __name__ == "__main__":
    main()
