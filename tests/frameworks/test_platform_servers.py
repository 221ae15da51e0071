"""Traces of four frameworks on a real Phoenix and MLflow: imported, they equal the originals.

The spans are captures of the frameworks' own instrumentations, with new ids in each copy.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import polars as pl
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.transforms.conftest import OPENAI, Attributes, Scene
from tests.up import running_up

from ltrain_collector.signals import otlp_json
from ltrain_collector.sources import Window, open_server
from ltrain_collector.store import Store
from ltrain_collector.transfer.from_server import import_server
from ltrain_collector.transfer.importing import import_files
from ltrain_train.processes import free_port
from ltrain_transforms.annotations import push_annotations
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".venv-platforms" / "bin"
ENVIRONMENT = "platforms"
CAPTURES = (
    "langgraph__openinference-0.1.80-genai",
    "openai-agents__openinference-2.6.0-genai",
    "pydantic-ai__builtin-2.68.0",
    "openai__otel-genai-openai-1.3b0",
)
SESSION: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "chat-7"}
COPIES = 26
"""So that there are more than 500 traces."""
START_S, ARRIVAL_S = 180, 180
COMPARED = (
    *("call_id", "execution_id", "kind", "name", "agent", "status", "model", "input", "output"),
    *("arguments", "tool_call_id", "tools", "input_tokens", "output_tokens", "requested_by"),
    *("policy", "policy_version", "token_source", "prompt_token_ids", "response_token_ids"),
    "response_logprobs",
)
TOKENS = 32_768
"""Token ids of a prompt, and of its answer."""


@contextmanager
def running(command: list[str], health: str, environment: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen(command, env={**os.environ, **environment})
    try:
        deadline = time.monotonic() + START_S
        while not _answers(health):
            assert process.poll() is None and time.monotonic() < deadline, command
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except (URLError, OSError):
        return False


def post(url: str, body: bytes, **headers: str) -> bytes:
    """Send a request; a server without room for it is asked again."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    deadline = time.monotonic() + ARRIVAL_S
    while True:
        try:
            with urlopen(Request(url, body, names), timeout=60) as answer:
                return bytes(answer.read())
        except HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                raise
            time.sleep(1)


def get(url: str) -> bytes:
    with urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def copies(capture: str) -> Iterator[ExportTraceServiceRequest]:
    document = json.loads((ROOT / "tests/fixtures" / f"{capture}.otlp.json").read_text())
    for number in range(COPIES):
        request = otlp_json.message_from_json(document, ExportTraceServiceRequest)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    span.trace_id = bytes([number]) + span.trace_id[1:]
                    span.span_id = bytes([number]) + span.span_id[1:]
                    if span.parent_span_id:
                        span.parent_span_id = bytes([number]) + span.parent_span_id[1:]
        yield request


@pytest.fixture(scope="module")
def requests() -> list[ExportTraceServiceRequest]:
    return [*(request for capture in CAPTURES for request in copies(capture)), recorded()]


def recorded() -> ExportTraceServiceRequest:
    """Return the spans of a long call that the gateway recorded, and of one without token ids."""
    scene, ids = Scene(), range(1, TOKENS + 1)
    attempt = scene.attempt()
    attempt.llm(prompt=ids, response=ids, gateway={"ltrain.recorder": "ltrain.gateway"})
    attempt.llm(ids=False, gateway={"ltrain.recorder": "ltrain.gateway"})
    request = ExportTraceServiceRequest()
    request.ParseFromString(scene.request())
    return request


