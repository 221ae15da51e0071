"""Builds see the spans as a service without the gateway sends them: texts, and no token ids.

`python -m benchmarks.support.without_ids ARGUMENTS...` runs `ltrain` so.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl

from ltrain.cli import main
from ltrain_instrument import attributes
from ltrain_transforms.datasets import build as build_dataset
from ltrain_transforms.tables import SPANS

REMOVED = (
    *(attributes.PROMPT_TOKEN_IDS, attributes.RESPONSE_TOKEN_IDS, attributes.RESPONSE_LOGPROBS),
    *(attributes.POLICY_NAME, attributes.POLICY_VERSION),
)
"""The attributes that only a gateway records."""
ENTRIES = pl.List(pl.Struct({"key": pl.String, "value": pl.String}))


def strip_ids(spans: pl.DataFrame) -> pl.DataFrame:
    """Return `SPANS` without the attributes of a gateway."""
    others = ~pl.element().struct.field("key").is_in(REMOVED)
    kept = pl.col("attributes").cast(ENTRIES).list.eval(pl.element().filter(others))
    return spans.with_columns(kept.cast(SPANS.schema["attributes"]))


@contextmanager
def without_ids() -> Iterator[None]:
    """Let the builds of this process read spans without ids in the block."""
    module: Any = sys.modules[build_dataset.__module__]
    read = module.read_spans

    def read_stripped(*arguments: Any) -> tuple[pl.DataFrame, pl.DataFrame]:
        spans, unresolved = read(*arguments)
        return strip_ids(spans), unresolved

    module.read_spans = read_stripped
    try:
        yield
    finally:
        module.read_spans = read


if __name__ == "__main__":
    with without_ids():
        main()
