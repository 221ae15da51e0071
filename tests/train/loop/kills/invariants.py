"""What must hold of a home after kills: nothing was trained on twice, and nothing was lost."""

from collections import Counter
from pathlib import Path

import polars as pl
from tests.fake_backend import read_trained

from ltrain_collector.store import Store
from ltrain_instrument.identity import rollout_id
from ltrain_train.policy import Policies
from ltrain_train.runs.journal import Completed, Dispatched, Journal, Published, Trained
from ltrain_transforms.datasets import MANIFEST, Dataset
from ltrain_transforms.policy_file import LEDGER

EXECUTIONS_SQL = """
SELECT RolloutId AS rollout, toInt32(Attempt) AS attempt, any(Wave) AS wave, any(TaskId) AS task,
    anyIf(SpanAttributes['ltrain.rollout.outcome'], SpanName = 'ltrain.rollout') AS outcome
FROM otel.spans WHERE RunId = {run:String} AND Mode = 'train' AND RolloutId != ''
GROUP BY rollout, attempt
"""


def read_ledger(policies: Policies, policy: str, version: int) -> list[str]:
    """Return the rollouts that made a version from its parent."""
    return list(pl.read_parquet(policies.path(policy, version) / LEDGER)["rollout"])


def check_lineage(home: Path, policy: str) -> list[str]:
    """Check that every version has its own ledger and weights; return the lineage's rollouts."""
    policies, trained = Policies(home), list[str]()
    lineage: list[int] = []
    version: int | None = policies.current(policy)
    while version is not None:
        lineage.insert(0, version)
        version = policies.read_version(policy, version).parent
    for each in lineage[1:]:
        ledger = read_ledger(policies, policy, each)
        assert ledger and not set(ledger) & set(trained), each
        trained += sorted(ledger)
        weights = read_trained(policies.path(policy, each))
        assert weights == trained, f"v{each} was not trained on what its lineage says"
    return trained


def check_journal(journal: Journal, policies: Policies, policy: str, updates: int) -> None:
    """Check that each wave has one training, and each published version one parent."""
    assert journal.finished and journal.updates == updates
    # a kill between two events of an update repeats it: then the last training counts
    trained = {event.wave: event for event in journal.events if isinstance(event, Trained)}
    published = [event for event in journal.events if isinstance(event, Published)]
    changed = [wave for wave, event in trained.items() if event.changed]
    assert sorted(trained) == list(range(updates))
    assert [event.wave for event in published] == sorted(changed)
    parents = [journal.policies[policy], *(event.version for event in published)]
    for parent, event in zip(parents, published, strict=False):
        manifest = policies.read_version(policy, event.version)
        assert (manifest.parent, manifest.dataset) == (parent, trained[event.wave].dataset)
    groups = [
        group
        for event in journal.events
        if isinstance(event, Completed) and event.mode == "train"
        for group in event.groups
    ]
    dispatched = [
        (event.wave, task)
        for event in journal.events
        if isinstance(event, Dispatched) and event.mode == "train"
        for task in event.tasks
    ]
    assert sorted(groups) == sorted(set(dispatched)) == sorted(dispatched)


def known_outcomes(journal: Journal, number: int) -> dict[str, str]:
    """Return the outcome of each rollout of a training wave, as its runner knows it."""
    ended = journal.completed["train", number].rollouts
    assert Counter(each.outcome for each in ended) == journal.evaluated["train", number].outcomes
    return {f"{each.rollout}.{each.attempt}": each.outcome for each in ended}


def check_rollouts(
    home: Path, journal: Journal, store: str, samples: int, trained: list[str]
) -> None:
    """Check that each stored execution was trained on, or is a drop of the dataset of its wave."""
    with Store.open(store) as opened:
        executions = opened.query(EXECUTIONS_SQL, {"run": journal.run})
    in_store = {f"{row['rollout']}.{row['attempt']}": row for row in executions.to_dicts()}
    fates, used = Counter[tuple[str, int]](), list[str]()
    for number in range(journal.updates):
        dataset = Dataset.open(home / "datasets" / journal.run / f"train-{number}")
        rows = dataset.table("samples")["execution_id"].unique()
        dropped = dataset.drops.filter(pl.col("stage").is_in(["executions", "groups"]))["id"]
        executed = dataset.table("executions").filter(~pl.col("superseded"))
        outcomes = dict(executed.select("execution_id", "outcome").iter_rows())
        assert outcomes == known_outcomes(journal, number), "dataset = journal"
        assert outcomes == {each: in_store[each]["outcome"] for each in outcomes}, "dataset = store"
        table = dataset.table("executions").select("execution_id", "rollout_id", "attempt")
        for execution, rollout, attempt in table.iter_rows():
            assert (execution in rows) + (execution in dropped) == 1, (number, execution)
            fates[rollout, attempt] += 1
        used += dataset.table("samples")["rollout_id"].unique().sort().to_list()
    assert used == trained
    stored = Counter((row[0], row[1]) for row in executions.iter_rows())
    assert fates == stored, "in = out + drops"
    completed = [wave.groups for (mode, _), wave in journal.completed.items() if mode == "train"]
    planned = {
        rollout_id(journal.run, "train", wave, task, sample)
        for groups in completed
        for wave, task in groups
        for sample in range(samples)
    }
    ended = executions.filter(outcome="ok")
    assert ended["rollout"].is_unique().all()
    assert set(ended["rollout"]) == planned == set(executions["rollout"])


def check_datasets(home: Path, run: str, policy: str) -> None:
    """Check that each version has the dataset of its ledger, whose executions all have a fate."""
    policies = Policies(home)
    folders = (home / "datasets" / run).iterdir()
    datasets = [Dataset.open(each) for each in folders if (each / MANIFEST).is_file()]
    by_id = {dataset.id: dataset for dataset in datasets}
    for version in policies.versions(policy)[1:]:
        dataset = by_id[str(policies.read_version(policy, version).dataset)]
        used = dataset.table("samples")["rollout_id"].unique().sort().to_list()
        assert used == read_ledger(policies, policy, version)
    for dataset in datasets:
        rows = set(dataset.table("samples")["execution_id"])
        dropped = set(dataset.drops.filter(pl.col("stage").is_in(["executions", "groups"]))["id"])
        assert not rows & dropped
        assert rows | dropped == set(dataset.table("executions")["execution_id"])