def found(store: Store) -> list[dict[str, Any]]:
    source = Source(execution="trace", trust=("import",))
    spans, _ = read_spans(store, source, Selection())
    frame = calls(spans)[0].select(COMPARED).sort("call_id")
    # Phoenix adds the model's name as the output of an embedding
    output = pl.when(pl.col("kind") != "embedding").then("output")
    rows = frame.with_columns(output=output).to_dicts()
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    """Return JSON in a text as what it is: MLflow writes it with other spaces."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


@pytest.fixture
def direct(
    store: Store, requests: list[ExportTraceServiceRequest], tmp_path: Path
) -> list[dict[str, Any]]:
    """The calls of the same spans, stored directly; the store is empty again."""
    file = tmp_path / "spans.jsonl"
    lines = (json.dumps(otlp_json.message_to_json(request)) + "\n" for request in requests)
    file.write_text("".join(lines))
    import_files(store, [file], lambda _: None)
    calls_of_spans = found(store)
    store.command("TRUNCATE TABLE otel.otel_traces")
    return calls_of_spans


def check(store: Store, source: str, direct: list[dict[str, Any]]) -> None:
    address, server = open_server(source)
    counts, traces, _ = import_server(store, str(address), server, Window(), lambda _: None)
    assert counts.places == []
    assert traces > 500
    assert found(store) == direct


def wait_for(arrived: Callable[[], int], spans: int) -> None:
    deadline = time.monotonic() + ARRIVAL_S
    while arrived() < spans:
        assert time.monotonic() < deadline
        time.sleep(1)


@contextmanager
def running_phoenix(folder: Path) -> Iterator[int]:
    """Run Phoenix with its data in a folder; yield its port."""
    port = free_port()
    environment = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    health = f"http://127.0.0.1:{port}/healthz"
    with running([str(PROGRAMS / "phoenix"), "serve"], health, environment):
        yield port


def test_phoenix(
    tmp_path: Path,
    store: Store,
    requests: list[ExportTraceServiceRequest],
    direct: list[dict[str, Any]],
) -> None:
    with running_phoenix(tmp_path) as port:
        url = f"http://127.0.0.1:{port}"
        for request in requests:
            body = request.SerializeToString()
            post(f"{url}/v1/traces", body, content_type="application/x-protobuf")

        def arrived() -> int:
            query = b'{"query": "{ projects { edges { node { recordCount } } } }"}'
            answer = json.loads(post(f"{url}/graphql", query, content_type="application/json"))
            edges = answer["data"]["projects"]["edges"]
            return sum(edge["node"]["recordCount"] for edge in edges)

        wait_for(arrived, sum(map(_count, requests)))
        check(store, f"phoenix://127.0.0.1:{port}/default", direct)


def test_phoenix_gets_forwarded_traces_and_their_rewards(tmp_path: Path) -> None:
    scene = Scene()
    attempt = scene.attempt()
    call = attempt.llm()
    attempt.evaluate(0.5, "polite", scope="call", parent=call, explanation="It greets.")
    attempt.evaluate(1.0)
    attempt.emit("chat", OPENAI, SESSION)
    attempt.close()
    with running_phoenix(tmp_path) as port:
        address = f"http://127.0.0.1:{port}"
        store = tmp_path / "home" / "store"
        with running_up(store, "--forward", f"phoenix={address}") as up:
            url = f"{up.endpoint}/v1/traces"
            post(url, scene.request(), content_type="application/x-protobuf")
            feedback = {"session": "chat-7", "name": "thumbs", "value": 1}
            body = json.dumps(feedback).encode()
            post(f"{up.endpoint}/v1/feedback", body, content_type="application/json")

            def pushed() -> int:
                return push_annotations(f"phoenix://127.0.0.1:{port}", up.dsn, None, None)[0]

            wait_for(pushed, 3)
            assert pushed() == 3
        project = f"{address}/v1/projects/default"
        spans = f"{project}/span_annotations?span_ids={call}"
        traces = f"{project}/trace_annotations?trace_ids={attempt.trace}"
        sessions = f"{project}/session_annotations?session_ids=chat-7"
        found = [each for url in (spans, traces, sessions) for each in json.loads(get(url))["data"]]
    assert [(each["name"], each["result"]["score"]) for each in found] == [
        ("polite", 0.5),
        ("reward", 1.0),
        ("thumbs", 1.0),
    ]


def test_mlflow(
    tmp_path: Path,
    store: Store,
    requests: list[ExportTraceServiceRequest],
    direct: list[dict[str, Any]],
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    database = f"sqlite:///{tmp_path / 'mlflow.db'}"
    command = [str(PROGRAMS / "mlflow"), "server", "--port", str(port), "--workers", "1"]
    path = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    with running([*command, "--backend-store-uri", database], f"{url}/health", path):
        for request in requests:
            post(
                f"{url}/v1/traces",
                request.SerializeToString(),
                content_type="application/x-protobuf",
                x_mlflow_experiment_id="0",
            )
        check(store, f"mlflow://127.0.0.1:{port}/Default", direct)


def _count(request: ExportTraceServiceRequest) -> int:
    return sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)
