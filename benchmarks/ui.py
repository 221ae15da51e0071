"""Pages of `ltrain ui` in Chromium: a rollout of 10,000 calls beside one of 1,000."""

import argparse
import tempfile
from pathlib import Path

from ltrain_collector.store import Store

CALLS = (1_000, 10_000)
"""Calls of the rollouts that are compared."""
GROUP = 8
"""Rollouts of a group, of which all have the same number of calls."""
CALLS_A_STEP = 3
STEPS_AN_INSERT = 500
RECIPE = """
source = { run = "bench" }
policy = [{ name = "sql", agents = ["write"] }]

[[reward]]
name = "answer"
evaluation = "reward"

[[reward]]
name = "tool-failed"
on = "tool"
when = "status = 'error'"
value = "-0.2"
credit_to = "requester"
"""

# A step is a node of a graph with a model call, which two spans describe, and the tool that the
# model requests: three calls. The agent keeps the last eight messages, of 400 characters each.
SPANS = """
WITH
    toInt64(number) AS step,
    '@rollout' AS rollout,
    map('ltrain.run.id', 'bench', 'ltrain.rollout.id', rollout, 'ltrain.attempt.id', '1',
        'ltrain.task.id', '@task', 'ltrain.mode', 'train', 'ltrain.wave', '0',
        'ltrain.sample.index', '@sample') AS identity,
    1790000000000000000 + step * 200000000 AS began,
    part -> substring(repeat(lower(hex(MD5(concat(rollout, part)))), 13), 1, 400) AS words,
    part -> concat('"parts":[{"type":"text","content":"', words(part), '"}]') AS text,
    turn -> concat('{"role":"assistant","parts":[{"type":"text","content":"',
        words(toString(turn)), '"},{"type":"tool_call","id":"', toString(turn),
        '","name":"execute_query","arguments":{"query":"SELECT ', toString(turn),
        '"}}]') AS answer,
    turn -> concat(',', answer(turn), '},{"role":"tool","parts":[{"type":"tool_call_response",',
        '"id":"', toString(turn), '","response":"', words(concat('r', toString(turn))),
        '"}]}') AS past,
    concat('[{"role":"system",', text('s'), '},{"role":"user",', text('q'), '}',
        arrayStringConcat(arrayMap(turn -> past(turn), range(greatest(step - 3, 0), step))),
        ']') AS asked,
    concat('[', answer(step), ',"finish_reason":"stop"}]') AS answered,
    arrayMap(i -> toString(cityHash64(rollout, step, i) % 49152), range(1150)) AS tokens,
    mapConcat(identity, map('gen_ai.operation.name', 'chat', 'gen_ai.request.model', 'sql',
        'gen_ai.response.id', concat('chatcmpl-', rollout, '-', toString(step)),
        'gen_ai.input.messages', asked, 'gen_ai.output.messages', answered)) AS chat,
    'openinference.instrumentation.langchain' AS langchain,
    n -> concat(substring(rollout, 1, 8), leftPad(lower(hex(toUInt32(n))), 8, '0')) AS id
SELECT
    fromUnixTimestamp64Nano(toInt64(began + span.2)) AS Timestamp, rollout AS TraceId,
    id(step * 4 + 16 + span.1) AS SpanId,
    if(span.3 < 0, id(1), id(step * 4 + 16 + span.3)) AS ParentSpanId,
    span.4 AS SpanName, span.5 AS ScopeName, toUInt64(span.6) AS Duration,
    map('service.name', span.7, 'service.instance.id', span.7) AS ResourceAttributes,
    span.8 AS SpanAttributes, span.9 AS StatusCode
FROM numbers(@first, @count)
ARRAY JOIN [
    (0, 0, -1, 'write', langchain, 150000000, 'worker', mapConcat(identity, map(
        'openinference.span.kind', 'CHAIN', 'metadata', '{"langgraph_node":"write"}')), 'Ok'),
    (1, 1000000, 0, 'ChatOpenAI', langchain, 90000000, 'worker', mapConcat(chat, map(
        'openinference.span.kind', 'LLM', 'llm.model_name', 'sql',
        'metadata', '{"langgraph_node":"write"}')), 'Ok'),
    (2, 2000000, 1, 'chat sql', 'ltrain.gateway', 80000000, 'gateway', mapConcat(chat, map(
        'gen_ai.usage.input_tokens', '1100', 'gen_ai.usage.output_tokens', '50',
        'ltrain.policy.name', 'sql', 'ltrain.policy.version', '0',
        'gen_ai.request.temperature', '1.0',
        'ltrain.prompt_token_ids',
            concat('[', arrayStringConcat(arraySlice(tokens, 1, 1100), ','), ']'),
        'ltrain.prompt_token_count', '1100',
        'ltrain.response_token_ids',
            concat('[', arrayStringConcat(arraySlice(tokens, 1101, 50), ','), ']'),
        'ltrain.response_token_count', '50',
        'ltrain.response_logprobs',
            base64Encode(repeat(reinterpretAsString(toFloat32(-0.7132)), 50)))), 'Ok'),
    (3, 100000000, 0, 'execute_query', langchain, 20000000, 'worker', mapConcat(identity, map(
        'openinference.span.kind', 'TOOL', 'tool.name', 'execute_query',
        'tool.id', toString(step), 'input.value', concat('{"query":"SELECT ', toString(step), '"}'),
        'output.value', words(concat('r', toString(step))))),
        if(step % 10 = 3, 'Error', 'Ok'))
] AS span
"""

