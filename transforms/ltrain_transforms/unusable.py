"""Which calls cannot be rows: by their tokens, their sampling or their content.

These filters come after credit; none changes an advantage.
"""

import polars as pl

from ltrain_transforms.recipe import Recipe

REASONS = {
    "without_key": "the gateway recorded it without the attempt's key, so nothing was imposed on "
    "it; agents call the endpoint and the key that their attempt gets",
    "untrusted_tokens": "the agent's own process recorded its token ids, or a sender that the "
    "recipe does not trust: [source] trust names the sender of a gateway; token_source = "
    "'capture' in [[policy]] trains what any process recorded",
    "redacted": "content was removed from it",
    "truncated": "its span was ended by a flush when its process left, not by its owner",
    "multimodal": "it was asked with images, audio or files, which no row of token ids holds",
    "no_tokens": "its token ids are missing, cut short, or disagree with their counts; agents that "
    "call the gateway (`ltrain serve`) have them, `ltrain convert` does without",
    "several_choices": "the server gave several choices, and which one the agent took is not known",
    "no_logprobs": "its log-probabilities are missing, not finite, or not as many as its tokens",
    "undelivered": "the client went away before the answer ended",
    "constrained": "guided decoding: its probabilities cannot be recomputed",
    "greedy": "temperature 0: there is no distribution to learn from",
    "no_version": "which version of the policy was sampled is not known",
    "too_long": "the row has more tokens than filter.max_tokens",
}

MULTIMODAL = (
    r'"(?:type|modality)"\s*:\s*"(?:image|audio|video|input_image|input_audio|input_file|image_url'
    r"|video_url|blob|file|uri)"
)
"""How a part of a message says that it is no text; inside of a text the quotes are escaped."""


def measured(calls: pl.DataFrame) -> pl.DataFrame:
    """Return of each call what `reason` looks at, and `place`, its number in `calls`."""
    choices, scores = pl.col("response_token_ids"), pl.col("response_logprobs")
    first = choices.list.first(), scores.list.first()
    return calls.select(
        "execution_id",
        "call_id",
        *("input", "temperature", "constrained", "delivered", "redacted", "truncated"),
        "token_source",
        place=pl.int_range(pl.len()),
        asked=pl.col("prompt_token_ids").list.len(),
        choices=choices.list.len(),
        spoken=first[0].list.len(),
        scored=first[1].list.len(),
        finite=first[1].list.sum().is_finite(),
    )


def reason(recipe: Recipe) -> pl.Expr:
    """Return the first reason why a call is left out, of those that the recipe does not keep.

    Reads `measured`, and the `policy` and `mode` of the call.
    """
    rule = recipe.filter
    captured = [policy.name for policy in recipe.policy if policy.token_source == "capture"]
    by, trusting = pl.col("token_source"), pl.col("policy").is_in(captured)
    tests = {
        "without_key": (by == "traffic") & (pl.col("mode") == "train"),
        "untrusted_tokens": (by == "capture") & ~trusting,
        "redacted": pl.col("redacted"),
        "truncated": pl.col("truncated"),
        "multimodal": pl.col("input").str.contains(MULTIMODAL),
        "no_tokens": _none("asked") | _none("spoken"),
        "several_choices": pl.col("choices") != 1,
        "no_logprobs": ~pl.col("finite").fill_null(False) | (pl.col("scored") != pl.col("spoken")),
        "undelivered": ~pl.col("delivered"),
        "constrained": pl.col("constrained"),
        "greedy": pl.col("temperature") == 0,
        "no_version": pl.col("policy_version").is_null(),
        "too_long": (pl.col("asked") + pl.col("spoken") > rule.max_tokens)
        & (rule.too_long == "call"),
    }
    return pl.coalesce(
        pl.when(test).then(pl.lit(name)) for name, test in tests.items() if name not in rule.allow
    )


def _none(length: str) -> pl.Expr:
    return pl.col(length).fill_null(0) == 0
