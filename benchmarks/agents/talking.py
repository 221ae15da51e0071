"""Write OTLP requests like those of agents: `talking.py FILE REQUESTS SPANS [SEED]`.

A span has about 5 KB and twenty attributes; model calls and tool calls alternate. A rollout has ten
to forty spans. Each request follows its length, four bytes little-endian.
"""

import json
import random
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

SECOND = 10**9
MODELS = ("Qwen/Qwen3-8B", "gpt-5-mini", "meta-llama/Llama-3.1-8B-Instruct")
TOOLS = ("search", "python", "read_file", "click", "bash")
Value = str | int | float


class Words:
    """Text with the word frequencies of a language, so that it compresses like one."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        syllables = [a + b for a in "bcdfghjklmnprstvw" for b in "aeiou"]
        words = ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(6000)]
        weights = [1 / (place + 3) for place in range(len(words))]
        self._text = " ".join(chance.choices(words, weights, k=400_000))

    def text(self, letters: int) -> str:
        begin = self._chance.randrange(len(self._text) - letters)
        return self._text[begin : begin + letters]


def requests(count: int, spans: int, seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    words = Words(chance)
    systems = [words.text(300) for _ in range(8)]
    began = time.time_ns() - 7200 * SECOND
    for number in range(count):
        request = ExportTraceServiceRequest()
        group = request.resource_spans.add()
        _set_attributes(group.resource.attributes, _resource(chance))
        scoped = group.scope_spans.add()
        scoped.scope.name, scoped.scope.version = "opentelemetry.instrumentation.openai", "2.1b0"
        while (remaining := spans - len(scoped.spans)) > 0:
            at = began + number * 5 * SECOND + chance.randrange(3 * SECOND)
            rollout = _rollout(chance)
            trace, root = chance.randbytes(16), chance.randbytes(8)
            for place in range(min(remaining, chance.randint(10, 40))):
                span = scoped.spans.add(trace_id=trace, start_time_unix_nano=at)
                span.span_id = chance.randbytes(8) if place else root
                span.parent_span_id = root if place else b""
                at += chance.randrange(SECOND // 20, 4 * SECOND)
                span.end_time_unix_nano = at
                if place % 2:
                    _tool(span, chance, words, rollout)
                else:
                    _chat(span, chance, words, rollout, chance.choice(systems))
        yield request.SerializeToString()


def _resource(chance: random.Random) -> dict[str, Value]:
    return {
        "service.name": "agent-worker",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": "1.45.0",
        "service.instance.id": f"{chance.getrandbits(128):032x}",
        "host.name": f"node-{chance.randrange(8)}",
        "process.pid": chance.randrange(1 << 16),
        "ltrain.run.id": "bench",
    }


def _rollout(chance: random.Random) -> dict[str, Value]:
    return {
        "ltrain.rollout.id": f"{chance.getrandbits(64):016x}",
        "ltrain.attempt.id": 1,
        "ltrain.task.id": f"task-{chance.randrange(20_000):05}",
    }


def _chat(
    span: Span, chance: random.Random, words: Words, rollout: dict[str, Value], system: str
) -> None:
    model = chance.choice(MODELS)
    prompt, answer = words.text(chance.randint(1500, 5000)), words.text(chance.randint(500, 2000))
    span.name, span.kind = f"chat {model}", Span.SPAN_KIND_CLIENT
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": f"chatcmpl-{chance.getrandbits(128):032x}",
        "gen_ai.request.temperature": 0.7,
        "gen_ai.request.top_p": 0.95,
        "gen_ai.request.max_tokens": 2048,
        "gen_ai.usage.input_tokens": chance.randint(300, 9000),
        "gen_ai.usage.output_tokens": chance.randint(10, 900),
        "server.address": "127.0.0.1",
        "server.port": 8000,
        "gen_ai.input.messages": json.dumps([_message("system", system), _message("user", prompt)]),
        "gen_ai.output.messages": json.dumps([_message("assistant", answer)]),
    }
    _set_attributes(span.attributes, rollout | attributes)
    finish = span.attributes.add(key="gen_ai.response.finish_reasons").value.array_value
    finish.values.add(string_value="stop")
    if chance.random() < 0.3:
        event = span.events.add(name="gen_ai.choice", time_unix_nano=span.end_time_unix_nano)
        _set_attributes(event.attributes, {"index": 0, "finish_reason": "stop"})


def _tool(span: Span, chance: random.Random, words: Words, rollout: dict[str, Value]) -> None:
    tool = chance.choice(TOOLS)
    query, result = words.text(chance.randint(400, 1500)), words.text(chance.randint(1500, 6000))
    span.name, span.kind = f"execute_tool {tool}", Span.SPAN_KIND_INTERNAL
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.id": f"call_{chance.getrandbits(96):024x}",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": json.dumps({"query": query}),
        "gen_ai.tool.call.result": result,
    }
    _set_attributes(span.attributes, rollout | attributes)
    if chance.random() < 0.05:
        span.status.code, span.status.message = Status.STATUS_CODE_ERROR, "ToolError"
        event = span.events.add(name="exception", time_unix_nano=span.end_time_unix_nano)
        _set_attributes(event.attributes, {"exception.stacktrace": words.text(800)})


def _message(role: str, content: str) -> dict[str, object]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def _set_attributes(target: Any, attributes: dict[str, Value]) -> None:
    for key, value in attributes.items():
        kind = {str: "string_value", int: "int_value", float: "double_value"}[type(value)]
        setattr(target.add(key=key).value, kind, value)


def main() -> None:
    count, spans, *seed = map(int, sys.argv[2:])
    with Path(sys.argv[1]).open("wb") as file:
        for body in requests(count, spans, *(seed or [1])):
            file.write(struct.pack("<I", len(body)))
            file.write(body)


if __name__ == "__main__":
    main()
