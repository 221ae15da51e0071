"""agent-lightning 0.3: token ids that its tracers write on the spans of AgentOps and others.

Its `TracerTraceToTriplet` reads the same attributes: `prompt_token_ids`, `response_token_ids`, and
`logprobs.content`, OpenAI's list of objects.
"""

from typing import Any

import orjson

from ltrain_transforms.dialects.partial import Dialect, Partial, Tokens, non_empty
from ltrain_transforms.traces import Span


def _read(span: Span) -> Partial:
    """Return the token ids of a call; other dialects read the rest."""
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
    """Return the numbers of `[{"token", "logprob", ...}]` as JSON."""
    if not isinstance(content, list):
        return None
    numbers = [one.get("logprob") if isinstance(one, dict) else None for one in content]
    return orjson.dumps(numbers).decode()


DIALECT = Dialect(
    "agentlightning",
    ("\nprompt_token_ids", "\nresponse_token_ids"),
    _read,
    written_by="agent-lightning 0.3's tracers, on others' spans",
    read_from="`prompt_token_ids`, `response_token_ids`, `logprobs.content`",
    kinds="llm",
    messages="those of the span's other dialects",
    tokens="ids, log-probabilities",
    missing="policy and version",
)
