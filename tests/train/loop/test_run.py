"""What a run checks before it starts."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_train.gateway import GatewayClient
from ltrain_train.gateway.serving.publish_choice import PublishChoice
from ltrain_train.loop.run import describe_choices, warn_of_long_prompts
from ltrain_train.publishing import registers_adapters
from ltrain_transforms.recipe import Recipe


def llm_call(input_tokens: int, operation: str = "chat") -> bytes:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name="chat")
    span.trace_id, span.span_id = input_tokens.to_bytes(16), input_tokens.to_bytes(8)
    span.start_time_unix_nano = time.time_ns()
    span.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = input_tokens
    span.attributes.add(key="gen_ai.operation.name").value.string_value = operation
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(("limit", "warns"), [(None, False), (1300, False), (1200, True)])
def test_a_stored_prompt_that_the_gateway_would_refuse_is_a_warning(
    tmp_path: Path, limit: int | None, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with open_empty_store(tmp_path / "store") as store, caplog.at_level(logging.WARNING):
        warn_of_long_prompts(store, 1)  # there is none yet
        assert not caplog.text
        for tokens in (7, 1200):
            insert_otlp(store, llm_call(tokens))
        insert_otlp(store, llm_call(9000, "invoke_agent"))  # the sum of its calls
        warn_of_long_prompts(store, limit)
    assert ("the store has a prompt of 1200 tokens, and the gateway" in caplog.text) == warns
    assert ("serve.max_model_len" in caplog.text) == warns


class Starting(BaseHTTPRequestHandler):
    """A gateway that ends the first connection, as one that is killed while it starts does."""

    paths: ClassVar[list[str]] = []

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.paths.append(self.path)
        if len(self.paths) > 1:
            body = b'{"current": 0, "publish": "merged", "publish_reason": "of a test"}'
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


@pytest.fixture
def starting() -> Iterator[GatewayClient]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Starting) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with closing(GatewayClient(f"http://127.0.0.1:{server.server_port}", "s" * 32)) as gateway:
            yield gateway
        server.shutdown()
    assert Starting.paths == ["/admin/policies/p"] * 2
    Starting.paths.clear()


def test_the_start_of_a_run_outlives_its_gateway(starting: GatewayClient) -> None:
    choice = PublishChoice("merged", "of a test")
    assert describe_choices(starting, ["p"]) == {choice.describe()}


def test_an_update_outlives_the_gateway(starting: GatewayClient) -> None:
    policy, reward = {"name": "p"}, {"name": "r", "evaluation": "r"}
    sections = {"policy": [policy], "reward": [reward], "train": {"lora_rank": 8}}
    assert registers_adapters(Recipe.from_sections(sections), "p", starting) is False
