"""Stored spans to parquet samples: spans per minute, MB/s and peak memory, at several sizes."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from hashlib import md5
from pathlib import Path
from typing import Any

from benchmarks.support.process_cost import run_measured

from ltrain_collector.store import Store

SPANS = 16
"""Spans of a rollout."""
PEER_ROLLOUTS = 1_000
TASKS = 128
"""Tasks of a wave; each has a group of eight rollouts."""
TOKENS = 2_100
"""Tokens of a rollout's last chat: half are its first prompt, and a message has a fourteenth."""
CHUNK = 2_500
"""Rollouts per INSERT."""

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

# A rollout: a LangGraph agent with four turns and one tool, which the first turn calls. The prompt
# of a turn is the chat so far: the previous prompt, its answer and a message of 150 tokens. That is
# 1,050, 1,350, 1,650 and 1,950 tokens; each turn samples 150. Fewer `TOKENS` shorten all of them.
SOURCE = """
WITH
    {first} + number AS n,
    hex(MD5(toString(n))) AS rollout,
    n % {run_rollouts} AS of_run,
    intDiv(of_run, 8) AS group_number,
    map('ltrain.run.id', if(n < {run_rollouts}, 'bench',
            concat('bench-', toString(intDiv(n, {run_rollouts})))),
        'ltrain.rollout.id', rollout, 'ltrain.attempt.id', '1',
        'ltrain.task.id', concat('t', toString(group_number % {tasks})), 'ltrain.mode', 'train',
        'ltrain.wave', toString(intDiv(group_number, {tasks})),
        'ltrain.sample.index', toString(of_run % 8)) AS identity,
    arrayMap(i -> toString(cityHash64(n, i) % 49152), range({tokens})) AS tokens,
    toUInt64(1790000000000000000 + n * 1000000000) AS began,
    map('service.name', 'agent', 'service.instance.id', 'worker',
        'ltrain.sender', 'ingest') AS worker,
    map('service.name', 'ltrain.gateway', 'service.instance.id', 'gateway',
        'ltrain.sender', 'service') AS gateway,
    map('service.name', 'ltrain.runner', 'service.instance.id', 'runner',
        'ltrain.sender', 'service') AS runner,
    turn -> {prompt} + 2 * {message} * turn AS prompt_length,
    (first, count) -> arrayStringConcat(arraySlice(tokens, first + 1, count), ' ') AS words,
    text -> concat('"parts":[{"type":"text","content":"', text, '"}') AS part,
    turn -> concat('{"role":"assistant",', part(words(prompt_length(turn), {message})),
        if(turn > 0, ']', concat(',{"type":"tool_call","id":"1","name":"execute_query",',
            '"arguments":{"query":"SELECT 1"}}]'))) AS answer,
    turn -> words(prompt_length(turn) + {message}, {message}) AS next,
    turn -> concat(if(turn > 0, concat('{"role":"user",', part(next(turn))),
        concat('{"role":"tool","parts":[{"type":"tool_call_response","id":"1","response":"',
            next(turn), '"}')), ']}') AS reply,
    turn -> concat('[{"role":"user",', part(words(0, {prompt})), ']}', arrayStringConcat(arrayMap(
        before -> concat(',', answer(before), '},', reply(before)), range(turn))), ']') AS asked,
    turn -> concat('[', answer(turn), ',"finish_reason":"stop"}]') AS answered,
    concat('{"question":"q', toString(group_number), '","steps":') AS state
SELECT
    fromUnixTimestamp64Nano(toInt64(began + span.2)) AS Timestamp,
    rollout AS TraceId,
    concat(substring(rollout, 1, 14), lower(hex(toUInt8(span.1)))) AS SpanId,
    if(span.3 = 0, '', concat(substring(rollout, 1, 14), lower(hex(toUInt8(span.3)))))
        AS ParentSpanId,
    span.4 AS SpanName, span.5 AS ScopeName, toUInt64(span.6) AS Duration,
    span.7 AS ResourceAttributes, mapConcat(identity, span.8) AS SpanAttributes,
    span.9 AS StatusCode
FROM numbers({count})
ARRAY JOIN arrayConcat({spans}) AS span
"""

# id, start, parent, name, scope, duration, resource, attributes, status
GRAPH = """[(1, 0, 0, 'LangGraph', 'openinference.instrumentation.langchain', 900000000, worker,
    map('openinference.span.kind', 'CHAIN', 'input.value', concat(state, '0}'),
        'output.value', concat(state, '4}')), 'Ok')]"""
