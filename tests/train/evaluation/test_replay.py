"""The gate `replay`: both versions answer stored prompts of production, and a judge scores them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.otlp import insert_otlp, open_empty_store

from ltrain_train.errors import BadRun
from ltrain_train.evaluation.replay import read_prompts, replay_recipe
from ltrain_transforms.deployment_file import (
    Deployment,
    Stage,
    read_deployments,
    record_deployment,
)
from ltrain_transforms.recipe import Recipe

RECIPE = """
[source]
mode = "prod"
trust = ["none"]
[[policy]]
name = "policy"

[[reward]]
use = "judge"
name = "helpful"
params = {{ rubric = "It is helpful.", model = "m", url = "{url}/v1" }}

[train]
lora_rank = 8

[deploy]
share = 0.25
gates = {{ replay = 0.1, replay_prompts = {prompts}, safety = {{ "failed calls" = 0 }} }}
"""
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


class Production:
    """Calls of users, as the gateway records them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._tracer = provider.get_tracer("ltrain.gateway")

    def call(self, text: str, *, part: str = "text", failed: bool = False, **more: str) -> None:
        """Add a call of `policy` with one message of a user."""
        messages = [{"role": "user", "parts": [{"type": part, "content": text}]}]
        attributes = {
            "ltrain.policy.name": "policy",
            "ltrain.mode": "prod",
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps(messages),
            "gen_ai.tool.definitions": json.dumps([TOOL]),
        }
        own = {name.replace("_", "."): value for name, value in more.items()}
        span = self._tracer.start_span("chat", attributes={**attributes, **own})
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end()

    @property
    def body(self) -> bytes:
        """All calls as an OTLP request."""
        body: bytes = encode_spans(self._exporter.get_finished_spans()).SerializeToString()
        return body


def test_prompts_are_those_of_users_with_messages_and_tools(tmp_path: Path) -> None:
    production = Production()
    production.call("older")
    production.call("an image", part="blob")
    production.call("failed", failed=True)
    production.call("a rollout", ltrain_mode="train")
    production.call("in the shadow", ltrain_mode="shadow")
    production.call("of another", ltrain_policy_name="other")
    production.call("newer")
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, production.body)
        found = read_prompts(store, "policy", 10, ["none", "local"])
        assert [each["input"][0]["content"] for each in found] == ["newer", "older"]
        assert found[0]["tools"] == [TOOL] and len({each["id"] for each in found}) == 2
        assert len(read_prompts(store, "policy", 1, ["none", "local"])) == 1
        reward = {"name": "thumbs", "evaluation": "thumbs"}
        recipe = Recipe.model_validate({"policy": [{"name": "nobody"}], "reward": [reward]})
        with pytest.raises(BadRun, match="no call of policy 'nobody' in production"):
            replay_recipe(recipe, "nobody", store, tmp_path)


class _Judge(BaseHTTPRequestHandler):
    """Likes the answers of version 1 best, and those of version 2 least."""

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["content-length"])).decode()
        score = 1.0 if "w1" in sent else 0.0 if "w2" in sent else 0.5
        message = {"role": "assistant", "content": json.dumps({"evidence": "…", "score": score})}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def judge() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Judge) as server:
        Thread(target=server.serve_forever, args=(0.02,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def production(project: Any) -> Iterator[None]:
    """Run a store with the calls of three users."""
    environ = project.environ
    ports = [
        environ[name].rpartition(":")[2] for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "LTRAIN_STORE")
    ]
    with ExitStack() as stack:
        options = ("--otlp-port", ports[0], "--http-port", ports[1])
        process = stack.enter_context(
            subprocess.Popen(
                project.command("up", *options),
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
                cwd=project.folder,
            )
        )
        stack.callback(process.terminate)
        assert process.stdout and process.stdout.readline().startswith("ltrain: store ready")
        calls = Production()
        for _ in range(3):
            calls.call("weights")
        sent = httpx.post(
            f"{environ['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/traces",
            content=calls.body,
            headers={"content-type": "application/x-protobuf"},
        )
        assert sent.status_code == 200
        yield


@pytest.mark.parametrize(
    ("version", "stage", "sentence"),
    [
        (1, "canary", "canary: on 3 prompts of production it differs from v0 by +0.500, at least"),
        (2, "retired", "retired: on 3 prompts of production it differs from v0 by -0.500, at"),
    ],
)
def test_a_candidate_answers_prompts_of_production_again(
    project: Any, production: None, judge: str, version: int, stage: str, sentence: str
) -> None:
    folder = project.home / "policies" / "policy"
    (project.folder / "ltrain.toml").write_text(RECIPE.format(url=judge, prompts=50))
    record_deployment(folder, Deployment.begin(version, by="ltrain", stage=Stage.CANDIDATE))
    done = project.ltrain("deploy", "decide", "policy")
    assert done.returncode == 0, done.stderr
    assert f"v{version} of policy 'policy' is {sentence}" in done.stdout
    last = read_deployments(folder)[-1]
    assert last.stage == stage and "(run replay-policy)" in last.reason
