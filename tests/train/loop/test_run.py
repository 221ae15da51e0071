"""What a run checks before it starts."""

import logging
import time
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp, open_empty_store

from ltrain_train.loop.run import warn_of_long_prompts


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
