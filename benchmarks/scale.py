"""How costs grow with spans, tasks and calls: CPU, memory, and what grows faster than linear.

Each table is of one size. Stores of more spans have more waves of 16 tasks with 8 rollouts of 16
spans; a wave of more tasks has 8 rollouts of one call each. The overhead of a wave is that of
`ltrain run` without rollouts, training and weights: to draw tasks, to wait
for spans, to summarize, to build the dataset, to select its rows, and to publish a version whose
lineage has a version for each earlier wave.
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from benchmarks import credit, transforms, ui
from benchmarks.support.growth import Cost, above_linear, draw_table, median_cost
from benchmarks.support.process_cost import cpu_seconds, idle_cpu_seconds, run_measured
from benchmarks.support.servers import LTRAIN, ui_pages, write_model
from opentelemetry.trace import NoOpTracer

from ltrain_collector.store import Store
from ltrain_train.policy import Policies
from ltrain_train.publishing import TrainedVersion, promote, register
from ltrain_train.rollout import Task
from ltrain_train.schedule import TaskSampler, WindowedFifo
from ltrain_train.updates import select_rows
from ltrain_transforms.datasets import Dataset, build
from ltrain_transforms.ended_rollout import EndedRollout
from ltrain_transforms.policy_lineage import Lineage
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.source import wait_ended

SPANS = (10_000, 100_000, 1_000_000)
TASKS = (10, 100, 1_000, 10_000)
CALLS = (100, 1_000, 10_000)
WAVE_TASKS = 16
"""Tasks of a wave of the stores that differ in their spans."""
GROUP = 8
"""Rollouts of a task."""
MAX_WAVE_SPANS = 1_000_000
"""Spans of the largest wave whose credit is measured."""
WORKERS = 2
"""Processes of `ltrain build`."""
REQUESTS = 5
"""Requests of each page."""
RUN, POLICY = "bench", "sql"
FAR = 1_000_000
"""A `train.max_staleness` that keeps the rollouts of a wave, which version 0 has sampled."""

Costs = Iterator[tuple[str, Cost]]


@dataclass(frozen=True, slots=True)
class FilledStore:
    """A store with waves of one size, a recipe for it, and its home."""

    folder: Path
    rollouts: int
    tasks: int
    """Tasks of a wave."""

    @classmethod
    def fill(
        cls, folder: Path, rollouts: int, tasks: int, kinds: Sequence[str], tokens: int
    ) -> "FilledStore":
        """Write the rollouts, and a recipe that trains on every call."""
        transforms.fill(folder / "store", rollouts, tasks=tasks, kinds=kinds, tokens=tokens)
        every_call = transforms.RECIPE.replace(', agents = ["write"]', "")
        (folder / "ltrain.toml").write_text(f"{every_call}\n[train]\nmax_staleness = {FAR}\n")
        return cls(folder, rollouts, tasks)

    @property
    def url(self) -> str:
        return f"chdb://{self.folder / 'store'}"

    @property
    def last_wave(self) -> int:
        """Number of the last wave that has all its rollouts; 0 if none has."""
        return max(self.rollouts // (self.tasks * GROUP) - 1, 0)

    def rollouts_of(self, wave: int) -> list[str]:
        """Return the ids of the rollouts of a wave."""
        size = self.tasks * GROUP
        numbers = range(wave * size, min((wave + 1) * size, self.rollouts))
        return [transforms.rollout_id(number) for number in numbers]


def measure_show(url: str, rollout: str) -> Cost:
    """Return the cost of `ltrain show`."""
    command = [LTRAIN, "show", f"rollout:{rollout}", "--store", url, "--json"]
    cost = run_measured(command)
    return Cost(cost.cpu, cost.peak)


def measure_build(filled: FilledStore) -> Cost:
    """Return the cost of `ltrain build` of the whole store."""
    place = filled.folder / "build"  # `measure` writes a recipe of its own
    place.mkdir()
    cost = transforms.measure(filled.folder / "store", place, WORKERS)
    return Cost(cost["cpu"], cost["peak"])


def measure_pages(filled: FilledStore) -> Costs:
    """Yield the CPU seconds of `ltrain ui` for each page."""
    wave = filled.last_wave
    ids = filled.rollouts_of(wave)[: REQUESTS + 1]
    pages = {
        "runs": ["/"],
        "run": [f"/runs/{RUN}"],
        "wave": [f"/runs/{RUN}/waves/{wave}"],
        "list": ["/rollouts"],
        "list of a task": [f"/rollouts?run={RUN}&task=t3"],
        "list by text": ["/rollouts?text=no-such-text"],
        "find": [f"/find?id={name}" for name in ids],
        "tree": [f"/rollouts/{name}" for name in ids],
    }
    recipe = ("--recipe", str(filled.folder / "ltrain.toml"))
    with ui_pages(filled.url, filled.folder / "home", *recipe) as (process, client):
        for name, addresses in pages.items():
            yield f"page: {name}", _measure_page(client, process, addresses)


def _measure_page(client: httpx.Client, process: str, addresses: Sequence[str]) -> Cost:
    """Return the mean CPU seconds of the requests after the first, which imports what it needs."""

    def get(number: int) -> None:
        response = client.get(addresses[number % len(addresses)])
        if response.is_error:
            sys.exit(f"{response.url} failed: {response.text}")

    get(0)
    before = idle_cpu_seconds(process)
    for number in range(1, REQUESTS + 1):
        get(number)
    return Cost((cpu_seconds(process) - before) / REQUESTS)


def measure_wave(filled: FilledStore) -> Costs:
    """Yield what the last wave of the store costs the loop."""
    wave, home = filled.last_wave, filled.folder / "home"
    ids = filled.rollouts_of(wave)
    ended = [
        EndedRollout(rollout=each, attempt=1, task="", wave=wave, outcome="ok") for each in ids
    ]
    recipe = Recipe.load(filled.folder / "ltrain.toml")
    policies = publish_waves(filled, home)
    lineage = Lineage.read(policies.directory / POLICY, policies.latest(POLICY))
    out = home / "dataset"
    with Store.open(filled.url) as store:

        def build_wave() -> None:
            options: dict[str, Any] = {"wave": wave, "mode": "train", "replace": True}
            build(store, recipe, out, lineage=lineage, **options)

        operations: dict[str, Callable[[], object]] = {
            "settle": lambda: _require(not wait_ended(store, ended, 0), "spans are missing"),
            "build": build_wave,
        }
        for name, run in operations.items():
            yield f"wave: {name}", median_cost(run)
    dataset = Dataset.open(out)
    _require(dataset.counts["samples"] > 0, "the wave has no sample")
    yield "wave: rows", median_cost(lambda: select_rows(dataset, lineage, FAR))
    yield "wave: publish", median_cost(lambda: publish(policies, ids, home / "draft"))
    folder = policies.directory / POLICY
    yield "wave: lineage", median_cost(lambda: Lineage.read(folder, policies.latest(POLICY)))


def publish_waves(filled: FilledStore, home: Path) -> Policies:
    """Publish a version of a policy for each wave before the last."""
    home.mkdir(exist_ok=True)
    policies = Policies(home)
    policies.register(POLICY, write_model(home / "model"))
    for wave in range(filled.last_wave):
        publish(policies, filled.rollouts_of(wave), home / "draft")
    return policies


def publish(policies: Policies, rollouts: Sequence[str], draft: Path) -> None:
    """Publish the next version, with weights of four bytes."""
    parent = policies.latest(POLICY)
    version = TrainedVersion(POLICY, parent, "dataset", "recipe", None)
    number = register(policies, write_model(draft), version, rollouts)
    promote(policies, version.policy, number, None, NoOpTracer(), version.origin)


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        sys.exit(f"The measured work is not whole: {sentence}.")


def measure_schedule(count: int) -> Costs:
    """Yield what it costs to draw every task for a wave, and to release its groups."""
    tasks = [Task(id=f"t{number}", input="") for number in range(count)]
    scores = {task.id: index / count for index, task in enumerate(tasks)}

    def draw(target: float | None) -> int:
        sampler = TaskSampler(tasks, seed=0, target_score=target)
        sampler.add_scores(scores)
        sampler.begin_wave()
        return len(sampler.draw(count))

    def release() -> None:
        fifo = WindowedFifo[str](count, count)
        for task in tasks:
            fifo.start(task.id)
        for task in reversed(tasks):
            fifo.finish(task.id)
        while fifo.fetch() is not None:
            pass

    yield "wave: draw by epochs", median_cost(lambda: draw(None))
    yield "wave: draw by difficulty", median_cost(lambda: draw(0.5))
    yield "wave: release", median_cost(release)


def measure_credit(spans: int) -> Costs:
    """Yield the CPU seconds of each estimator, for executions with this number of spans."""
    wave = credit.make_wave(spans // (2 * credit.TURNS + 2))
    credit.run({}, wave)  # the first run starts threads
    for name, section in credit.recipes():
        yield f"credit: {name}", median_cost(partial(credit.run, section, wave))


def measure_spans(spans: int, place: Path, tokens: int) -> Costs:
    """Yield the costs that are measured with a store of this number of spans."""
    rollouts = spans // transforms.SPANS
    filled = FilledStore.fill(place, rollouts, WAVE_TASKS, transforms.EVERY_KIND, tokens)
    yield "`ltrain build`", measure_build(filled)
    yield "`ltrain show` of 16 spans", measure_show(filled.url, filled.rollouts_of(0)[0])
    yield from measure_pages(filled)
    yield from measure_wave(filled)
    if spans <= MAX_WAVE_SPANS:
        yield from measure_credit(spans)


def measure_tasks(tasks: int, place: Path, tokens: int) -> Costs:
    """Yield the costs that are measured with a wave of this number of tasks."""
    yield from measure_schedule(tasks)
    filled = FilledStore.fill(place, tasks * GROUP, tasks, transforms.ONE_CALL, tokens)
    yield from measure_wave(filled)
    yield from measure_pages(filled)


def measure_calls(calls: int, place: Path, tokens: int) -> Costs:
    """Yield the cost of `ltrain show` of one rollout with this number of calls of a fixed size."""
    url = f"chdb://{place / 'store'}"
    with Store.open(url) as store:
        store.migrate()
        ui.fill(store, calls, 1)
    yield "`ltrain show`", measure_show(url, ui.rollout_id(calls, 0))


MEASURES: dict[str, Callable[[int, Path, int], Costs]] = {
    "spans": measure_spans,
    "tasks": measure_tasks,
    "calls": measure_calls,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, sizes in (("spans", SPANS), ("tasks", TASKS), ("calls", CALLS)):
        parser.add_argument(f"--{name}", type=int, nargs="*", default=sizes)
    parser.add_argument(
        "--tokens", type=int, default=transforms.TOKENS, help="tokens of a rollout's last chat"
    )
    parser.add_argument("--dir", help="the folder for temporary stores")
    arguments = parser.parse_args()
    faster = list[str]()
    for unit, measure in MEASURES.items():
        costs: defaultdict[str, dict[int, Cost]] = defaultdict(dict)
        for size in sorted(getattr(arguments, unit)):
            with tempfile.TemporaryDirectory(prefix="ltrain-scale-", dir=arguments.dir) as name:
                for operation, cost in measure(size, Path(name), arguments.tokens):
                    print(f"{unit} {size}: {operation} {cost.cpu:.3f}", file=sys.stderr, flush=True)
                    costs[operation][size] = cost
        if costs:
            print(draw_table(costs, unit), end="\n\n", flush=True)
        faster += [f"{operation} by {unit}" for operation in above_linear(costs)]
    print(
        json.dumps(
            {
                "name": "scale",
                "value": len(faster),
                "unit": "operations whose CPU grows faster than linear",
                "peer": None,
                "ratio": None,
                "faster": faster,
            }
        )
    )


if __name__ == "__main__":
    main()
