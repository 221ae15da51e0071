"""Rendered rows: `SAMPLES` of traces without token ids, tokenized with a chat template.

The tokens come from a tokenizer, not from the server, so the column `tokens` is `rendered` and
there are no log-probabilities. The learner refuses such rows for every RL loss; they are for
supervised training. Turns are merged into rows like sampled ones. With `ExportOptions.recorded`,
the tokens of a call that a gateway recorded are kept; `tokens` is `sampled` if a row has no others.
"""

from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from typing import Any

import polars as pl

from ltrain_transforms import rendering
from ltrain_transforms.datasets import Dataset, DatasetBatch
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.conversion import ExportOptions, ExportResult, ParquetRows
from ltrain_transforms.exports.conversion_files import ExportJob, Piece, lineage
from ltrain_transforms.exports.rollouts import (
    STAGE,
    BatchConversations,
    ExportDrops,
    read_conversations,
    read_rollouts,
    select_best,
)
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.samples import samples
from ltrain_transforms.source import to_drops
from ltrain_transforms.tables import CALLS, SAMPLES, taken_choice

REASONS = {"not_rendered": rendering.REASONS["not_rendered"]}

OF_SAMPLING = ("constrained", "filtered", "greedy", "no_version", "untrusted_tokens", "without_key")
"""The reasons of `row_filters` that say how a call was sampled: only an RL loss depends on them."""


def export_rendered(job: ExportJob) -> ExportResult:
    """Export the rows of the best rollouts."""
    options = job.options
    tokenizer = rendering.load_tokenizer(options.tokenizer, options.chat_template)
    recipe = _recipe(job.dataset, options)
    recorded = _is_recorded(options)
    rollouts = select_best(read_rollouts(job.dataset), options)
    drops, pieces = ExportDrops(rollouts), []
    for batch in job.batches():
        columns = CALLS.schema.names()
        conversations = read_conversations(batch, rollouts, options.policy, columns, recorded)
        rows, not_rendered, unusable = _rows(batch, conversations, recipe, tokenizer, recorded)
        drops.add_batch(conversations)
        drops.add_calls("not_rendered", not_rendered, conversations)
        drops.add_calls("unusable_rows", unusable, conversations)
        for (execution,), own in rows.group_by("execution_id", maintain_order=True):
            content = BytesIO()
            own.write_ipc(content)
            call_ids = own["transition_ids"].to_list()
            pieces.append(Piece(str(execution), job.store(content.getvalue()), call_ids))
    pieces.sort()
    frames = (pl.read_ipc(content) for content in job.load_pieces(pieces))
    rows_or_none = chain([SAMPLES.empty()], frames)
    return ExportResult(ParquetRows(rows_or_none), lineage(pieces), drops.drops())


def _is_recorded(options: ExportOptions) -> pl.Expr:
    """Return whether a call keeps its tokens: the choice that counts has as many probabilities."""
    if not options.recorded:
        return pl.lit(False)
    tokens, logprobs = taken_choice("response_token_ids"), taken_choice("response_logprobs")
    complete = (pl.col("prompt_token_ids").list.len() > 0) & (tokens.list.len() > 0)
    measured = (tokens.list.len() == logprobs.list.len()) & logprobs.list.sum().is_finite()
    own = pl.col("policy").eq_missing(options.policy) & (pl.col("token_source") != "capture")
    return (own & complete & measured).fill_null(False)


def _rows(
    batch: DatasetBatch,
    conversations: BatchConversations,
    recipe: Recipe,
    tokenizer: Any,
    recorded: pl.Expr,
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the rows of a batch, and as `DROPS` the calls not rendered and those not usable."""
    tokens = {
        call: pair
        for conversation in conversations
        for call, pair in _tokenize(conversation, tokenizer)
    }
    failed = [call for call, pair in tokens.items() if pair is None]
    left_out = pl.DataFrame({"id": failed}, {"id": pl.String}).with_columns(
        reason=pl.lit("not_rendered")
    )
    pairs = {call: pair for call, pair in tokens.items() if pair is not None}
    kept = conversations.calls.filter(recorded)
    calls = pl.concat([kept, _with_tokens(conversations.calls, pairs)])
    key = ["execution_id", "call_id"]
    transitions = batch.table("transitions").join(calls.select(key), key, "semi")
    rows, unusable = samples(recipe, transitions, calls, batch.table("executions"))
    sampled = pl.element().is_in(kept["call_id"].implode())
    all_sampled = pl.col("transition_ids").list.eval(sampled).list.all()
    source = pl.when(all_sampled).then(pl.lit("sampled")).otherwise(pl.lit(rendering.RENDERED))
    rendered_rows = rows.with_columns(tokens=source)
    not_rendered = to_drops(STAGE, left_out, "id", REASONS)
    return rendered_rows, not_rendered, unusable.with_columns(stage=pl.lit(STAGE))


def _tokenize(
    conversation: Conversation, tokenizer: Any
) -> Iterator[tuple[str, rendering.TokenPair | None]]:
    """Yield the call and the tokens of each sampled response; None if it cannot be rendered."""
    for index, call in conversation.answers.items():
        prompt, answer = conversation.prompt(index), conversation.answer(index)
        yield call, rendering.render_answer(tokenizer, prompt, answer, conversation.tools)


def _with_tokens(calls: pl.DataFrame, tokens: dict[str, rendering.TokenPair]) -> pl.DataFrame:
    """Return the calls with rendered tokens, and with defaults for columns about sampling."""
    columns = {
        "call_id": list(tokens),
        "prompt_token_ids": [prompt for prompt, _ in tokens.values()],
        "response_token_ids": [[answer] for _, answer in tokens.values()],
        "response_logprobs": [[[0.0] * len(answer)] for _, answer in tokens.values()],
        "choice": [None] * len(tokens),  # only the answer of the conversation is rendered
    }
    rendered = pl.DataFrame(columns, {name: CALLS.schema[name] for name in columns})
    defaults = {"constrained": False, "delivered": True, "truncated": False, "temperature": 1.0}
    others = calls.drop(*columns.keys() - {"call_id"})
    joined = others.join(rendered, "call_id", maintain_order="left")
    return CALLS.select(
        joined.with_columns(**{name: pl.lit(value) for name, value in defaults.items()}).lazy()
    ).collect()


def _recipe(dataset: Dataset, options: ExportOptions) -> Recipe:
    """Return the recipe of the dataset, changed to accept calls however they were sampled."""
    recipe = Recipe.model_validate(dataset.manifest["recipe"])
    longest = min(recipe.filter.max_tokens, options.max_tokens or recipe.filter.max_tokens)
    changes = {"allow": (*recipe.filter.allow, *OF_SAMPLING), "max_tokens": longest}
    return recipe.model_copy(update={"filter": recipe.filter.model_copy(update=changes)})
