"""What a dataset was made from."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1

KEYS: dict[str, tuple[str, ...]] = {
    "calls": ("execution_id", "call_id"),
    "executions": ("execution_id",),
    "states": ("execution_id", "t", "variable"),
    "rewards": ("execution_id", "rule", "evidence", "call_id"),
    "transitions": ("execution_id", "call_id"),
    "samples": ("execution_id", "sample_id"),
    "drops": ("stage", "id", "reason"),
}
"""The columns that put each table's rows in an order of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    id: str
    schema: int = SCHEMA_VERSION
    store: str
    """Where the traces were read."""
    query: str
    """The SQL that selects the spans."""
    parameters: dict[str, Any]
    watermark: str
    """When the latest of the spans was ingested, as the store has it."""
    recipe: dict[str, Any]
    recipe_digest: str
    task_files: list[str]
    """Digests of the task files that its rollouts came from."""
    rewards: list[str]
    """Digests of the reward functions that judged them."""
    base: dict[str, str]
    """Digests of base model, tokenizer and chat template, as the caller gave them."""
    policy_versions: dict[str, list[int]]
    waves: dict[str, dict[str, Any]]
    """Of each, by `<run>/<mode>/<wave>`: its spans, when the last came, whether it is closed."""
    digests: dict[str, str]
    """Sum of the digests of each table's rows."""
    counts: dict[str, int]
    """Rows of each table."""
    drops: dict[str, int]
    """How many were left out, by reason."""
    alarms: dict[str, list[str]]
    """By wave as in `waves`: which drops go with low reward, in a sentence each."""
    savings: dict[str, int]
    """What merging saved, in prompt tokens, and why rows begin."""
    capture_mismatch: int
    """Calls of which two instruments heard different answers."""

    def text(self) -> str:
        """Give it as JSON."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, default=str) + "\n"


def ordered(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Put the rows of a table in their own order."""
    return frame.sort(KEYS[name], nulls_last=True, maintain_order=True)


def versions(calls: pl.DataFrame) -> dict[str, list[int]]:
    """Give the versions of each policy that answered."""
    seen = calls.select("policy", "policy_version").drop_nulls().unique().sort(pl.all())
    found: dict[str, list[int]] = {}
    for policy, version in seen.iter_rows():
        found.setdefault(policy, []).append(version)
    return found


def reasons(drops: pl.DataFrame) -> dict[str, int]:
    """Count the drops by reason."""
    return dict(drops.group_by("reason").len().sort("reason").iter_rows())
