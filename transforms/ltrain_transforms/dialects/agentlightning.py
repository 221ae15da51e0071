"""agent-lightning 0.3: the token ids that its tracers put on the spans of AgentOps and others.

Attribute names are those that its `TracerTraceToTriplet` reads: `prompt_token_ids`,
`response_token_ids`, and `logprobs.content`, OpenAI's list of objects.
"""

from typing import Any

import orjson

from ltrain_transforms.dialects.partial import Partial, Tokens, non_empty
from ltrain_transforms.spans import Span

MARKS = ("\nprompt_token_ids", "\nresponse_token_ids")


def read(span: Span) -> Partial:
    """Say what the token ids of a call are; the rest is another dialect's."""
    tokens = Tokens(
        span.get("prompt_token_ids"),
        span.get("response_token_ids"),
        _logprobs(span.json("logprobs.content")),
        None,
        None,
        span.span_id,
        "prompt_token_ids",
    )
    return non_empty(kind="llm", tokens=tokens)


def _logprobs(content: Any) -> str | None:
    """Take the numbers out of `[{"token", "logprob", ...}]`."""
    if not isinstance(content, list):
        return None
    given = [one.get("logprob") if isinstance(one, dict) else None for one in content]
    return orjson.dumps(given).decode()
