"""Scores of a policy's versions, which versions are kept, and which spans.

Kept are the current version, both versions of a trial, version 0, the best by validation, and the
newest ones; also the versions that a gateway serves or a run has as its reference, and those that
others or an unfinished run need. A checkpoint is kept as long as its version. The store may lose
its old spans but those that a kept version was trained on, so that its dataset can be built again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean

import polars as pl

from ltrain_collector.admin import EXECUTION, PruneFilter, prune
from ltrain_collector.store import Store
from ltrain_train.policy import Deployments, Policies
from ltrain_train.runs import PolicyJournal, Wave, read_journals
from ltrain_transforms.datasets import Dataset, list_datasets
from ltrain_transforms.policy_file import LEDGER

OLD_EXECUTIONS = f"""
SELECT DISTINCT {EXECUTION} AS execution FROM otel.spans
WHERE Timestamp < fromUnixTimestamp64Milli({{before:Int64}}, 'UTC')
"""


@dataclass(frozen=True, slots=True)
class VersionScores:
    """The mean scores of the rollouts that one version sampled; None: there are none."""

    validation: float | None = None
    training: float | None = None
    rollouts: int = 0
    """The rollouts of the validations."""
    failed: int = 0
    """Those rollouts that did not end well."""
    tasks: Mapping[str, float] = field(default_factory=dict)
    """The mean validation score of each held-out task."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The result of a removal of versions."""

    versions: list[int]
    """The removed versions."""
    freed: int
    """Bytes."""


def read_scores(runs: Path, policy: str) -> dict[int, VersionScores]:
    """Return the scores of each version of a policy, from the journals of its runs."""
    return _mean_scores(read_journals(runs, policy))


def _mean_scores(journals: Iterable[PolicyJournal]) -> dict[int, VersionScores]:
    waves = [wave for journal in journals for wave in journal.waves]
    return {
        version: _version_scores([wave for wave in waves if wave.version == version])
        for version in {wave.version for wave in waves}
    }


def _version_scores(waves: Sequence[Wave]) -> VersionScores:
    """Return the scores of the version that these waves sampled."""
    validations = [wave for wave in waves if wave.mode == "val" and wave.score is not None]
    tasks = {task for wave in validations for task in wave.tasks}
    return VersionScores(
        _mean_score(validations),
        _mean_score([wave for wave in waves if wave.mode == "train"]),
        rollouts=sum(wave.rollouts for wave in validations),
        failed=sum(
            count for wave in validations for name, count in wave.outcomes.items() if name != "ok"
        ),
        tasks={
            task: fmean(wave.tasks[task] for wave in validations if task in wave.tasks)
            for task in sorted(tasks)
        },
    )


def best_version(scores: dict[int, VersionScores], versions: Collection[int]) -> int | None:
    """Return the version with the highest validation score, the newest of equal ones."""
    validated = [
        (each.validation, version)
        for version, each in scores.items()
        if each.validation is not None and version in versions
    ]
    return max(validated)[1] if validated else None


def prune_versions(
    policies: Policies, policy: str, runs: Path, *, keep: int, in_use: Collection[int] = ()
) -> Removal:
    """Remove the versions of a policy that are not kept, with their checkpoints.

    Args:
        keep: number of the newest versions that are kept.
        in_use: further versions that are kept.
    """
    removed = superfluous_versions(policies, policy, runs, keep=keep, in_use=in_use)
    for version in removed:
        policies.remove(policy, version)
    return Removal(removed, policies.sweep(policy))


def superfluous_versions(
    policies: Policies, policy: str, runs: Path, *, keep: int, in_use: Collection[int] = ()
) -> list[int]:
    """Return the versions that `prune_versions` removes."""
    versions = policies.versions(policy)
    current = policies.read_version(policy, policies.current(policy))
    journals = read_journals(runs, policy)
    best = best_version(_mean_scores(journals), versions)
    unfinished = (each for each in journals if not each.finished and each.leads_to(current))
    continued = {journal.latest for journal in unfinished}
    held = {version for version in versions if policies.is_held(policy, version)}
    if (candidate := Deployments(policies, policy).candidate()) is not None:
        held |= {candidate.version, candidate.beside or 0}
    kept = {0, current.version, best, *versions[-keep:], *in_use, *continued, *held}
    bases = {policies.read_version(policy, each).base for each in versions if each in kept}
    return [version for version in versions if version not in kept | bases]


def _mean_score(waves: Iterable[Wave]) -> float | None:
    """Return the mean score over all rollouts of these waves."""
    scored = [(wave.score, wave.rollouts) for wave in waves if wave.score is not None]
    rollouts = sum(count for _, count in scored)
    return sum(score * count for score, count in scored) / rollouts if rollouts else None


def prune_spans(store: Store, home: Path, before: datetime) -> int:
    """Remove spans, log records and metrics from before a time; return the number of spans.

    Those of executions that a version in `home` was trained on stay.

    Raises:
        LtrainError: when the store cannot be changed, or a dataset cannot be read.
    """
    parameters = {"before": int(before.timestamp() * 1000)}
    old = store.query(OLD_EXECUTIONS, parameters)["execution"]
    kept = tuple(sorted(_trained_executions(home) & set(old)))
    spans, *_ = prune(store, PruneFilter(before=before, kept=kept), delete=True)
    return spans.rows


def _trained_executions(home: Path) -> set[str]:
    """Return the rollouts and traces that the versions of a home were trained on."""
    policies, datasets = Policies(home), {name: path for path, name in list_datasets(home)}
    found: set[str] = set()
    for policy in policies.names():
        for version in policies.versions(policy):
            ledger = policies.path(policy, version) / LEDGER
            if ledger.is_file():
                found.update(pl.read_parquet(ledger)["rollout"])
            dataset = policies.read_version(policy, version).dataset
            if dataset in datasets:  # an execution may have several traces
                calls = Dataset.open(datasets[dataset]).scan("calls")
                found.update(calls.select("trace_id").unique().collect()["trace_id"])
    return found
