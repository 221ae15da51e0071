"""CPU time that instrumentation adds to calls, spans and start-up, beside stock instrumentors."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from benchmarks.support.process_cost import NO_BYTECODE, children_cpu_seconds

AGENTS = Path(__file__).parent / "agents"
LAUNCHER = str(Path(sys.executable).with_name("opentelemetry-instrument"))
RUNS = 3
LETTERS = {"short": 500, "long": 20_000}
IMPORTS = {"openai": "import openai", "langchain": "import langchain_openai, langchain.agents"}
MAX_ADDED = 1.5
"""Limit of the CPU milliseconds added to a LangChain call with a short prompt."""

STOCK = {
    "OTEL_PYTHON_DISTRO": "distro",
    "OTEL_PYTHON_CONFIGURATOR": "configurator",
    "OTEL_TRACES_EXPORTER": "otlp_proto_http",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    # only two remain: OpenInference for LangChain, traceloop for openai
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "httpx,httpx2,threading,requests,aiohttp-client",
}
WAYS: Mapping[str, tuple[list[str], Mapping[str, str]]] = {
    "bare": ([sys.executable], {}),
    "stock": ([LAUNCHER, sys.executable], STOCK),
    "ltrain": ([LAUNCHER, sys.executable], {}),
}
"""Commands that start an agent, each with its environment."""


def environment(place: Path, port: int, extra: Mapping[str, str]) -> dict[str, str]:
    removed = ("OTEL_", "LTRAIN_", NO_BYTECODE)
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(removed)}
    addresses = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
        "OPENAI_API_KEY": "none",
        "LTRAIN_HOME": str(place / "home"),
    }
    return inherited | addresses | dict(extra)


def call_milliseconds(place: Path, port: int) -> dict[str, dict[str, float]]:
    """Return CPU milliseconds per call, by client and prompt, then by kind of start."""
    measured: dict[str, dict[str, list[float]]] = {}
    for _ in range(RUNS):  # alternating, so that other load affects all of them
        for client in IMPORTS:
            for size, letters in LETTERS.items():
                for way, (command, extra) in WAYS.items():
                    done = subprocess.run(
                        [*command, str(AGENTS / "calling.py"), client, str(letters)],
                        env=environment(place, port, extra),
                        check=True,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    each = measured.setdefault(f"{client} {size}", {}).setdefault(way, [])
                    each.append(float(done.stdout))
    return {what: {way: median(all_) for way, all_ in by.items()} for what, by in measured.items()}


def startup_seconds(place: Path, port: int) -> dict[str, dict[str, float]]:
    """Return CPU seconds of a process that only imports, by client, then by kind of start."""
    measured: dict[str, dict[str, list[float]]] = {}
    for _ in range(RUNS):
        for client, imports in IMPORTS.items():
            for way, (command, extra) in WAYS.items():
                before = children_cpu_seconds()
                environ = environment(place, port, extra)
                subprocess.run([*command, "-c", imports], env=environ, check=True)
                seconds = children_cpu_seconds() - before
                measured.setdefault(client, {}).setdefault(way, []).append(seconds)
    return {what: {way: median(all_) for way, all_ in by.items()} for what, by in measured.items()}


def print_spool_costs() -> None:
    """Print the cost of writing a span to disk, by the length of its prompt."""
    for letters in (500, 5000, 20_000):
        command = [sys.executable, str(AGENTS / "spooling.py"), str(letters)]
        runs = [json.loads(subprocess.check_output(command, text=True)) for _ in range(RUNS)]
        costs = {f"{part}_us": median(run[part] for run in runs) for part in runs[0]}
        print(json.dumps({"span_letters": letters, **costs}))


def main() -> None:
    print_spool_costs()
    with tempfile.TemporaryDirectory(prefix="ltrain-instrument-") as name:
        server = subprocess.Popen(
            [sys.executable, str(AGENTS / "answering.py")], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            calls = call_milliseconds(Path(name), port)
            starts = startup_seconds(Path(name), port)
        finally:
            server.kill()
            server.wait()
    added = {
        what: {way: round(by[way] - by["bare"], 2) for way in ("stock", "ltrain")}
        for what, by in calls.items()
    }
    for what, by in calls.items():
        print(json.dumps({"call": what, "bare_ms": round(by["bare"], 2), "added_ms": added[what]}))
    for client, by in starts.items():
        added_seconds = {way: round(by[way] - by["bare"], 2) for way in ("stock", "ltrain")}
        print(
            json.dumps({"start": client, "bare_s": round(by["bare"], 2), "added_s": added_seconds})
        )
    value, peer = added["langchain short"]["ltrain"], added["langchain short"]["stock"]
    print(
        json.dumps(
            {
                "name": "instrument",
                "value": value,
                "unit": f"CPU ms added to a LangChain call, short prompt, at most {MAX_ADDED:g}",
                "peer": peer,
                "ratio": round(value / peer, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
