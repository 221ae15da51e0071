"""A sandbox keeps an agent from gold, secrets, neighbours and the network."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.runners import make_runner
from tests.sandboxed import sandbox_of, write_project
from tests.security.served import Served, serving

from ltrain_collector.store import Store
from ltrain_train.rollout import Runner, Task

LOOK = """
import json, os, socket, time
from pathlib import Path
import urllib.request
from opentelemetry import trace

task = json.loads(os.environ["LTRAIN_TASK"])
hints = task["input"]


def fails(act):
    try:
        act()
    except OSError:
        return True
    return False


def connect(address):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address if isinstance(address, str) else tuple(address))


with trace.get_tracer("agent").start_as_current_span("look"):
    work = Path(os.environ["LTRAIN_WORKSPACE"])
found = {"neighbour": (work / "mine").exists() or Path("/tmp/mine").exists()}
(work / "mine").touch(), Path("/tmp/mine").touch()
time.sleep(1)  # the neighbour has left its marks meanwhile
for name, path in hints["files"].items():
    found[name] = fails(lambda: Path(path).read_bytes())
    found[f"write {name}"] = fails(lambda: Path(path).write_bytes(b"x"))
for name, address in hints["addresses"].items():
    found[f"connect {name}"] = fails(lambda: connect(address))
for name in ("environ", "mem", "fd/0", "root/etc"):
    found[f"process 1 {name}"] = fails(lambda: os.listdir(f"/proc/1/{name}")) and fails(
        lambda: open(f"/proc/1/{name}", "rb").read(1)
    )
found["signal 1"] = fails(lambda: os.kill(1, 9)) or "no effect"
pattern = Path("/proc/sys/kernel/core_pattern")
found["sysctl"] = fails(lambda: pattern.write_text(pattern.read_text()))
found["processes"] = [
    Path(f"/proc/{name}/cmdline").read_bytes().decode() for name in os.listdir("/proc")
    if name.isdigit() and name != "1"
]
found["user namespace"] = fails(lambda: os.unshare(0x10000000)) if hasattr(os, "unshare") else True
found["private keys"] = not any(
    Path(path).exists() for path in ("/etc/ssl/private", "/etc/pki/tls/private", "/etc/ssh")
)
found["environment"] = dict(os.environ)
found["root"] = sorted(os.listdir("/"))
found["folder"] = os.listdir(".")
with urllib.request.urlopen(
    urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": [{"role": "user", "content": "?"}]}).encode(),
        {"content-type": "application/json",
         "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
) as answer:
    found["gateway"] = answer.status
print(json.dumps(found))
"""

EXHAUST = """
import json, os, sys, time
kind = json.loads(os.environ["LTRAIN_TASK"])["input"]
if kind == "fork bomb":
    while True:
        try:
            os.fork()
        except OSError:
            pass
if kind == "memory":
    kept = []
    while True:
        kept.append(bytearray(10 << 20))
        if len(kept) == 12 and os.fork() == 0:
            kept = []
if kind == "disk":
    for folder in ("/tmp", os.environ["LTRAIN_WORKSPACE"], "/dev/shm"):
        try:
            for number in range(10000):
                open(f"{folder}/{number}", "wb").write(bytes(1 << 20))
        except OSError:
            pass
    os.truncate(os.environ["LTRAIN_WORKSPACE"] + "/0", 1 << 20)
if kind == "daemon":
    if os.fork() == 0:
        os.setsid()
        time.sleep(987.5)
time.sleep(2 if kind == "good" else 0)
print(json.dumps(kind))
"""


MARK = uuid4().hex
"""In the command line of every process of an attempt."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the key of the cloud")
    with serving(tmp_path / "home", monkeypatch) as served:
        yield served


