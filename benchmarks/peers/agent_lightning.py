"""TracerTraceToTriplet of agent-lightning 0.3.0 on its own spans, for `benchmarks/transforms.py`.

Run it with an interpreter that has `agentlightning==0.3.0`: `agent_lightning.py ROLLOUTS`. The
rollouts have the same shape as in `transforms.py`: 16 spans, four LLM calls of 1,500 and 150
tokens.
"""

import json
import random
import sys
import time
from typing import Any

from agentlightning.adapter.triplet import TracerTraceToTriplet
from agentlightning.types import Span

chance = random.Random(0)


def make_rollout(number: int) -> list[Any]:
    """Make the spans of a rollout: a graph and four nodes, each with a chat model and SDK span."""
    trace = f"{number:032x}"
    spans: list[Any] = []

    def add(identity: int, parent: int | None, name: str, at: float, **attributes: Any) -> None:
        values = {key.replace("__", "."): value for key, value in attributes.items()}
        spans.append(
            Span.from_attributes(
                attributes=values,
                rollout_id=f"r{number}",
                attempt_id="1",
                sequence_id=identity,
                name=name,
                trace_id=trace,
                span_id=f"{identity:016x}",
                parent_id=None if parent is None else f"{parent:016x}",
                start_time=at,
                end_time=at + 0.1,
            )
        )

    tokens = [chance.randrange(49152) for _ in range(2100)]
    add(1, None, "session", 0.0)
    for turn in range(4):
        length, at = 1050 + 300 * turn, 0.2 * turn
        prompt, response = tokens[:length], tokens[length : length + 150]
        add(2 + turn, 1, "write", at)
        add(6 + turn, 2 + turn, "chat_model.llm", at + 0.001)
        add(
            10 + turn,
            6 + turn,
            "openai.chat.completion",
            at + 0.002,
            gen_ai__response__id=f"chatcmpl-{number}-{turn}",
            gen_ai__request__model="sql",
            gen_ai__prompt__0__role="user",
            gen_ai__prompt__0__content=" ".join(map(str, prompt)),
            gen_ai__completion__0__role="assistant",
            gen_ai__completion__0__content=" ".join(map(str, response)),
            prompt_token_ids=prompt,
            response_token_ids=response,
            logprobs__content=json.dumps([{"logprob": -0.7132}] * 150),
        )
    add(14, 2, "execute_query", 0.15)
    add(15, 1, "execute_query", 0.35)
    reward = {"agentlightning__reward__0__name": "reward", "agentlightning__reward__0__value": 1.0}
    add(16, 1, "agentlightning.annotation", 0.9, **reward)
    return spans


def main() -> None:
    rollouts = [make_rollout(number) for number in range(int(sys.argv[1]))]
    adapter = TracerTraceToTriplet()
    adapter.adapt(rollouts[0])
    start, cpu = time.monotonic(), time.process_time()
    triplets = sum(len(adapter.adapt(spans)) for spans in rollouts)
    seconds, cpu = time.monotonic() - start, time.process_time() - cpu
    spans = sum(map(len, rollouts))
    print(
        json.dumps(
            {
                "spans": spans,
                "triplets": triplets,
                "spans_per_second": round(spans / seconds),
                "spans_per_cpu_second": round(spans / cpu),
            }
        )
    )


if __name__ == "__main__":
    main()
