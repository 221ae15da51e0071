"""Starts the servers that benchmarks call: a policy server that answers at once, store, gateway."""

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

AGENTS = Path(__file__).parents[1] / "agents"
LTRAIN = str(Path(sys.executable).with_name("ltrain"))


@dataclass(frozen=True)
class Stack:
    """A store, and a gateway in front of the policy server."""

    gateway: str
    """Its URL."""
    gateway_process: str
    """Its folder in /proc."""
    store: str
    """The URL for SQL."""
    environment: dict[str, str]
    """Variables of commands that use both."""


@contextmanager
def started(command: list[str], ready: str, **environment: str) -> Iterator[tuple[str, str]]:
    """Start a server; yield its folder in /proc and the group that `ready` finds in its output."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    printed = ""
    try:
        while (found := re.search(ready, printed)) is None:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"{command[0]} ended: {printed}")
            printed += line
        yield f"/proc/{process.pid}", found[1]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@contextmanager
def policy_server(pace: float = 0.002) -> Iterator[str]:
    """Start the policy server, which samples a token in `pace` seconds; yield its URL."""
    command = [sys.executable, str(AGENTS / "policy_server.py"), str(pace)]
    with started(command, r"(\d+)\n") as (_, port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def ltrain(place: Path, upstream: str) -> Iterator[Stack]:
    """Start `ltrain up`, and `ltrain serve` in front of a policy server."""
    with gateway(place, str(write_model(place / "model")), "--upstream", upstream) as stack:
        yield stack


@contextmanager
def gateway(place: Path, *arguments: str) -> Iterator[Stack]:
    """Start `ltrain up`, and `ltrain serve` with further arguments."""
    with ExitStack() as stack:
        environment = stack.enter_context(collector(place))
        serve = [LTRAIN, "serve", "--port", "0", *arguments]
        ready = r"gateway ready at (http://\S+)/v1"
        process, url = stack.enter_context(started(serve, ready, **environment))
        yield Stack(url, process, environment["LTRAIN_STORE"], environment)


@contextmanager
def collector(place: Path) -> Iterator[dict[str, str]]:
    """Start `ltrain up`; yield the variables of commands that use it."""
    ports = ["--otlp-port", "0", "--grpc-port", "0", "--http-port", "0"]
    home = {"LTRAIN_HOME": str(place / "home")}
    with started([LTRAIN, "up", *ports], r"(.*OTLP on .*SQL on .*)", **home) as (_, line):
        addresses = re.findall(r"http://[\d.:]+\d", line)
        yield {
            **home,
            "LTRAIN_STORE": addresses[-1],
            "OTEL_EXPORTER_OTLP_ENDPOINT": addresses[0],
        }


@contextmanager
def ui_pages(store: str, home: Path, *options: str) -> Iterator[tuple[str, httpx.Client]]:
    """Start `ltrain ui` and sign in; yield its folder in /proc and a client of its pages."""
    command = [LTRAIN, "ui", "--port", "0", "--store", store, *options]
    environment = {"LTRAIN_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    with started(command, r"open (http\S+)", **environment) as (process, link):
        address, _, code = link.partition("/#")
        with httpx.Client(base_url=address, timeout=600) as client:
            client.post("/session", content=code).raise_for_status()
            yield process, client


def write_model(folder: Path) -> Path:
    """Write the files of a model that nobody loads."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    return folder
