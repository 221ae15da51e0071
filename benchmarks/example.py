"""Train an example with each seed, and write its results and their picture: NAME --seeds 0 1 2.

The results of `ltrain.toml` are in `examples/NAME/results`; those of another recipe are in a folder
of its name there. A run that was stopped continues, and one that is finished is not repeated. The
tables in the README files of examples are made again from all results.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learn import environment
from benchmarks.support.curve_svg import draw_curves
from benchmarks.support.results_table import replace_tables, summarize_seeds

from ltrain_train.policy import Policies, fast_dtype
from ltrain_train.rollout import load_tasks
from ltrain_train.runs import Journal, Wave, WaveSummary
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.scores import mean, mean_interval, paired_differences

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
RUNS = ROOT / ".ltrain/examples"
"""The runs: a folder for each example, recipe and seed."""
MODEL = ROOT / ".ltrain/models/smollm2"
DEFAULT_RECIPE = "ltrain.toml"
PLACES = 4
"""Decimal places of the figures."""


def machine() -> str:
    """Return the processor, the number of cores and the type that the learner computes in."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return f"{names[0] if names else platform.machine()}, {cores} cores, {fast_dtype()}"


def commit() -> str:
    """Return the commit of the clone, marked if files differ from it."""
    command = ["git", "-C", str(EXAMPLES), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def by_domain(scores: Mapping[str, float], domains: Mapping[str, str]) -> dict[str, float]:
    """Return the mean score of all tasks, and of each domain if there are several."""
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for task, score in scores.items():
        parts["all"].append(score)
        if domains.get(task):
            parts[domains[task]].append(score)
    if len(parts) == 2:
        parts = defaultdict(list, {"all": parts["all"]})
    return {name: round(sum(values) / len(values), PLACES) for name, values in parts.items()}


def held_out(first: Wave, last: Wave, domains: Mapping[str, str]) -> dict[str, Any]:
    """Return the scores before and after, and the interval of their paired difference."""
    before, after = (by_domain(wave.tasks, domains) for wave in (first, last))
    differences = paired_differences(first.tasks, last.tasks)
    result: dict[str, Any] = {"versions": [first.version, last.version]}
    for name in before:
        own = [
            difference
            for task, difference in differences.items()
            if name in ("all", domains.get(task))
        ]
        interval = mean_interval(own)
        result[name] = {
            "tasks": len(own),
            "before": before[name],
            "after": after[name],
            "difference": round(mean(own) or 0.0, PLACES),
            "interval_95": interval and [round(interval.low, PLACES), round(interval.high, PLACES)],
        }
    return result


def curve(waves: Sequence[Wave], domains: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the figures of each wave."""
    return [
        {
            "mode": wave.mode,
            "wave": wave.wave,
            "version": wave.version,
            "score": by_domain(wave.tasks, domains),
            "evaluations": {name: round(value, PLACES) for name, value in wave.evaluations.items()},
            "outcomes": wave.outcomes,
            **(
                {"rules": wave.rules, "rows": wave.samples, "tokens": wave.tokens}
                if wave.mode == "train"
                else {}
            ),
            "seconds": wave.seconds,
        }
        for wave in waves
    ]


def share_without_spread(journal: Journal, recipe: Recipe) -> float | None:
    """Return the share of training groups whose rollouts all have the same evaluations."""
    equal = total = 0
    names = {reward.evaluation for reward in recipe.reward if reward.evaluation}
    for (mode, _), wave in journal.completed.items():
        if mode != "train":
            continue
        values: defaultdict[str, Counter[tuple[float, ...]]] = defaultdict(Counter)
        for rollout in WaveSummary(wave.rollouts).counted:
            own = tuple(rollout.evaluations.get(name, 0.0) for name in sorted(names))
            values[rollout.task][own] += 1
        equal += sum(len(counts) == 1 for counts in values.values())
        total += len(values)
    return round(equal / total, PLACES) if total else None


def prepare(script: Path, folder: Path, model: Path) -> None:
    """Run a script that makes the first versions of the policy, unless it has succeeded before.

    It uses the default ports, so nothing else may serve there.
    """
    done = folder / "prepared"
    if not done.exists():
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "LTRAIN_HOME": str(folder / ".ltrain"), "PATH": programs}
        command = ["bash", str(script), str(model)]
        subprocess.run(command, check=True, env=variables, stdout=sys.stderr)
        done.touch()


def train(recipe: Path, seed: int, folder: Path, model: Path, *options: str) -> None:
    """Run the recipe with the seed and more options; its files are in `folder`."""
    command = [sys.executable, "-m", "ltrain", "run", str(recipe), "--from-clickhouse"]
    command += ["--model", str(model), "--seed", str(seed), *options]
    subprocess.run(command, check=True, env=environment(folder), stdout=sys.stderr)


def load_journal(home: Path, recipe: Recipe) -> Journal | None:
    """Return the journal of the recipe's run in `home`, if the run is finished."""
    journal = Journal.load(home / "runs" / str(recipe.source.run))
    return journal if journal and journal.finished else None


def results(recipe_file: Path, seed: int, home: Path) -> dict[str, Any]:
    """Return the results of the finished run in `home`."""
    folder = recipe_file.parent
    recipe = Recipe.load(recipe_file)
    journal = load_journal(home, recipe)
    assert journal is not None and recipe.rollout is not None
    files = [recipe.rollout.tasks, recipe.rollout.validation]
    domains = {task.id: task.domain for file in files if file for task in load_tasks(folder / file)}
    policies = Policies(home)
    figures: dict[str, Any] = {}
    for policy in journal.policies:
        waves = journal.of(policy).waves
        validations = [wave for wave in waves if wave.mode == "val" and wave.tasks]
        figures[policy] = {
            "held_out": held_out(validations[0], validations[-1], domains),
            "versions": {
                version: policies.read_version(policy, version).digest
                for version in policies.versions(policy)
            },
            "datasets": [wave.dataset for wave in waves if wave.dataset],
            "waves": curve(waves, domains),
        }
    seconds: Counter[str] = Counter()
    for wave in journal.waves:
        seconds.update(wave.seconds)
    phases = [phase for wave in journal.waves for phase in wave.phases]
    return {
        "example": folder.name,
        "recipe": recipe_file.name,
        "seed": seed,
        "commit": commit(),
        "machine": machine(),
        "groups_without_spread": share_without_spread(journal, recipe),
        "seconds": {
            **{phase: round(value, 1) for phase, value in seconds.items()},
            "first_to_last_phase": round(
                max(phase.ended for phase in phases) - min(phase.began for phase in phases), 1
            ),
        },
        "policies": figures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="the folder of the example")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--recipe", default=DEFAULT_RECIPE, help="a recipe in that folder")
    parser.add_argument("--prepare", help="a script there to run first, such as a warm start")
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    recipe = EXAMPLES / arguments.name / arguments.recipe
    folder = recipe.parent / "results"
    if arguments.recipe != DEFAULT_RECIPE:
        folder = folder / recipe.stem
    folder.mkdir(parents=True, exist_ok=True)
    for seed in arguments.seeds:
        run = RUNS / arguments.name / recipe.stem / f"seed{seed}"
        if load_journal(run / ".ltrain", Recipe.load(recipe)) is None:
            if arguments.prepare:
                prepare(recipe.parent / arguments.prepare, run, arguments.model)
            train(recipe, seed, run, arguments.model)
        figures = results(recipe, seed, run / ".ltrain")
        (folder / f"seed{seed}.json").write_text(json.dumps(figures, indent=1) + "\n")
        for policy, own in figures["policies"].items():
            print(json.dumps({"seed": seed, "policy": policy, "held_out": own["held_out"]}))
    seeds = [json.loads(file.read_text()) for file in sorted(folder.glob("seed*.json"))]
    (folder / "curve.svg").write_text(draw_curves(seeds))
    replace_tables(EXAMPLES)
    for row in summarize_seeds(seeds):
        print(json.dumps(row))
    print(f"Wrote results and curve.svg to {folder}, and the tables of the pages.")


if __name__ == "__main__":
    main()
