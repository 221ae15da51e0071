"""Rendered rows: `SAMPLES` of traffic that has no token ids, made with a chat template.

The tokens are a tokenizer's, not the server's, and say so: `tokens` is `rendered`, and there are no
log-probabilities. The learner refuses such rows for every RL loss; they serve supervised training.
A turn whose prompt extends the one before merges with it, as sampled ones do.
"""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_instrument.errors import LtrainError
from ltrain_transforms.dataset import Batch, Dataset
from ltrain_transforms.exports.chat import Message
from ltrain_transforms.exports.conversations import Conversation
from ltrain_transforms.exports.converted import Converted, Frames
from ltrain_transforms.exports.left_out import LeftOut
from ltrain_transforms.exports.rollouts import STAGE, Talks, best, rollouts, talks
from ltrain_transforms.exports.work import Piece, Work, lineage
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.samples import samples
from ltrain_transforms.selection import to_drops
from ltrain_transforms.tables import CALLS

REASONS = {
    "not_rendered": "the chat template refuses its messages, or does not render its answer after "
    "its prompt",
}


Tokens = tuple[list[int], list[int]]
"""Of a prompt, and of its answer."""


class BadTokenizer(LtrainError, ValueError):
    """A folder that holds no tokenizer with a chat template."""


def rendered(work: Work) -> Converted:
    """Give rows of the best rollouts.

    Raises:
        BadTokenizer: when there is none, or none with a chat template.
    """
    tokenizer = _tokenizer(work.options.tokenizer)
    recipe = _recipe(work.dataset)
    found = best(rollouts(work.dataset), work.options)
    left_out, pieces = LeftOut(found), []
    for batch in work.batches():
        spoken = talks(batch, found, work.options.policy, CALLS.schema.names())
        rows, unlike, long = _rows(batch, spoken, recipe, tokenizer)
        left_out.talks(spoken)
        left_out.calls("unlike", unlike, spoken)
        left_out.calls("long", long, spoken)
        for (execution,), own in rows.group_by("execution_id", maintain_order=True):
            held = BytesIO()
            own.write_ipc(held)
            made_from = own["transition_ids"].to_list()
            pieces.append(Piece(str(execution), work.keep(held.getvalue()), made_from))
    pieces.sort()
    frames = (pl.read_ipc(held) for held in work.each(pieces))
    return Converted(Frames(frames), lineage(pieces), left_out.drops())


def _rows(
    batch: Batch, spoken: Talks, recipe: Recipe, tokenizer: Any
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Give the rows of a batch, and as `DROPS` the calls not rendered, and those not usable."""
    tokens = {call: both for talk in spoken for call, both in _tokens(talk, tokenizer)}
    unlike = [call for call, both in tokens.items() if both is None]
    left_out = pl.DataFrame({"id": unlike}, {"id": pl.String}).with_columns(
        reason=pl.lit("not_rendered")
    )
    calls = _calls(spoken.calls, {call: both for call, both in tokens.items() if both is not None})
    key = ["execution_id", "call_id"]
    transitions = batch.table("transitions").join(calls.select(key), key, "semi")
    rows, long = samples(recipe, transitions, calls, batch.table("executions"))
    rendered_rows = rows.with_columns(tokens=pl.lit("rendered"))
    unlike_drops = to_drops(STAGE, left_out, "id", REASONS)
    return rendered_rows, unlike_drops, long.with_columns(stage=pl.lit(STAGE))


def _tokenizer(folder: Path | None) -> Any:
    from transformers import AutoTokenizer

    if folder is None or not folder.is_dir():
        given = "named" if folder is None else f"in {folder}"
        raise BadTokenizer(f"No tokenizer {given}. Name a folder that has one: --tokenizer DIR.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise BadTokenizer(f"{folder} holds no tokenizer: {error}") from error
    if not tokenizer.chat_template:
        raise BadTokenizer(
            f"The tokenizer in {folder} has no chat template. Name one of a chat model, or add "
            "chat_template.jinja."
        )
    return tokenizer


def _tokens(talk: Conversation, tokenizer: Any) -> Iterator[tuple[str, Tokens | None]]:
    """Yield of each sampled answer its prompt and its own tokens; None where there are none."""
    for place, call in talk.answers.items():
        try:
            parted = _parted(talk, place, tokenizer)
        # broad: a template raises jinja's errors on messages that it does not allow, and anything
        # on fields of other types; each such call is the drop `not_rendered`
        except Exception:
            parted = None
        yield call, parted


def _parted(talk: Conversation, place: int, tokenizer: Any) -> Tokens | None:
    """Return the tokens of a prompt and of its answer; None where they do not part."""
    before = talk.before(place)
    prompt = _render(tokenizer, talk, before, asking=True)
    whole = _render(tokenizer, talk, [*before, talk.answer(place)], asking=False)
    answer = _ended(whole[len(prompt) :], tokenizer.eos_token_id)
    return (prompt, answer) if whole[: len(prompt)] == prompt and answer else None


def _render(
    tokenizer: Any, talk: Conversation, messages: list[Message], *, asking: bool
) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        messages,
        tools=talk.tools or None,
        add_generation_prompt=asking,
        tokenize=True,
        return_dict=False,
    )
    return ids


def _ended(answer: list[int], end: int | None) -> list[int]:
    """Cut off what the template puts after the end of an answer, which no model samples."""
    return answer[: answer.index(end) + 1] if end in answer else answer


def _calls(calls: pl.DataFrame, tokens: dict[str, Tokens]) -> pl.DataFrame:
    """Put rendered tokens into `CALLS`, as if they had been sampled as usual."""
    columns = {
        "call_id": list(tokens),
        "prompt_token_ids": [prompt for prompt, _ in tokens.values()],
        "response_token_ids": [[answer] for _, answer in tokens.values()],
        "response_logprobs": [[[0.0] * len(answer)] for _, answer in tokens.values()],
    }
    made = pl.DataFrame(columns, {name: CALLS.schema[name] for name in columns})
    usual = {"constrained": False, "delivered": True, "truncated": False, "temperature": 1.0}
    kept = calls.drop(*columns.keys() - {"call_id"}).join(made, "call_id", maintain_order="left")
    return CALLS.select(
        kept.with_columns(**{k: pl.lit(v) for k, v in usual.items()}).lazy()
    ).collect()


def _recipe(dataset: Dataset) -> Recipe:
    """Give the recipe that the dataset was built by; a version that is not known is no matter."""
    recipe = Recipe.model_validate(dataset.manifest["recipe"])
    allow = (*recipe.filter.allow, "no_version")
    return recipe.model_copy(update={"filter": recipe.filter.model_copy(update={"allow": allow})})
