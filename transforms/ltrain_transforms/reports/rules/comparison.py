"""The rewards of a wave by a recipe, beside the rewards by the recipe that trained on the wave."""

from dataclasses import astuple
from pathlib import Path

from pydantic import ValidationError

from ltrain_collector.store import Store
from ltrain_instrument.quantity import quantity
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.reports.difference import recipe_differences
from ltrain_transforms.reports.references import Kind, Reference, WaveReference
from ltrain_transforms.reports.report import Cell, Facts, Grid, Report
from ltrain_transforms.reports.rules.report import RulesReport, report_rules
from ltrain_transforms.reports.wave import wave_datasets
from ltrain_transforms.source import Selection

COLUMNS = (
    *("rule", "looks at", "seen", "fired", "executions", "total", "mean", "correlation"),
    *("left out", "gives nothing because", "examples"),
)


def rules_comparison(
    store: Store, home: Path, recipe: Recipe, recipe_label: str, wave: WaveReference
) -> Report:
    """Return the report on the rewards of a recipe, and of each that trained on the wave.

    Raises:
        NothingToBuild: when the recipe's source selects no execution of the wave.
    """
    selection = Selection(run=wave.run, mode=wave.mode, wave=wave.wave)
    label = f"{recipe_label}, digest {recipe.digest}"
    parts: list[Facts | Grid] = [
        Facts("Wave", (("wave", wave), ("run", Reference(Kind.RUN, wave.run)))),
        _grid(label, report_rules(store, recipe, selection)),
    ]
    for dataset in wave_datasets(home, wave):
        title = f"the recipe of dataset {dataset.id}"
        recorded = dataset.manifest["recipe"]
        now = recipe.model_dump(mode="json", by_alias=True)
        differences = tuple(recipe_differences(recorded, now))
        keys = ("key", "trained", "now")
        try:
            trained = Recipe.model_validate(recorded)
        except ValidationError as error:  # an older version of ltrain wrote it
            parts.append(Facts(title, (("error", str(error).splitlines()[0]),)))
            continue
        parts.append(_grid(title, report_rules(store, trained, selection)))
        parts.append(Grid(f"Keys that differ from {title}", keys, differences))
    return Report(f"rules on {wave} of run {wave.run}", "", tuple(parts), {})


def _grid(title: str, report: RulesReport) -> Grid:
    rows: list[tuple[Cell, ...]] = []
    for row in report.rules:
        *cells, names, silent = astuple(row)
        examples = tuple(Reference(Kind.ROLLOUT, name, name[:12]) for name in names)
        rows.append((*cells, silent, examples))
    counts = f"{quantity(report.executions, 'execution')}, {report.judged} judged"
    return Grid(f"{title}: {counts}", COLUMNS, tuple(rows))
