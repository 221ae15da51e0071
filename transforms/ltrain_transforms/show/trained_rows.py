"""The rows of a rollout as they were trained: each token with its advantage and its call."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from ltrain_transforms.datasets import list_datasets
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.policy_file import versions_trained_on
from ltrain_transforms.reports import Kind, Reference

MAX_TOKENS = 4000
"""Tokens of a row that are shown."""
TOKENIZER = "tokenizer.json"
LEVELS = 5
"""Number of shades for positive and for negative values."""
SHADES = ("advantage", "logprob", "weight")
"""The values of a token that a shade can show."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    id: int
    trained: bool
    """Whether it was sampled and has a loss."""
    advantage: float
    logprob: float
    """The log-probability when it was sampled; 0 if it was not."""
    weight: float
    """Its weight in the loss."""
    reward: float
    """The immediate reward at this token."""
    call: int
    """The position of its call in the execution."""
    version: int | None
    """The policy version that sampled its call."""


@dataclass(frozen=True, slots=True)
class TrainedRow:
    sample: str
    policy: str
    dataset: Reference
    versions: tuple[Reference, ...]
    """The policy versions that were trained on the dataset."""
    prompt: str
    """The context before the first trained token."""
    prompt_tokens: int
    tokens: tuple[Token, ...]
    more: int
    """Number of tokens that are not in `tokens`."""

    def shaded(self) -> list[tuple[Token, str]]:
        """Return each token with its CSS classes: for each of `SHADES` its initial, and `p1` to
        `p5` or `n1` to `n5`. A token without a loss has none.
        """
        largest = {
            name: max((abs(getattr(one, name)) for one in self.tokens), default=0.0)
            for name in SHADES
        }
        return [(token, _classes(token, largest)) for token in self.tokens]


def _classes(token: Token, largest: Mapping[str, float]) -> str:
    if not token.trained:
        return ""
    shades = (shade_class(name, getattr(token, name), largest[name]) for name in SHADES)
    return " ".join(filter(None, shades))


def shade_class(name: str, number: float, largest: float) -> str:
    """Return the CSS class of a number among others: the initial of its name, `p` or `n` for its
    sign, and a level from 1 to `LEVELS`; '' for 0.
    """
    if not number:
        return ""
    level = max(1, round(LEVELS * abs(number) / largest))
    return f"{name[0]}{'p' if number > 0 else 'n'}{level}"


def trained_rows(home: Path, rollout: str) -> list[TrainedRow]:
    """Return the rows of a rollout in the datasets of a home.

    Raises:
        NothingToShow: when no dataset has a row of the rollout.
    """
    decoder = cache(lambda policy: _decoder(home / "policies" / policy))
    rows = [
        _row(sample, Reference(Kind.DATASET, dataset), home, decoder(sample["policy"]))
        for path, dataset in list_datasets(home)
        for sample in _samples(path, rollout)
    ]
    if not rows:
        raise NothingToShow(
            f"No dataset in {home}/datasets has a row of rollout '{rollout}'. The page of the "
            "rollout has the reasons."
        )
    return rows


def call_rows(home: Path, dataset: str, rollout: str, call: int) -> list[TrainedRow]:
    """Return the rows of a rollout in a dataset, each with the tokens of one call only.

    Args:
        call: the position of the call in the execution, its `seq`.
    """
    paths = [path for path, name in list_datasets(home) if name == dataset]
    reference = Reference(Kind.DATASET, dataset)
    return [
        _row(sample, reference, home, _decoder(home / "policies" / sample["policy"]), part)
        for path in paths
        for sample in _samples(path, rollout)
        for part in _ranges(sample, call)
    ]


def _ranges(sample: Mapping[str, Any], call: int) -> list[range]:
    """Return the places of a call's tokens in a row."""
    ends = [*sample["call_offsets"][1:], len(sample["response_ids"])]
    places = zip(sample["call_positions"], sample["call_offsets"], ends, strict=True)
    return [range(begin, end) for position, begin, end in places if position == call]


def _samples(path: Path, rollout: str) -> list[dict[str, Any]]:
    rows = pl.scan_parquet(path / "samples").filter(pl.col("rollout_id") == rollout)
    return rows.sort("sample_id").collect().to_dicts()


def _row(
    sample: dict[str, Any],
    dataset: Reference,
    home: Path,
    decode: Decode,
    places: range | None = None,
) -> TrainedRow:
    """Return a row, or only the tokens at some places of it."""
    if places is None:
        places = range(len(sample["response_ids"]))
    tokens = []
    for at in places[:MAX_TOKENS]:
        token = sample["response_ids"][at]
        call = max(bisect_right(sample["call_offsets"], at) - 1, 0)
        tokens.append(
            Token(
                text=decode([token]),
                id=token,
                trained=bool(sample["response_mask"][at]),
                advantage=sample["advantages"][at],
                logprob=sample["rollout_logprobs"][at],
                weight=sample["loss_weight"][at],
                reward=sample["token_rewards"][at],
                call=sample["call_positions"][call],
                version=sample["call_versions"][call],
            )
        )
    return TrainedRow(
        sample["sample_id"],
        sample["policy"],
        dataset,
        trained_versions(home, dataset.id),
        decode(sample["prompt_ids"]),
        len(sample["prompt_ids"]),
        tuple(tokens),
        max(len(places) - MAX_TOKENS, 0),
    )


def trained_versions(home: Path, dataset: str) -> tuple[Reference, ...]:
    """Return the policy versions that were trained on a dataset."""
    names = versions_trained_on(home / "policies", dataset)
    return tuple(Reference(Kind.POLICY, name) for name in names)


def _decoder(folder: Path) -> Decode:
    """Return the function from token ids to text: ids as numbers if there is no tokenizer."""
    file = next(iter(sorted(folder.glob(f"v*/{TOKENIZER}"))), None)
    decode = None if file is None else _load_decoder(file, file.stat().st_mtime_ns)
    return decode or (lambda ids: "".join(f"⟨{token}⟩" for token in ids))


@lru_cache(maxsize=4)
def _load_decoder(file: Path, _changed: int) -> Decode | None:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:  # the extra `collect` has no tokenizer
        return None
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
