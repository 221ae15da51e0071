"""Check the token ids and log-probabilities of each call before use.

A truncated attribute must not be trained on: ids are used only where the prompt, the response, the
log-probabilities and the recorded counts agree.
"""

from collections.abc import Sequence

import polars as pl

from ltrain_transforms.calls import span_errors
from ltrain_transforms.calls.span_errors import DropRow
from ltrain_transforms.calls.tokens import id_choices, id_lists, logprob_choices
from ltrain_transforms.dialects import Tokens

TOKEN_COLUMNS = ("prompt_token_ids", "response_token_ids", "response_logprobs")
NO_TOKENS = Tokens(None, None, None, None, None, "", "")


def check_tokens(tokens: Sequence[Tokens | None]) -> tuple[list[pl.Series], list[DropRow]]:
    """Return the columns `TOKEN_COLUMNS`, and the drops of tokens that cannot be used.

    Args:
        tokens: the undecoded tokens of each call, or None.
    """
    every = [one or NO_TOKENS for one in tokens]
    prompts, responses, logprobs = (
        [one.prompt for one in every],
        [one.response for one in every],
        [one.logprobs for one in every],
    )
    columns = (id_lists(prompts), id_choices(responses), logprob_choices(logprobs))
    frame = pl.DataFrame(dict(zip(TOKEN_COLUMNS, columns, strict=True))).with_columns(
        pl.Series("prompt", [one.prompt_count for one in every], pl.Int64),
        pl.Series("response", [one.response_count for one in every], pl.Int64),
        pl.Series("has_logprobs", [text is not None for text in logprobs], pl.Boolean),
    )
    marked = frame.with_columns(reason=_reason())
    usable = marked.select(
        pl.when(pl.col("reason").is_null()).then(name).alias(name) for name in TOKEN_COLUMNS
    )
    damaged = [
        span_errors.attribute_drop(one.span_id, one.attribute, reason)
        for one, reason in zip(every, marked["reason"], strict=True)
        if reason and one is not NO_TOKENS
    ]
    return usable.get_columns(), damaged


def _reason() -> pl.Expr:
    prompt, response, logprobs = map(pl.col, TOKEN_COLUMNS)
    lengths = response.list.eval(pl.element().list.len())
    logprob_lengths = logprobs.list.eval(pl.element().list.len())
    actual = {"prompt": prompt.list.len(), "response": lengths.list.sum()}
    counted = [(pl.col(name) == length).fill_null(True) for name, length in actual.items()]
    readable = prompt.is_not_null() & (response.list.len() > 0) & (logprobs.list.len() > 0)
    return (
        pl.when(~pl.col("has_logprobs")).then(pl.lit("no_logprobs"))
        .when(~readable.fill_null(False)).then(pl.lit("not_json"))
        .when(~pl.all_horizontal(*counted, (lengths == logprob_lengths).fill_null(False)))
        .then(pl.lit("token_count"))
    )  # fmt: skip
