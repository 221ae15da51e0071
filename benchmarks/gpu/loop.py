"""Yields the seconds and the memory of a run of two updates, with a shared GPU or in turn."""

import re
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns
from statistics import median

from benchmarks.example import EXAMPLES, load_journal, train
from benchmarks.gpu.stage import Check, Row
from benchmarks.learn import Cell, write_project
from benchmarks.step import MemoryWatch

from ltrain_train.runs import Journal, make_plan
from ltrain_transforms.recipe import Recipe

UPDATES = 2
SWITCH = 3.0
"""Most seconds of an update in which vLLM and the learner change places."""
OVERHEAD = 3.0
"""GiB that a plan leaves free for CUDA and vLLM's graphs: docs/gpus.md."""


def rows(check: Check, colocate: str) -> Iterator[Row]:
    """Yield the updates, the median seconds of a wave by phase, and the most memory."""
    recipe, model = write_recipe(check, colocate)
    watch = MemoryWatch()
    watch.start()
    train(recipe, 0, check.folder, model, "--updates", str(UPDATES))
    watch.stop()
    journal = load_journal(check.folder / ".ltrain", Recipe.load(recipe))
    assert journal is not None
    waves = [wave for wave in journal.waves if wave.published is not None]
    yield Row("updates", len(waves), at_least=UPDATES)
    yield from phase_rows(check, journal, switches=colocate == "swap" and check.device == "cuda")
    seconds = sum(wave.seconds["train"] for wave in waves)
    yield Row("trained", sum(wave.tokens for wave in waves) / seconds, "tokens/s")
    if watch.peak_gib and (plan := planned_gib(recipe, model)):
        yield Row("memory", watch.peak_gib, "GiB")
        yield Row("memory by the plan", watch.peak_gib / plan, at_most=1.05)


def planned_gib(recipe: Path, model: Path) -> float | None:
    """Return the GPU memory that the plan of the run names; None without a GPU."""
    shares = make_plan(recipe, model=model, updates=UPDATES).shares
    if shares is None:
        return None
    learner = shares.learner_needs + shares.tokens * shares.token
    both = max(shares.vllm, learner) if shares.swap else shares.vllm + learner
    return both / (1 << 30) + OVERHEAD


def phase_rows(check: Check, journal: Journal, *, switches: bool) -> Iterator[Row]:
    """Yield the median seconds of each phase of the waves."""
    waves = [wave.seconds for wave in journal.waves if wave.published is not None]
    names = dict.fromkeys(name for seconds in waves for name in seconds)
    for name in names:
        values = [seconds[name] for seconds in waves if name in seconds]
        bar = check.bar(SWITCH) if name == "swap" else None
        yield Row(name, median(values), "s a wave", at_most=bar)
    if switches and "swap" not in names:
        yield Row("switches", 0, at_least=1, note="no wave has seconds of a switch")


def write_recipe(check: Check, colocate: str) -> tuple[Path, Path]:
    """Write the recipe of the run, and return it and its model: SmolLM2's, or the tiny one's."""
    folder = check.folder / "project"
    if check.quick:
        recipe, model = write_project(Cell("grpo", "sync"), folder), folder / "tiny"
    else:
        copytree(EXAMPLES / "text_to_sql", folder, ignore=ignore_patterns("__pycache__"))
        recipe, model = folder / "ltrain.toml", check.model
    text = recipe.read_text().replace('validation = "val.jsonl"\n', "")
    text = re.sub(r"tokens_per_micro_batch = .*\n", "", text) if check.device == "cuda" else text
    recipe.write_text(text.replace("[train]\n", f'[train]\ncolocate = "{colocate}"\n'))
    return recipe, model
