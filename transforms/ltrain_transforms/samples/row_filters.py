"""Filters of rows: calls that training cannot use, by their tokens, sampling or content.

They run after credit and change no advantage.
"""

import polars as pl

from ltrain_transforms import rendering
from ltrain_transforms.recipe import NEUTRAL, Recipe
from ltrain_transforms.tables import taken_choice

REASONS = {
    "without_key": "the gateway recorded it without the attempt's key, so it did not impose the "
    "recipe's sampling; an agent must call the endpoint with the key of its attempt",
    "untrusted_tokens": "the agent's own process recorded its token ids, or a sender that the "
    "recipe does not trust: name the sender of the gateway in [source] trust, or set token_source "
    "= 'capture' in [[policy]] to train on what any process recorded",
    "redacted": "content was removed from it",
    "truncated": "its span was ended by a flush when its process left, not by its owner",
    "multimodal": "its input holds images, audio or files, which a row of token ids cannot hold",
    **rendering.REASONS,
    "no_tokens": "its token ids are missing, cut short, or disagree with their counts; agents that "
    "call the gateway (`ltrain serve`) have them unless its --upstream reports none "
    "(`ltrain.unavailable` on the span); `ltrain convert` does not need them",
    "several_choices": "the server returned several choices, and no later call continues exactly "
    "one of them",
    "no_logprobs": "its log-probabilities are missing, not finite, or not as many as its tokens",
    "undelivered": "the client disconnected before the answer ended",
    "constrained": "the server masked ids by a field or a grammar that the learner cannot apply, "
    "or train.constrained is 'refused'",
    "greedy": "temperature 0: there is no distribution to learn from",
    "filtered": "top_p, top_k, min_p, min_tokens or a penalty changed the distribution that it was "
    "sampled from, so its probabilities cannot be recomputed",
    "no_version": "the version of the policy that was sampled is unknown, as with the --upstream "
    "of a policy without versions",
    "too_long": "the row has more tokens than filter.max_tokens",
}

UNCHOSEN = {
    "unchosen": "one of several choices of an answer: the agent continued with another one, so the "
    "rewards of the episode are not its own"
}
"""The reason of a choice that is left out of a call with a row; its id is `call:choice`."""

MULTIMODAL = (
    r'"(?:type|modality)"\s*:\s*"(?:image|audio|video|input_image|input_audio|input_file|image_url'
    r"|video_url|blob|file|uri)"
)
"""Matches the type of a message part that is not text; inside a text, the quotes are escaped."""


def filter_inputs(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of each call that `drop_reason` reads, and its `index` in `calls`."""
    tokens, token_logprobs = taken_choice("response_token_ids"), taken_choice("response_logprobs")
    return calls.select(
        "execution_id",
        "call_id",
        *("input", "temperature", "constrained", "constraint"),
        *("delivered", "redacted", "truncated"),
        *("token_source", "choice", "unrendered"),
        index=pl.int_range(pl.len()),
        filtered=_is_filtered(),
        prompt_tokens=pl.col("prompt_token_ids").list.len(),
        choices=pl.col("response_token_ids").list.len(),
        response_tokens=tokens.list.len(),
        logprobs=token_logprobs.list.len(),
        finite_logprobs=token_logprobs.list.sum().is_finite(),
    )


def _is_filtered() -> pl.Expr:
    """Return whether a parameter of the request has a value that is not in `NEUTRAL`."""
    values = {name: _parameter(name) for name in NEUTRAL}
    return pl.any_horizontal(
        value.is_not_null() & ~value.is_in(NEUTRAL[name]) for name, value in values.items()
    )


def _parameter(name: str) -> pl.Expr:
    """Return the number of a parameter, whether it is in the request or in its `extra_body`."""
    number = pl.col("params").str.extract(rf'"{name}": "?([-+.0-9eE]+)')
    return number.cast(pl.Float64, strict=False)


def drop_reason(recipe: Recipe) -> pl.Expr:
    """Return the first reason why a call is left out, except those in `filter.allow`; else null.

    Reads `filter_inputs`, and the `policy` and `mode` of the call.
    """
    rule = recipe.filter
    capturing = [policy.name for policy in recipe.policy if policy.token_source == "capture"]
    refuses = recipe.train.constrained == "refused"
    source, allows_capture = pl.col("token_source"), pl.col("policy").is_in(capturing)
    prompt, response = pl.col("prompt_tokens"), pl.col("response_tokens")
    tests = {
        "without_key": (source == "traffic") & (pl.col("mode") == "train"),
        "untrusted_tokens": (source == "capture") & ~allows_capture,
        "redacted": pl.col("redacted"),
        "truncated": pl.col("truncated"),
        "multimodal": pl.col("input").str.contains(MULTIMODAL),
        "no_tokens": (prompt.fill_null(0) == 0) | (response.fill_null(0) == 0),
        "several_choices": (pl.col("choices") != 1) & pl.col("choice").is_null(),
        "no_logprobs": ~pl.col("finite_logprobs").fill_null(False)
        | (pl.col("logprobs") != response),
        "undelivered": ~pl.col("delivered"),
        "constrained": pl.col("constrained") & (pl.col("constraint").is_null() | refuses),
        "greedy": pl.col("temperature") == 0,
        "filtered": pl.col("filtered"),
        "no_version": pl.col("policy_version").is_null(),
        "too_long": (prompt + response > rule.max_tokens) & (rule.too_long == "call"),
    }
    names = {"no_tokens": pl.coalesce("unrendered", pl.lit("no_tokens"))}
    return pl.coalesce(
        pl.when(test).then(names.get(name, pl.lit(name)))
        for name, test in tests.items()
        if name not in rule.allow
    )
