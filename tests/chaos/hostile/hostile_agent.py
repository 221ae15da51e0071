"""An agent program that answers its task honestly, or does harm in the way that the task names.

The way ends the attempt: it returns a guess, fails, or goes beyond the time limit.
"""

import contextlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

MIB = 1 << 20
BASE, KEY = os.environ.get("OPENAI_BASE_URL", ""), os.environ.get("OPENAI_API_KEY", "")
MODEL = os.environ.get("OPENAI_MODEL", "")
HARM_SECONDS = 4.0
"""How long a way repeats itself; an attempt has more time."""
GUESS = "guess"


def post(url: str, body: bytes, key: str = KEY, kind: str = "application/json") -> bytes:
    """Return the answer to a request; an error's, too."""
    headers = {"content-type": kind, "authorization": key if " " in key else f"Bearer {key}"}
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return bytes(error.read())


def chat(text: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 4, **fields}).encode()


def ask(text: str) -> str:
    answer = json.loads(post(f"{BASE}/chat/completions", chat(text)))
    return str(answer["choices"][0]["message"]["content"])


def repeat(act: Callable[[], object], threads: int = 4) -> None:
    """Do something again and again, in several threads, for some seconds."""
    end = time.monotonic() + HARM_SECONDS

    def loop() -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError):
                act()

    for _ in range(threads):
        threading.Thread(target=loop, daemon=True).start()
    time.sleep(HARM_SECONDS)


def posted(body: Callable[[], bytes], path: str = "/chat/completions") -> Callable[[], None]:
    """Return the way that repeats one request."""

    def way() -> None:
        content = body()
        repeat(lambda: post(BASE + path, content))

    return way


def connect(text: bytes) -> socket.socket:
    """Send the beginning of a request."""
    host, port = BASE.split("/")[2].split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(text)
    return connection


