"""The manifest of a dataset: its inputs, and what it holds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from ltrain_transforms import rendering
from ltrain_transforms.file_digests import FileDigest, seal

MANIFEST = "manifest.json"
SCHEMA_VERSION = 6
"""Changes with the tables and the manifest: `ltrain build --update` extends no other version."""

KEYS: dict[str, tuple[str, ...]] = {
    "calls": ("execution_id", "call_id"),
    "executions": ("execution_id",),
    "states": ("execution_id", "t", "variable"),
    "rewards": ("execution_id", "rule", "evidence", "call_id"),
    "transitions": ("execution_id", "call_id"),
    "samples": ("execution_id", "sample_id"),
    "drops": ("stage", "id", "reason"),
}
"""The sort key of each table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    id: str
    schema: int = SCHEMA_VERSION
    store: str
    """The store of the traces."""
    query: str
    """The SQL that selected the spans."""
    parameters: dict[str, Any]
    watermark: str
    """The time at which the store ingested the latest of the spans."""
    recipe: dict[str, Any]
    recipe_digest: str
    task_files: list[str]
    """Digests of the task files of its rollouts."""
    rewards: list[str]
    """Digests of the reward functions of its rollouts."""
    base: dict[str, str]
    """Digests of the trained policy's base: `model`, `tokenizer`, `template`; empty if unknown."""
    trained: dict[str, int]
    """By policy: the version for which outdated executions were left out; empty: for none."""
    served: dict[str, dict[str, Any]]
    """By policy whose calls without token ids are rendered: the chat template (null: that of the
    `base`), and the names and times by which calls were of a version."""
    policy_versions: dict[str, list[int]]
    waves: dict[str, dict[str, Any]]
    """By `<run>/<mode>/<wave>`: count of spans, when the last one arrived, and if it is closed."""
    digests: dict[str, str]
    """By table: the sum of the digests of its rows."""
    counts: dict[str, int]
    """By table: its number of rows."""
    drops: dict[str, int]
    """By reason: how many were left out."""
    other_spans: int
    """Spans that describe no call, such as those of transports; `counts` has them among `drops`."""
    alarms: dict[str, list[str]]
    """By wave as in `waves`: one sentence for each drop reason that correlates with low reward."""
    savings: dict[str, int]
    """The prompt tokens that merging saved, and the counts of why rows begin."""
    token_sources: dict[str, int]
    """Rows by their `tokens`: as sampled, or rendered by a chat template."""
    rendered: dict[str, Any]
    """Of a recipe with `token_source = "rendered"`: the `rows`, the calls `left_out` by reason, the
    `bias` in a sentence, and where it is `measured`; else empty."""
    capture_mismatch: int
    """Calls of which two instruments recorded different responses."""
    files: dict[str, FileDigest]
    """By path in the dataset: the size and SHA-256 of a file."""

    @staticmethod
    def state_bias(token_sources: Mapping[str, int], drops: Mapping[str, int]) -> dict[str, Any]:
        """Return the field `rendered` of counts of rows and of drops."""
        left_out = {name: drops[name] for name in rendering.REASONS if drops.get(name)}
        rows = token_sources.get(rendering.RENDERED, 0)
        return {"rows": rows, "left_out": left_out, **rendering.BIAS}

    def to_json(self) -> str:
        return seal(asdict(self))


def sort_rows(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Sort the rows of a table by its keys."""
    return frame.sort(KEYS[name], nulls_last=True, maintain_order=True)


def policy_versions(calls: pl.DataFrame) -> dict[str, list[int]]:
    """Return the versions of each policy that answered a call, by the policy's name."""
    pairs = calls.select("policy", "policy_version").drop_nulls().unique().sort(pl.all())
    versions: dict[str, list[int]] = {}
    for policy, version in pairs.iter_rows():
        versions.setdefault(policy, []).append(version)
    return versions


def count_reasons(drops: pl.DataFrame) -> dict[str, int]:
    """Count the drops by reason."""
    return dict(drops.group_by("reason").len().sort("reason").iter_rows())