NODES = """arrayMap(turn -> (2 + turn, turn * 200000000, 1, 'write',
    'openinference.instrumentation.langchain', 150000000, worker,
    map('openinference.span.kind', 'CHAIN', 'metadata', '{"langgraph_node":"write"}',
        'input.value', concat(state, toString(turn), '}'),
        'output.value', concat(state, toString(turn + 1), '}')), 'Ok'), range(4))"""
FRAMEWORK = """arrayMap(turn -> (6 + turn, turn * 200000000 + 1000000, 2 + turn, 'ChatOpenAI',
    'openinference.instrumentation.langchain', 140000000, worker,
    map('openinference.span.kind', 'LLM', 'llm.model_name', 'sql',
        'metadata', '{"langgraph_node":"write"}',
        'gen_ai.operation.name', 'chat', 'gen_ai.request.model', 'sql',
        'gen_ai.input.messages', asked(turn), 'gen_ai.output.messages', answered(turn)), 'Ok'),
    range(4))"""
GATEWAY = """arrayMap(turn -> (10 + turn, turn * 200000000 + 2000000, 6 + turn, 'chat sql',
    'ltrain.gateway', 130000000, gateway,
    map('gen_ai.operation.name', 'chat', 'gen_ai.request.model', 'sql',
        'gen_ai.response.id', concat('chatcmpl-', rollout, toString(turn)),
        'gen_ai.response.finish_reasons', '["stop"]', 'gen_ai.request.temperature', '1.0',
        'gen_ai.usage.input_tokens', toString(prompt_length(turn)),
        'gen_ai.usage.output_tokens', '{message}',
        'gen_ai.input.messages', asked(turn), 'gen_ai.output.messages', answered(turn),
        'ltrain.policy.name', 'sql', 'ltrain.policy.version', '0',
        'ltrain.prompt_token_ids', concat('[',
            arrayStringConcat(arraySlice(tokens, 1, prompt_length(turn)), ','), ']'),
        'ltrain.prompt_token_count', toString(prompt_length(turn)),
        'ltrain.response_token_ids', concat('[',
            arrayStringConcat(arraySlice(tokens, prompt_length(turn) + 1, {message}), ','), ']'),
        'ltrain.response_token_count', '{message}',
        'ltrain.response_logprobs',
            base64Encode(repeat(reinterpretAsString(toFloat32(-0.7132)), {message}))), 'Ok'),
    range(4))"""
TOOL = """[(14, 151000000, 2, 'execute_query', 'openinference.instrumentation.langchain', 20000000,
    worker, map('openinference.span.kind', 'TOOL', 'tool.name', 'execute_query', 'tool.id', '1',
        'input.value', '{"query":"SELECT 1"}', 'output.value', next(0)),
    if(n % 3 = 0, 'Error', 'Ok'))]"""
REWARD = """[(15, 950000000, 0, 'gen_ai.evaluation.result', 'ltrain.runner', 1000, runner,
    map('gen_ai.evaluation.name', 'reward', 'ltrain.reward.scope', 'rollout',
        'gen_ai.evaluation.score.value', toString(cityHash64(n) % 2)), 'Ok')]"""
CLOSING = """[(16, 0, 0, 'ltrain.rollout', 'ltrain.runner', 960000000, runner,
    map('ltrain.rollout.outcome', 'ok', 'ltrain.rollout.spans', '1'), 'Ok')]"""

EVERY_KIND = (GRAPH, NODES, FRAMEWORK, GATEWAY, TOOL, REWARD, CLOSING)
ONE_CALL = (GATEWAY.replace("range(4)", "range(1)"), REWARD, CLOSING)
"""The spans of a rollout of one call, which only the gateway and the runner recorded."""

COLUMNS = (
    "Timestamp, TraceId, SpanId, ParentSpanId, SpanName, ScopeName, Duration, ResourceAttributes, "
    "SpanAttributes, StatusCode"
)


def rollout_id(number: int) -> str:
    """Return the id of a rollout that `fill` writes."""
    return md5(str(number).encode()).hexdigest().upper()