def head(length: int) -> bytes:
    path = "/" + BASE.split("/", 3)[3]
    return (
        f"POST {path}/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def hold(text: bytes, count: int = 200) -> None:
    """Hold connections open that sent no whole request."""
    connections = [connect(text) for _ in range(count)]
    time.sleep(HARM_SECONDS)
    for connection in connections:
        connection.close()


def abandon() -> None:
    body = chat("slow")
    with connect(head(len(body)) + body):
        time.sleep(0.01)


def leave_unread() -> None:
    body = chat("w1 " * 2000, stream=True, max_tokens=4000)
    with connect(head(len(body)) + body):
        time.sleep(HARM_SECONDS)


def export(signal_name: str, payload: bytes) -> None:
    """Post telemetry with the key that the environment has."""
    _, _, key = os.environ["OTEL_EXPORTER_OTLP_HEADERS"].partition("=")
    url = f"{os.environ['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/{signal_name}"
    post(url, payload, unquote(key), "application/x-protobuf")


def spans(name: str, count: int = 1, **attributes: str | float) -> bytes:
    """Return an OTLP request with equal spans."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp

    request = otlp.ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for _ in range(count):
        span = scope.spans.add(name=name, trace_id=os.urandom(16), span_id=os.urandom(8))
        span.start_time_unix_nano = span.end_time_unix_nano = time.time_ns()
        for key, content in attributes.items():
            value = span.attributes.add(key=key.replace("__", ".")).value
            if isinstance(content, str):
                value.string_value = content
            else:
                value.double_value = content
    return bytes(request.SerializeToString())


def logs(count: int) -> bytes:
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as otlp

    request = otlp.ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for _ in range(count):
        scope.log_records.add(time_unix_nano=time.time_ns()).body.string_value = "w" * 1000
    return bytes(request.SerializeToString())


def record_spans() -> None:
    """Fill the spool of this process."""
    from opentelemetry import trace

    tracer = trace.get_tracer("own")
    repeat(lambda: tracer.start_span("thought", attributes={"text": "w" * 100_000}).end())


def forge() -> None:
    """Send a reward, the end of the attempt, and a span of another run."""
    worth = spans(
        "gen_ai.evaluation.result",
        gen_ai__evaluation__name="reward",
        gen_ai__evaluation__score__value=9.0,
    )
    export("traces", worth)
    export("traces", spans("ltrain.rollout", ltrain__rollout__outcome="ok"))
    export("traces", spans("thought", ltrain__run__id="other", ltrain__rollout__id="other"))
    raise RuntimeError("it fails after all")


def close() -> None:
    """Close this attempt, by each path and method that could do it."""
    root = BASE.removesuffix("/v1")
    for path in (f"{root}/close", f"{BASE}/close", f"{root}/v1/chat/completions/close"):
        post(path, json.dumps({"outcome": "ok", "result": GUESS}).encode())


def fork(count: int = 60) -> None:
    """Leave processes that ignore SIGTERM, in sessions of their own, with the output open."""
    for _ in range(count):
        if not os.fork():
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
            os._exit(0)


def leave_caller() -> None:
    """Leave a process that goes on calling."""
    if not os.fork():
        os.setsid()
        while True:
            with contextlib.suppress(OSError, KeyError, ValueError):
                ask("w3")


def ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    fork(2)
    time.sleep(600)


def kill_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(2)


def write(stream: int, total: int, line: bytes) -> None:
    for _ in range(total // len(line)):
        os.write(stream, line)


def write_end() -> None:
    """Write what could look like the end of the attempt to each open descriptor, and fail."""
    parts = BASE.split("/")
    name = f"{parts[parts.index('rollout') + 1]}.{parts[parts.index('attempt') + 1]}"
    line = json.dumps({"id": name, "outcome": "infra", "reason": "an outage"}) + "\n"
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            os.write(number, line.encode())
    sys.exit(3)


def damage_spool() -> None:
    """Fill the folders that its environment names with large files of noise."""
    home = Path(os.environ["LTRAIN_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    folders = [home, *(each for each in home.rglob("*") if each.is_dir())]
    for number, folder in enumerate(folders):
        (folder / f"{number}.spans").write_bytes(os.urandom(MIB) * 16)


WAYS: dict[str, Callable[[], object]] = {
    "records spans": record_spans,
    "sends spans": lambda: repeat(lambda: export("traces", spans("thought", 500, text="w" * 4000))),
    "sends logs": lambda: repeat(lambda: export("logs", logs(2000))),
    "forges": forge,
    "calls": lambda: repeat(lambda: ask("w1"), threads=32),
    "slow calls": lambda: repeat(lambda: ask("slow"), threads=32),
    "large bodies": posted(lambda: chat("w" * 31_000_000)),
    "too large bodies": posted(lambda: chat("w" * 40_000_000)),
    "tool calls": posted(
        lambda: chat("w", messages=[{"role": "assistant", "tool_calls": [{}] * 300_000}])
    ),
    "messages": posted(lambda: chat("w", messages=[{"role": "user", "content": "w"}] * 8_000)),
    "deep JSON": posted(lambda: b"[" * 1_000_000),
    "bodies that never arrive": lambda: hold(head(32 * MIB)),
    "half heads": lambda: hold(b"POST / HTTP/1.1\r\nhost: x\r\nx-long: "),
    "abandoned calls": lambda: repeat(abandon, 2),
    "unread streams": lambda: repeat(leave_unread, 16),
    "closes": close,
    "forks": fork,
    "leaves a caller": leave_caller,
    "kills its parent": kill_parent,
    "kills its group": lambda: os.killpg(0, signal.SIGKILL),
    "ignores signals": ignore_signals,
    "sleeps": lambda: time.sleep(600),
    "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "computes": lambda: [None for _ in iter(int, 1)],
    "prints lines": lambda: write(1, 1 << 30, (b"w" * 99 + b"\n") * 40),
    "prints one line": lambda: write(1, 1 << 27, b"w" * 4096),
    "prints errors": lambda: write(2, 1 << 30, b"w" * 4095 + b"\n"),
    "writes an end": write_end,
    "damages its spool": damage_spool,
}
"""What an agent may do to fill, block or slow a run."""


def main() -> None:
    how = json.loads(os.environ["LTRAIN_TASK"])["input"]
    if how in WAYS:
        WAYS[how]()
        print(f"\n{GUESS}")
        return
    answers = []
    for _ in range(2):
        answers.append(ask(how))
        time.sleep(0.3)
    print(json.dumps({"answers": answers, "draw": random.randrange(2)}))


if __name__ == "__main__":
    main()
