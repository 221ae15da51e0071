"""Rollouts of a model that thinks, with the chat template of Qwen3, before and after.

A tiny model, which was trained to think and to write JSON without spaces, answers agents of ten
turns that do not return its thinking: a chat, and a loop of tool calls. Before: the chat template
renders each prompt. After: a prompt continues the tokens of the call before
(`ltrain serve --continue-tokens`). Log-probabilities are compared with a forward pass over the row.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import polars as pl
import transformers
from benchmarks.support.call_spans import largest_difference, read_spans
from benchmarks.support.servers import gateway

from ltrain_collector.access import AttemptKey
from ltrain_instrument.clock import Deadline
from ltrain_instrument.identity import Identity
from ltrain_train.store import home_secret
from ltrain_transforms.samples import Ragged, Turns, merge_turns

MODEL = Path(__file__).parents[1] / "tests" / "train" / "thinking.py"
VLLM = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    "--enable-prompt-tokens-details",
)
CHAT, COUNT = "say a word", "count to ten"
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CLOSE = 1e-4
"""Largest difference of a log-probability that is computed again, in float32."""
SPANS_SQL = """
SELECT SpanAttributes['ltrain.rollout.id'] AS rollout,
  SpanAttributes['ltrain.prompt_token_ids'] AS prompt,
  SpanAttributes['ltrain.response_token_ids'] AS response,
  SpanAttributes['ltrain.response_logprobs'] AS logprobs,
  toInt64OrZero(SpanAttributes['gen_ai.usage.cache_read.input_tokens']) AS cached
FROM otel.spans WHERE ScopeName = 'ltrain.gateway' AND SpanName LIKE 'chat%'
ORDER BY rollout, Timestamp
"""
hugging_face: Any = transformers  # its functions have no types


@dataclass(frozen=True, slots=True)
class Figures:
    """The calls of some rollouts."""

    rollouts: int
    rows: int
    sampled: int
    """Sampled tokens."""
    computed: int
    """Tokens of the rows, which a learner computes."""
    prompts: int
    """Tokens of all prompts."""
    cached: int
    """Tokens of the prompts that vLLM had in its prefix cache."""
    seconds: float
    """Median of the calls."""
    drift: float
    """Largest difference between a log-probability and that of a forward pass."""

    def line(self) -> str:
        return (
            f"{self.rows / self.rollouts:.1f} rows a rollout; {self.sampled:,} sampled and "
            f"{self.computed:,} computed tokens; {self.cached / self.prompts:.0%} of "
            f"{self.prompts:,} prompt tokens cached; {1000 * self.seconds:.0f} ms a call; "
            f"log-probabilities {self.drift:.1e} apart"
        )


def roll_out(
    client: httpx.Client, secret: str, question: str, number: int, turns: int
) -> list[float]:
    """Run an agent that does not return thinking, and return the seconds of its calls."""
    rollout = f"{question.split()[0]}-{number}"
    identity = Identity(run="bench", task="t", wave=1, rollout=rollout, attempt=1, mode="train")
    claims = AttemptKey(
        identity=identity,
        policy="policy",
        sampling={"temperature": 1.0},
        expires=Deadline.after(3600),
    )
    headers = {"authorization": f"Bearer {claims.sign(secret)}"}
    tools = {"tools": [TOOL]} if question == COUNT else {}
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    seconds = []
    for turn in range(turns):
        body = {"model": "policy", "messages": messages, "max_tokens": 200, **tools}
        began = time.monotonic()
        path = f"/rollout/{rollout}/attempt/1/v1/chat/completions"
        answer = client.post(path, json=body, headers=headers).raise_for_status().json()
        seconds.append(time.monotonic() - began)
        message = answer["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        more = {"tool_calls": calls} if calls else {}
        messages.append({"role": "assistant", "content": message["content"] or "", **more})
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(turn)})
        if not calls:
            messages.append({"role": "user", "content": question})
    return seconds


def measure(
    place: Path, model: Path, rollouts: int, turns: int, *options: str
) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of each question, with these options of `ltrain serve`."""
    arguments = (str(model), "--dtype", "float32", *options, "--", *VLLM)
    seconds = {}
    with gateway(place, *arguments) as stack:
        secret = home_secret(place / "home")
        with httpx.Client(base_url=stack.gateway, timeout=600, trust_env=False) as client:
            for question in (CHAT, COUNT):
                with ThreadPoolExecutor(4) as pool:
                    runs = pool.map(
                        lambda number, asks=question: roll_out(client, secret, asks, number, turns),
                        range(rollouts),
                    )
                    seconds[question] = [each for run in runs for each in run]
        spans = read_spans(stack.store, SPANS_SQL, 2 * rollouts * turns)
    policy = hugging_face.AutoModelForCausalLM.from_pretrained(model).float().eval()
    for question in (CHAT, COUNT):
        own = spans.filter(pl.col("rollout").str.starts_with(question.split()[0]))
        yield question, figures(own, policy, median(seconds[question]))


def figures(spans: pl.DataFrame, policy: Any, seconds: float) -> Figures:
    """Return the figures of calls, which are merged into rows as a build merges them."""
    prompts, responses = (
        [json.loads(each) for each in spans[name]] for name in ("prompt", "response")
    )
    lanes = np.flatnonzero([True, *(spans["rollout"][1:] != spans["rollout"][:-1]), True])
    turns = Turns.from_tokens(_ragged(prompts), _ragged(responses), np.ones(len(prompts)), lanes)
    openers = merge_turns(turns).openers
    rows = {
        int(opener): prompt + response
        for opener, prompt, response in zip(openers, prompts, responses, strict=True)
    }  # the last call of a row has all its tokens
    drift = max(
        largest_difference(policy, rows[int(opener)], len(prompt), logprobs)
        for opener, prompt, logprobs in zip(openers, prompts, spans["logprobs"], strict=True)
    )
    return Figures(
        rollouts=len(lanes) - 1,
        rows=len(rows),
        sampled=sum(map(len, responses)),
        computed=sum(map(len, rows.values())),
        prompts=sum(map(len, prompts)),
        cached=int(spans["cached"].sum()),
        seconds=seconds,
        drift=drift,
    )


def _ragged(lists: Sequence[list[int]]) -> Ragged:
    values = np.array([each for one in lists for each in one], dtype=np.uint32)
    return Ragged(values, np.cumsum([0, *map(len, lists)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=8, help="of each question")
    parser.add_argument("--turns", type=int, default=10)
    options = parser.parse_args()
    met = True
    with tempfile.TemporaryDirectory(prefix="ltrain-continuation-") as folder:
        place = Path(folder)
        subprocess.run([sys.executable, str(MODEL), str(place / "model")], check=True)
        for name, more in (("before", ()), ("after", ("--continue-tokens",))):
            home = place / name
            for question, each in measure(
                home, place / "model", options.rollouts, options.turns, *more
            ):
                print(f"{name}, {question}: {each.line()}", flush=True)
                met &= not more or (each.rows == each.rollouts and each.drift <= CLOSE)
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
