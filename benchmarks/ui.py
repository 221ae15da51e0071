"""Pages of `ltrain ui` in Chromium: a rollout of 10,000 calls beside one of 1,000."""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.support.process_cost import idle_cpu_seconds
from benchmarks.transforms import RECIPE
from playwright.sync_api import Page, expect, sync_playwright

from ltrain_collector.store import Store

CALLS = (1_000, 10_000)
"""Calls of the rollouts that are compared."""
GROUP = 8
"""Rollouts of a group, of which all have the same number of calls."""
MAX_FIRST_ROW, MAX_RATIO = 0.5, 1.5
"""Limits: seconds until the first row of the large rollout, and their ratio to the small one's."""
MAX = {"longest_task_ms": 100, "dom_nodes": 3_000, "page_gzip_kb": 250}
"""Limits on the page of the large rollout."""
PATIENCE = 600_000
"""Milliseconds to wait for credit, which is derived from the whole group."""
WATCH = """
window.tasks = [0];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
  .observe({ type: "longtask", buffered: true });
const look = () => {
  if (document.querySelector("details.call")) window.firstRow = performance.now();
  else requestAnimationFrame(look);
};
look();
"""
"""A script that runs before those of a page, and measures in the browser."""
CALLS_A_STEP = 3
STEPS_AN_INSERT = 500
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


@dataclass(frozen=True)
class Ui:
    """A server, and a page of a browser that has signed in to it."""

    server: "subprocess.Popen[str]"
    page: Page
    address: str

    def open(self, calls: int, sample: int) -> float:
        """Open a rollout when the server is idle; return the seconds until its first row."""
        self.page.goto("about:blank")  # or the page would go on to read the last one
        idle_cpu_seconds(f"/proc/{self.server.pid}")
        self.page.goto(f"{self.address}/rollouts/{rollout_id(calls, sample)}")
        expect(self.page.locator("details.call").first).to_be_visible()
        return float(self.page.evaluate("firstRow")) / 1000


@contextmanager
def opened_ui(folder: Path) -> Iterator[Ui]:
    """Serve the store in `folder` and sign a browser in."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("Chromium is not installed: install it with `apt-get install chromium`.")
    command = [sys.executable, "-m", "ltrain", "ui", "--port", "0"]
    command += ["--store", f"chdb://{folder}/store", "--recipe", str(folder / "ltrain.toml")]
    environment = os.environ | {"LTRAIN_HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with (
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, cwd=folder
        ) as server,
        sync_playwright() as playwright,
    ):
        try:
            assert server.stdout is not None
            link = server.stdout.readline().split()[-1]
            browser = playwright.chromium.launch(executable_path=chromium, args=options)
            page = browser.new_page()
            page.set_default_timeout(PATIENCE)
            page.goto(link)
            expect(page.get_by_role("link", name="bench", exact=True)).to_be_visible()
            page.add_init_script(WATCH)
            yield Ui(server, page, link.partition("/#")[0])
            browser.close()
        finally:
            server.terminate()


def measure(ui: Ui, runs: int) -> dict[str, Any]:
    """Open the rollouts in turns, then use the page of a large one."""
    expect.set_options(timeout=PATIENCE)
    small, large = CALLS
    ui.open(small, 0)  # the server imports and opens what it needs
    seconds: dict[int, list[float]] = {calls: [] for calls in CALLS}
    for run in range(runs):
        for calls in CALLS:
            seconds[calls].append(ui.open(calls, 1 + run))
    page, start = ui.page, time.monotonic()
    body = page.request.get(page.url).body()
    expect(page.locator("#extent")).to_contain_text("by the recipe as it is now")
    credit = time.monotonic() - start
    page.locator(".call > summary").first.focus()
    start = time.monotonic()
    page.keyboard.press("End")
    expect(page.locator(f".row[aria-posinset='{steps_of(large)}'] .call > summary")).to_be_focused()
    jump = time.monotonic() - start
    start = time.monotonic()
    page.keyboard.press("Enter")
    expect(page.locator(".chosen .inside")).to_be_visible()
    opened = time.monotonic() - start
    first = {calls: median(values) for calls, values in seconds.items()}
    return {
        "first_row_s": round(first[large], 3),
        "first_row_of_small_s": round(first[small], 3),
        "ratio": round(first[large] / first[small], 2),
        "longest_task_ms": round(max(page.evaluate("tasks"))),
        "dom_nodes": page.evaluate("document.querySelectorAll('*').length"),
        "page_gzip_kb": round(len(gzip.compress(body)) / 1000, 1),
        "jump_to_last_s": round(jump, 3),
        "open_call_s": round(opened, 3),
        "credit_s": round(credit, 1),
    }


def steps_of(calls: int) -> int:
    """Return the number of calls that `fill` writes for `calls`."""
    return (calls - 1) // CALLS_A_STEP * CALLS_A_STEP + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="rollouts of each size")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ltrain.toml").write_text(RECIPE)
        with Store.open(f"chdb://{folder}/store") as store:
            store.migrate()
            for calls in CALLS:
                fill(store, calls, GROUP)
        with opened_ui(folder) as ui:
            result = measure(ui, arguments.runs)
    print(
        json.dumps(
            {
                "name": "ui",
                "value": result["first_row_s"],
                "unit": f"s until the first of {CALLS[1]:,} calls, at most {MAX_FIRST_ROW} and "
                f"{MAX_RATIO} times those of {CALLS[0]:,}",
                "peer": None,
                **result,
            }
        )
    )
    too_much = [name for name, limit in MAX.items() if result[name] > limit]
    is_slow = result["first_row_s"] > MAX_FIRST_ROW or result["ratio"] > MAX_RATIO
    sys.exit(bool(too_much) or is_slow)


if __name__ == "__main__":
    main()