@pytest.fixture
def start(served: Served, tmp_path: Path) -> Iterator[Callable[..., Runner]]:
    with ExitStack() as stack:

        def started(agent: str, **limits: int) -> Runner:
            folder = write_project(tmp_path / "project", agent)
            runner = make_runner(
                run="r", agent=f"python agent.py {MARK}", reward="scored:score", folder=folder,
                gateway=served.gateway.url, policy="policy", home=served.home, workers=3,
                secret=(served.home / "store.secret").read_text().strip(), timeout=60.0,
                sandbox=sandbox_of(folder, limits=limits),
            )  # fmt: skip
            return stack.enter_context(runner)

        yield started


def task(name: str, kept: Path, **more: Any) -> Task:
    return Task.model_validate({"id": name, "gold": "forty-two", "kept": str(kept), **more})


def test_an_agent_reaches_no_gold_secret_neighbour_or_network(
    start: Callable[..., Runner], served: Served, tmp_path: Path
) -> None:
    runner = start(LOOK)
    project = tmp_path / "project"
    (project / "answers").write_text("forty-two")
    vllm = str(tmp_path / "vllm.sock")
    files = {
        "secret": served.home / "store.secret",
        "tasks": project / "tasks.jsonl",
        "reward": project / "scored.py",
        "other file": project / "answers",
        "runner": Path(f"/proc/{os.getpid()}/environ"),
        "password file": "/etc/shadow",
        "agent": "/usr/bin/evil",
        "socket": vllm,
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(vllm)
        server.listen()
        hints = {
            "files": {name: str(path) for name, path in files.items()},
            "addresses": {
                "clickhouse": ("127.0.0.1", served.up.sql),
                "grpc": ("127.0.0.1", served.up.grpc),
                "internet": ("1.1.1.1", 53),
                "vllm": vllm,
            },
        }
        tasks = [task(name, tmp_path / name, input=hints) for name in ("a", "b")]
        results = runner.run("train", 0, tasks, 1, sampling={})
    assert [each.reason for each in results] == ["", ""]
    for name in ("a", "b"):
        found = json.loads((tmp_path / name).read_text())["result"]
        environment = found.pop("environment")
        assert "cloud" not in json.dumps(environment)
        assert not {"LTRAIN_STORE", "LTRAIN_STORE_SECRET"} & set(environment)
        assert found.pop("folder") == ["agent.py"]
        assert found.pop("gateway") == 200
        assert found.pop("neighbour") is False
        assert all("agent.py" in line for line in found.pop("processes"))
        assert "home" not in found.pop("root")
        assert found.pop("signal 1") == "no effect"
        found.pop("write socket")  # in /tmp it is a new file of the attempt's own
        assert found == dict.fromkeys(found, True)
    runner.__exit__(None, None, None)
    until = time.monotonic() + 10
    with Store.open(served.up.dsn) as store:
        sql = "SELECT count() AS spans FROM otel.spans WHERE SpanName = 'look'"
        while store.query(sql)["spans"][0] < 2 and time.monotonic() < until:
            time.sleep(0.1)
        assert store.query(sql)["spans"][0] == 2


@pytest.mark.parametrize("kind", ["fork bomb", "memory", "disk", "daemon"])
def test_an_agent_that_exhausts_its_sandbox_leaves_its_neighbours_alone(
    start: Callable[..., Runner], tmp_path: Path, kind: str
) -> None:
    runner = start(EXHAUST, memory_mib=400, processes=40, disk_mib=16)
    tasks = [task(each, tmp_path / each.replace(" ", ""), input=each) for each in (kind, "good")]
    results = runner.run("train", 0, tasks, 1, sampling={})
    outcomes = {each.identity.task: (each.outcome, each.reason) for each in results}
    assert outcomes["good"] == ("ok", "")
    if kind in ("fork bomb", "memory"):
        assert outcomes[kind][0] == "error"
    else:
        assert outcomes[kind] == ("ok", "")
    commands = Path("/proc").glob("[0-9]*/cmdline")
    assert not any(MARK.encode() in line for line in map(_read, commands))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
