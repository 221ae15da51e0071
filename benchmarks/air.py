"""Rollouts until an outcome of 0.8 with and without rules, on the task of examples/air: [VARIANT]…

A tiny random policy learns with the real vLLM and verl, once for each recipe of the example and
each seed, which is that of its weights. The results are `examples/air/results/VARIANT-SEED.json`. A
run whose file exists is not repeated, and one that was stopped continues. The picture and the table
in the example's page are made again from all files.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.example import commit, load_journal, machine, train
from benchmarks.learn import TINY
from benchmarks.support.curve_svg import draw_variants
from setup.markdown import mark, replace_part, table

from ltrain_train.runs import Wave
from ltrain_transforms.recipe import Recipe

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/air"
RESULTS = EXAMPLE / "results"
PICTURE = RESULTS / "outcome.svg"
RUNS = ROOT / ".ltrain/air"
"""The runs: a folder for each variant and seed."""
VARIANTS = {
    "rules off": "rules_off.toml",
    "tool status": "tool_status.toml",
    "potential": "potentials.toml",
    "gated bonus": "gated.toml",
    "bounded bonus": "ltrain.toml",
    "plain bonus": "farmed.toml",
}
"""The recipe of each variant, in the order of the table."""
BAR = 0.8
LAST = 3
"""Waves at the end whose mean outcome is the final one."""
FARMED = "the policy may farm the rule"
"""The text of the alarms that the table has."""
BEGIN = mark("results", "make bench-air")
COLUMNS = ("variant", "recipe", "rollouts until 0.8", "final outcome", "reads", "alarm in wave")

Result = Mapping[str, Any]
"""The contents of a `VARIANT-SEED.json`."""


def tiny_model(seed: int) -> Path:
    """Return the random model of a seed; it is written at the first call."""
    model = RUNS / f"tiny-{seed}"
    if not model.exists():
        subprocess.run([sys.executable, TINY, model, str(seed)], check=True, capture_output=True)
    return model


def read_result(variant: str, seed: int, home: Path) -> dict[str, Any]:
    """Return the result of the finished run in `home`."""
    journal = load_journal(home, Recipe.load(EXAMPLE / VARIANTS[variant]))
    assert journal is not None
    waves = [wave for wave in journal.waves if wave.mode == "train"]
    phases = [phase for wave in waves for phase in wave.phases]
    return {
        "variant": variant,
        "recipe": VARIANTS[variant],
        "seed": seed,
        "commit": commit(),
        "machine": machine(),
        "seconds": round(max(p.ended for p in phases) - min(p.began for p in phases), 1),
        "waves": [_figures(wave) for wave in waves],
    }


def _figures(wave: Wave) -> dict[str, Any]:
    return {
        "wave": wave.wave,
        "rollouts": wave.rollouts,
        "outcome": round(wave.evaluations["reward"], 4),
        "reads": round(wave.evaluations["reads"], 4),
        "rules": {name: round(mean, 4) for name, mean in wave.rules.items()},
        "alarms": list(wave.alarms),
    }


def rollouts_to_bar(result: Result) -> int | None:
    """Return the rollouts up to the end of the first wave at `BAR`; None if there is no such."""
    total: int = 0
    for wave in result["waves"]:
        total += int(wave["rollouts"])
        if wave["outcome"] >= BAR:
            return total
    return None


def draw_table(results: Sequence[Result]) -> str:
    """Return the table in Markdown: for each variant the median over the seeds, and all values."""
    rows = []
    for variant, recipe in VARIANTS.items():
        own = [result for result in results if result["variant"] == variant]
        if own:
            finals = {
                name: [_final(result, name) for result in own] for name in ("outcome", "reads")
            }
            rows.append(
                (
                    variant,
                    f"`{recipe}`",
                    _rollouts([rollouts_to_bar(result) for result in own]),
                    *(_spread(values) for values in finals.values()),
                    _alarms(own),
                )
            )
    return table(COLUMNS, rows)


def is_farmed(wave: Mapping[str, Any]) -> bool:
    """Return whether a wave has an alarm for a rule that the policy may farm."""
    return any(FARMED in alarm for alarm in wave["alarms"])


def _final(result: Result, name: str) -> float:
    waves = result["waves"][-LAST:]
    return float(sum(wave[name] for wave in waves) / len(waves))


def _rollouts(counts: Sequence[int | None]) -> str:
    """Return the median and all counts; a run that did not reach the bar is above all others."""
    ordered = sorted(counts, key=lambda count: float("inf") if count is None else count)
    texts = ["never" if count is None else f"{count:,}" for count in ordered]
    return f"**{texts[len(texts) // 2]}** ({'; '.join(texts)})"


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _alarms(results: Sequence[Result]) -> str:
    """Return the first wave in which a rule may be farmed, of each seed that has one."""
    first = [
        next((str(wave["wave"]) for wave in result["waves"] if is_farmed(wave)), None)
        for result in results
    ]
    fired = [wave for wave in first if wave is not None]
    return ", ".join(fired) or "none"


def replace_table(page: str, results: Sequence[Result]) -> str:
    """Return the text of the example's page with table and picture between its marks."""
    picture = f"\n\n![outcome by updates](results/{PICTURE.name})" if results else ""
    return replace_part(page, BEGIN, draw_table(results) + picture)


def draw_picture(results: Sequence[Result]) -> str:
    """Return the SVG of the outcome by updates: the median over the seeds, and each seed."""
    curves = {
        variant: [
            [(wave["wave"], wave["outcome"]) for wave in result["waves"]]
            for result in results
            if result["variant"] == variant
        ]
        for variant in VARIANTS
    }
    return draw_variants("air: outcome of training rollouts by updates, median", curves)


def load_results() -> list[dict[str, Any]]:
    """Return the results that exist, by variant and seed."""
    found = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    return sorted(
        found, key=lambda result: (list(VARIANTS).index(result["variant"]), result["seed"])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*", help="names of recipes; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for variant, recipe in VARIANTS.items():
            name = Path(recipe).stem
            file = RESULTS / f"{name}-{seed}.json"
            if file.exists() or (arguments.variants and name not in arguments.variants):
                continue
            folder = RUNS / f"{name}-{seed}"
            train(EXAMPLE / recipe, seed, folder, tiny_model(seed))
            result = read_result(variant, seed, folder / ".ltrain")
            file.write_text(json.dumps(result, indent=1) + "\n")
            print(
                f"{file.stem}: {rollouts_to_bar(result)} rollouts, {result['seconds']} s",
                flush=True,
            )
    results = load_results()
    PICTURE.write_text(draw_picture(results))
    page = EXAMPLE / "README.md"
    page.write_text(replace_table(page.read_text(), results))
    print(draw_table(results))


if __name__ == "__main__":
    main()
