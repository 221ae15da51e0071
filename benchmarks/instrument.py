"""CPU that instrumentation adds to calls, a span and a start, beside the stock instrumentors."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

AGENTS = Path(__file__).parent / "agents"
LAUNCHER = str(Path(sys.executable).with_name("opentelemetry-instrument"))
RUNS = 3
LETTERS = {"short": 500, "long": 20_000}
IMPORTS = {"openai": "import openai", "langchain": "import langchain_openai, langchain.agents"}
AT_MOST = 1.5
"""CPU milliseconds that may be added to a LangChain call, short prompt."""

STOCK = {
    "OTEL_PYTHON_DISTRO": "distro",
    "OTEL_PYTHON_CONFIGURATOR": "configurator",
    "OTEL_TRACES_EXPORTER": "otlp_proto_http",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    # the pair alone: OpenInference for LangChain, traceloop for openai
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "httpx,httpx2,threading,requests,aiohttp-client",
}
WAYS: Mapping[str, tuple[list[str], Mapping[str, str]]] = {
    "bare": ([sys.executable], {}),
    "stock": ([LAUNCHER, sys.executable], STOCK),
    "ltrain": ([LAUNCHER, sys.executable], {}),
}
"""How an agent is started, and with which environment."""


def environment(place: Path, port: int, extra: Mapping[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "LTRAIN_"))}
    given = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
        "OPENAI_API_KEY": "none",
        "LTRAIN_HOME": str(place / "home"),
    }
    return kept | given | dict(extra)


def added_a_call(place: Path, port: int) -> dict[str, dict[str, float]]:
    """Give CPU milliseconds of each call, by client and prompt, then by way."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(RUNS):  # in turns, so that a busy machine weighs on all
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
                    each = found.setdefault(f"{client} {size}", {}).setdefault(way, [])
                    each.append(float(done.stdout))
    return {what: {way: median(all_) for way, all_ in by.items()} for what, by in found.items()}


def start_up(place: Path, port: int) -> dict[str, dict[str, float]]:
    """Give CPU seconds of a process that only imports, by client, then by way."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(RUNS):
        for client, imports in IMPORTS.items():
            for way, (command, extra) in WAYS.items():
                before = os.times()
                given = environment(place, port, extra)
                subprocess.run([*command, "-c", imports], env=given, check=True)
                after = os.times()
                took = after.children_user + after.children_system
                took -= before.children_user + before.children_system
                found.setdefault(client, {}).setdefault(way, []).append(took)
    return {what: {way: median(all_) for way, all_ in by.items()} for what, by in found.items()}


def spooled() -> None:
    """Print what a span costs on its way to the disk, by the length of its prompt."""
    for letters in (500, 5000, 20_000):
        command = [sys.executable, str(AGENTS / "spooling.py"), str(letters)]
        runs = [json.loads(subprocess.check_output(command, text=True)) for _ in range(RUNS)]
        found = {f"{part}_us": median(run[part] for run in runs) for part in runs[0]}
        print(json.dumps({"span_letters": letters, **found}))


def main() -> None:
    spooled()
    with tempfile.TemporaryDirectory(prefix="ltrain-instrument-") as name:
        server = subprocess.Popen(
            [sys.executable, str(AGENTS / "answering.py")], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            calls = added_a_call(Path(name), port)
            starts = start_up(Path(name), port)
        finally:
            server.kill()
            server.wait()
    over = {
        what: {way: round(by[way] - by["bare"], 2) for way in ("stock", "ltrain")}
        for what, by in calls.items()
    }
    for what, by in calls.items():
        print(json.dumps({"call": what, "bare_ms": round(by["bare"], 2), "added_ms": over[what]}))
    for client, by in starts.items():
        took = {way: round(by[way] - by["bare"], 2) for way in ("stock", "ltrain")}
        print(json.dumps({"start": client, "bare_s": round(by["bare"], 2), "added_s": took}))
    value, peer = over["langchain short"]["ltrain"], over["langchain short"]["stock"]
    print(
        json.dumps(
            {
                "name": "instrument",
                "value": value,
                "unit": f"CPU ms added to a LangChain call, short prompt, at most {AT_MOST:g}",
                "peer": peer,
                "ratio": round(value / peer, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