def fill(
    folder: Path,
    rollouts: int,
    *,
    tasks: int = TASKS,
    kinds: Sequence[str] = EVERY_KIND,
    runs: int = 1,
    tokens: int = TOKENS,
) -> None:
    """Write rollouts to a store.

    Args:
        tasks: number of tasks of a wave.
        kinds: the spans of a rollout.
        runs: number of runs, each with as many rollouts.
        tokens: number of tokens of a rollout's last chat, at least 14.
    """
    source = SOURCE.replace("{spans}", ", ".join(kinds))
    message = tokens // 14
    sizes = {"tasks": tasks, "run_rollouts": rollouts // runs, "tokens": tokens}
    sizes |= {"message": message, "prompt": 7 * message}
    for name, size in sizes.items():
        source = source.replace(f"{{{name}}}", str(size))
    with Store.open(f"chdb://{folder}") as store:
        store.migrate()
        for first in range(0, rollouts, CHUNK):
            count = min(CHUNK, rollouts - first)
            sql = source.replace("{first}", str(first)).replace("{count}", str(count))
            store.command(f"INSERT INTO otel.otel_traces ({COLUMNS}) {sql}")
        store.command("OPTIMIZE TABLE otel.otel_traces FINAL")


def measure(folder: Path, place: Path, workers: int) -> dict[str, Any]:
    """Run `ltrain build` and return its cost."""
    recipe, out = place / "ltrain.toml", place / "out"
    recipe.write_text(RECIPE)
    command = [sys.executable, "-m", "ltrain", "build", str(recipe), "--store", f"chdb://{folder}"]
    command += ["--out", str(out), "--workers", str(workers), "--json"]
    cost = run_measured(command)
    counts = json.loads(cost.output)["counts"]
    if not counts["samples"]:
        sys.exit("No rollout became a sample, so the build did only a part of its work.")
    written = sum(file.stat().st_size for file in out.rglob("*.parquet"))
    return {"seconds": cost.seconds, "cpu": cost.cpu, "peak": cost.peak, "written": written} | {
        "transitions": counts["transitions"],
        "samples": counts["samples"],
    }


def run_size(
    spans: int, workers: int, temporary: str | None, existing: Path | None
) -> dict[str, Any]:
    """Measure one size, on the store in `existing` or on a new one."""
    with tempfile.TemporaryDirectory(prefix="ltrain-transforms-", dir=temporary) as name:
        folder = existing or Path(name) / "store"
        if existing is None:
            print(f"generating {spans} spans in {folder}", file=sys.stderr)
            command = [sys.executable, "-m", "benchmarks.transforms", "--fill", str(folder)]
            subprocess.run([*command, "--spans", str(spans)], check=True)
        with Store.open(f"chdb://{folder}") as store:
            [size] = store.query(
                "SELECT sum(byteSize(SpanAttributes)) AS size FROM otel.otel_traces"
            )["size"]
        cost = measure(folder, Path(name), workers)
    seconds = cost["seconds"]
    return {
        "spans": spans,
        "workers": workers,
        "spans_per_minute": round(60 * spans / seconds),
        "megabytes_per_second": round(size / 1e6 / seconds, 1),
        "cpu_us_per_span": round(1e6 * cost["cpu"] / spans, 1),
        "peak_megabytes": round(cost["peak"] / 1e6),
        **{name: cost[name] for name in ("transitions", "samples", "written", "seconds", "cpu")},
    }


def run_peer(python: str) -> dict[str, Any]:
    """Measure the adapter of agent-lightning, in memory, with an interpreter that has it."""
    script = Path(__file__).parent / "peers" / "agent_lightning.py"
    done = subprocess.run(
        [python, str(script), str(PEER_ROLLOUTS)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spans", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fill", type=Path, help="only create a store in this folder")
    parser.add_argument("--store", type=Path, help="a store from --fill, with this many spans")
    parser.add_argument("--peer", help="the path of a Python with agentlightning==0.3.0")
    parser.add_argument("--dir", default=None, help="the folder for temporary stores")
    arguments = parser.parse_args()
    if arguments.fill:
        fill(arguments.fill, arguments.spans[0] // SPANS)
        return
    options = (arguments.workers, arguments.dir, arguments.store)
    runs = [run_size(spans, *options) for spans in arguments.spans]
    for run in runs:
        print(json.dumps(run))
    peer = run_peer(arguments.peer) if arguments.peer else None
    if peer is not None:
        print(json.dumps(peer))
    first, last = runs[0], runs[-1]
    grown = (last["peak_megabytes"] - first["peak_megabytes"]) * 1e6
    more = last["transitions"] - first["transitions"]
    print(
        json.dumps(
            {
                "name": "transforms",
                "value": first["spans_per_minute"],
                "unit": "spans a minute from the store to parquet samples",
                "peer": peer and 60 * peer["spans_per_second"],
                "ratio": peer
                and round(first["spans_per_minute"] / 60 / peer["spans_per_second"], 2),
                "bytes_per_transition": round(grown / more, 1) if more else None,
            }
        )
    )


if __name__ == "__main__":
    main()