# The root of the graph, the outcome reward, and the spans with which the runner closes the attempt.
ENDS = """
WITH '@rollout' AS rollout, toInt64(@steps * 200000000) AS length,
    map('ltrain.run.id', 'bench', 'ltrain.rollout.id', rollout, 'ltrain.attempt.id', '1',
        'ltrain.task.id', '@task', 'ltrain.mode', 'train', 'ltrain.wave', '0',
        'ltrain.sample.index', '@sample') AS identity,
    n -> concat(substring(rollout, 1, 8), leftPad(lower(hex(toUInt32(n))), 8, '0')) AS id
SELECT
    fromUnixTimestamp64Nano(toInt64(1790000000000000000 + span.1)) AS Timestamp, rollout AS TraceId,
    id(span.2) AS SpanId, '' AS ParentSpanId, span.3 AS SpanName, span.4 AS ScopeName,
    toUInt64(span.5) AS Duration,
    map('service.name', span.6, 'service.instance.id', span.6) AS ResourceAttributes,
    mapConcat(identity, span.7) AS SpanAttributes, 'Ok' AS StatusCode
FROM numbers(1)
ARRAY JOIN [
    (0, 1, 'LangGraph', 'openinference.instrumentation.langchain', length, 'worker',
        map('openinference.span.kind', 'CHAIN')),
    (length, 2, 'gen_ai.evaluation.result', 'ltrain.runner', 1000, 'runner',
        map('gen_ai.evaluation.name', 'reward', 'ltrain.reward.scope', 'rollout',
            'gen_ai.evaluation.score.value', toString(@sample % 2))),
    (length + 1000000, 3, 'ltrain.process', 'ltrain.instrument', 1000, 'worker',
        map('ltrain.rollout.spans', toString(@steps * 3 + 1))),
    (length + 1000000, 4, 'ltrain.process', 'ltrain.instrument', 1000, 'gateway',
        map('ltrain.rollout.spans', toString(@steps))),
    (0, 5, 'ltrain.rollout', 'ltrain.runner', length + 2000000, 'runner',
        map('ltrain.rollout.outcome', 'ok', 'ltrain.rollout.spans', '1',
            'ltrain.tasks.digest', 'd1g357'))
] AS span
"""
COLUMNS = (
    "Timestamp, TraceId, SpanId, ParentSpanId, SpanName, ScopeName, Duration, ResourceAttributes, "
    "SpanAttributes, StatusCode"
)


def rollout_id(calls: int, sample: int) -> str:
    """Return the id of a rollout with this number of calls."""
    return f"{calls:x}{sample}".ljust(32, "c")


def fill(store: Store, calls: int, samples: int) -> None:
    """Write a group of rollouts with `calls` calls each."""
    steps = (calls - 1) // CALLS_A_STEP
    for sample in range(samples):
        names = {"rollout": rollout_id(calls, sample), "task": f"of {calls}", "sample": sample}
        _insert(store, ENDS, names | {"steps": steps})
        for first in range(0, steps, STEPS_AN_INSERT):
            count = min(STEPS_AN_INSERT, steps - first)
            _insert(store, SPANS, names | {"first": first, "count": count})
    store.command("OPTIMIZE TABLE otel.otel_traces FINAL")


def _insert(store: Store, sql: str, values: dict[str, object]) -> None:
    for name, value in values.items():
        sql = sql.replace(f"@{name}", str(value))
    store.command(f"INSERT INTO otel.otel_traces ({COLUMNS}) {sql}")
