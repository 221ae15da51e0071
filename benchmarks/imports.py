"""`ltrain import` from a Phoenix server: spans a second, CPU, and the most memory."""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from benchmarks.ingest import LTRAIN
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ltrain_collector.signals import otlp_json
from ltrain_train.processes import free_port

ROOT = Path(__file__).parents[1]
PHOENIX = ROOT / ".venv-platforms" / "bin" / "phoenix"
"""Installed by `python3.11 -m setup.environments platforms`."""
CAPTURE = ROOT / "tests/fixtures/langgraph__openinference-0.1.80-genai.otlp.json"
SPANS = 100_000
STEP_S = 1.0


@contextmanager
def phoenix(folder: Path) -> Iterator[str]:
    """Run a server with its data in a folder, and yield its URL."""
    port = free_port()
    environ = {
        **os.environ,
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with (folder / "phoenix.log").open("w") as log:
        process = subprocess.Popen([PHOENIX, "serve"], env=environ, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        while not _answers(f"{url}/healthz"):
            assert process.poll() is None, (folder / "phoenix.log").read_text()
            time.sleep(STEP_S)
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except (URLError, OSError):
        return False


def requests(spans: int) -> Iterator[ExportTraceServiceRequest]:
    """Yield copies of a capture with ids of their own, until there are so many spans."""
    document, count, number = json.loads(CAPTURE.read_text()), 0, 0
    while count < spans:
        request = otlp_json.message_from_json(document, ExportTraceServiceRequest)
        begin = number.to_bytes(3)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    span.trace_id = begin + span.trace_id[3:]
                    span.span_id = begin + span.span_id[3:]
                    if span.parent_span_id:
                        span.parent_span_id = begin + span.parent_span_id[3:]
                    span.start_time_unix_nano += number * 1_000_000_000
                    span.end_time_unix_nano += number * 1_000_000_000
                    count += 1
        number += 1
        yield request


def fill(url: str, spans: int) -> int:
    """Send spans, wait until the server has stored them, and return how many there are."""
    sent = 0
    for request in requests(spans):
        body = request.SerializeToString()
        headers = {"Content-Type": "application/x-protobuf"}
        while not _send(Request(f"{url}/v1/traces", body, headers)):
            time.sleep(STEP_S)
        sent += sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)
    while count_spans(url) < sent:
        time.sleep(STEP_S)
    return sent


def _send(request: Request) -> bool:
    """Send a request, and return whether the server had room for it."""
    try:
        with urlopen(request, timeout=120):
            return True
    except HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return False


def count_spans(url: str) -> int:
    query = b'{"query": "{ projects { edges { node { recordCount } } } }"}'
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{url}/graphql", query, headers), timeout=120) as answer:
        projects = json.load(answer)["data"]["projects"]["edges"]
    return sum(each["node"]["recordCount"] for each in projects)


def measure(url: str, folder: Path) -> tuple[dict[str, int], float, float, float]:
    """Return the report of an import, its seconds, its CPU seconds and its most memory in MB."""
    source = f"{url.replace('http', 'phoenix', 1)}/default"
    command = [str(LTRAIN), "import", source, "--store", f"chdb://{folder / 'store'}", "--json"]
    start = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "LTRAIN_HOME": str(folder)}
    ) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start
    assert process.returncode == 0, printed
    cpu = used.ru_utime + used.ru_stime
    return json.loads(printed), seconds, cpu, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spans", type=int, default=SPANS)
    spans = parser.parse_args().spans
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with phoenix(folder) as url:
            sent = fill(url, spans)
            for nth in ("first", "again"):
                report, seconds, cpu, memory = measure(url, folder)
                assert report["stored"] == sent, report
                print(
                    f"{nth}: {sent:,} spans in {report['traces']:,} traces, {seconds:.0f} s, "
                    f"{sent / seconds:,.0f} a second, {cpu:.0f} s CPU, {memory:.0f} MB at most",
                    flush=True,
                )


if __name__ == "__main__":
    main()
