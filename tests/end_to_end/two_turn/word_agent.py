"""A two-turn agent for a policy with one-token responses: word, tool, word.

The first word goes into a tool that fails outside a set A; its result names one of two sets B. The
second word is asked for with a prompt that does not extend the first.
"""

import random
from functools import cache
from typing import Any

from openai import OpenAI
from opentelemetry import trace

FIRST = range(0, 128)
"""The set A: words that the tool accepts."""
SECOND = (range(128, 256), range(256, 384))
"""The two sets B, of which the tool's result names one."""

tracer = trace.get_tracer("two_turn")


@cache
def root() -> OpenAI:
    """Return the client whose connections all rollouts of this process share."""
    return OpenAI(base_url="http://127.0.0.1", api_key="-", max_retries=0)


def solve(task: dict[str, Any], llm: Any) -> dict[str, Any]:
    ask = root().with_options(base_url=llm.base_url, api_key=llm.api_key)
    words = task["input"].split()
    first = word(ask, llm.model, task["input"])
    named = lookup(first)
    hint = f"w{30 + named}" if named >= 0 else "w40"
    second = word(ask, llm.model, " ".join([*words[1:4], hint]))
    return {"first": first, "named": named, "second": second}


def word(ask: OpenAI, model: str, prompt: str) -> int:
    """Sample one word; return -1 for a token that is not a word."""
    answer = ask.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], max_tokens=1
    )
    text = (answer.choices[0].message.content or "").strip()
    return int(text[1:]) if text.startswith("w") and text[1:].isdigit() else -1


def lookup(number: int) -> int:
    """Return 0 or 1 for a word of A; -1, and an error on the tool's span, for any other."""
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "lookup"}
    with tracer.start_as_current_span("execute_tool lookup", attributes=attributes) as span:
        span.set_attribute("gen_ai.tool.call.arguments", f'{{"word": {number}}}')
        if number not in FIRST:
            span.set_attribute("error.type", "KeyError")
            span.set_status(trace.StatusCode.ERROR, f"no such word: {number}")
            return -1
        named = random.randrange(2)
        span.set_attribute("gen_ai.tool.call.result", str(named))
        return named
