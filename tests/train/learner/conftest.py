"""A tiny model, rows for it, one learner and one process of plain torch that the tests share.

Files whose tests use `learner` have the group `learner` of xdist, so that one worker starts it.
"""

import gzip
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.train.tiny import write_model

from ltrain_train.learner.client import LearnerClient
from ltrain_train.policy import Reference
from ltrain_transforms.recipe import Train
from ltrain_transforms.tables import SAMPLES

HERE = Path(__file__).parent
WORDS = 512
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""The environment of a process of plain torch: its threads would wait for each other's core."""
torch.set_num_threads(1)


Rows = list[dict[str, Any]]


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., Rows]:
    """Return a function that makes rows of random words with different lengths and weights.

    Four rows are a group. Two of them have the prompt of the first, one of these at its
    temperature.
    """

    def make(count: int, seed: int = 0) -> Rows:
        draw = random.Random(seed)
        rows = [_row(f"s{i}", draw) for i in range(count)]
        for i, row in enumerate(rows):
            row["group_id"] = f"g{i // 4}"
        for first, second, third in zip(rows[::4], rows[1::4], rows[2::4], strict=False):
            second["prompt_ids"] = third["prompt_ids"] = first["prompt_ids"]
            second["temperature"] = first["temperature"]
        return rows

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Rows], Path]:
    """Return a function that writes rows as a samples file and returns its path."""
    return lambda rows: write_rows(rows, tmp_path)


def write_rows(rows: Rows, folder: Path) -> Path:
    """Write rows as a samples file and return its path."""
    pl.DataFrame(rows, schema=SAMPLES.schema).write_parquet(folder / "samples.parquet")
    return folder / "samples.parquet"


def _row(name: str, draw: random.Random) -> dict[str, Any]:
    length = draw.randint(1, 9)
    mask = [1, *(draw.choice((0, 1, 1)) for _ in range(length - 1))]
    return {
        "sample_id": name,
        "execution_id": f"{name}.1",
        "rollout_id": name,
        "group_id": "g",
        "policy": "tiny",
        "tokens": "sampled",
        "prompt_ids": [draw.randrange(WORDS) for _ in range(draw.randint(1, 30))],
        "response_ids": [draw.randrange(WORDS) for _ in range(length)],
        "response_mask": mask,
        "rollout_logprobs": [m * draw.uniform(-6.6, -5.9) for m in mask],
        "advantages": [m * draw.uniform(-2, 2) for m in mask],
        "token_rewards": [0.0] * length,
        "loss_weight": [m * draw.uniform(0.1, 3.0) for m in mask],
        "temperature": draw.choice((0.7, 1.0)),
        "call_offsets": [0],
        "call_constraints": None,
        "call_versions": [0],
        "call_positions": [0],
        "next_sample_id": None,
        "transition_ids": [f"{name}.t"],
    }


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Rows]]:
    """Yield a function that computes the learner's results of several cases in plain torch.

    One other process computes them, because torch takes seconds to import.
    """
    log = tmp_path_factory.mktemp("reference") / "stderr"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, HERE / "reference.py"],
            env=ONE_THREAD,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def run(model: Path, samples: Path, cases: Rows) -> Rows:
            print(json.dumps([str(model), str(samples), cases]), file=requests, flush=True)
            answer = json.loads(answers.readline() or json.dumps({"error": log.read_text()}))
            if "error" in answer:
                raise RuntimeError(answer["error"])
            results: Rows = answer["results"]
            return results

        yield run


@pytest.fixture(scope="session")
def reference(references: Callable[..., Rows]) -> Callable[..., dict[str, Any]]:
    """Return `references` for one case."""

    def run(model: Path, samples: Path, **case: Any) -> dict[str, Any]:
        [result] = references(model, samples, [case])
        return result

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"), seed=0)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of the shape of `tiny` with other weights."""
    return write_model(tmp_path_factory.mktemp("other"), seed=1)


class Sink(ThreadingHTTPServer):
    """An OTLP/HTTP collector that stores spans in memory."""

    daemon_threads = True

    def __init__(self) -> None:
        self.spans: list[Span] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    spans.extend(s for scope in resource.scope_spans for s in scope.spans)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)

    def step(self, dataset: str) -> dict[str, Any]:
        """Wait for the span of a training step on `dataset` and return its attributes.

        Spans of the steps of earlier tests arrive meanwhile.
        """
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for span in list(self.spans):
                attributes = _plain(span)
                if attributes.get("ltrain.dataset.id") == dataset:
                    assert span.name == "ltrain.train.step"
                    return attributes
            time.sleep(0.02)
        raise AssertionError(f"no training step on {dataset} arrived")


def _plain(span: Span) -> dict[str, Any]:
    values = {pair.key: pair.value for pair in span.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


@pytest.fixture(scope="session")
def sink() -> Iterator[Sink]:
    with Sink() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


TRAIN = Train(
    lora_rank=0,
    dtype="fp32",
    learning_rate=1e-3,
    tokens_per_micro_batch=64,
    loss_weighting="rollout",
    drift_warning=1.0,  # the rows have random log-probabilities
    drift_limit=2.0,
)


@pytest.fixture(scope="session")
def started(
    tiny: Path, other: Path, sink: Sink, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LearnerClient]:
    """Start a learner of all weights, with another model as its reference."""
    folder = tmp_path_factory.mktemp("run")
    client = LearnerClient(
        TRAIN,
        tiny,
        directory=folder,
        home=folder,
        policy="tiny",
        recipe="a-recipe",
        reference=Reference(other),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{sink.server_port}")
        client.start()
    try:
        client.wait(timeout=180)
        client.save(folder / "untrained")
        yield client
    finally:
        client.close()


@pytest.fixture
def learner(started: LearnerClient) -> LearnerClient:
    """Return the learner with the base model's weights, whatever the previous test did."""
    started.load(started.log.parent / "untrained")
    return started
