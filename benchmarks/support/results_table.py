"""The tables of the results of examples, which are a function of their files."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from setup.markdown import mark, replace_part, table

BEGIN = mark("results", "make bench-example")
COLUMNS = (
    *("example", "recipe", "tasks", "seeds", "before", "after"),
    *("difference, 95 %", "minutes", "machine"),
)
PHASES = ("generate", "settle", "build", "train", "load")
"""The parts of a wave's time."""

Result = Mapping[str, Any]
"""The contents of a `seedN.json`."""


def replace_tables(examples: Path) -> None:
    """Write the table of all examples, and that of each example that has results, in its page."""
    for page in find_pages(examples):
        page.write_text(replace_table(examples, page))


def find_pages(examples: Path) -> list[Path]:
    """Return the pages with a table of results."""
    pages = [examples / "README.md", *sorted(examples.glob("*/README.md"))]
    return [page for page in pages if BEGIN in page.read_text()]


def replace_table(examples: Path, page: Path) -> str:
    """Return the text of the page with the table of today's results between its marks."""
    folder = page.parent.name if page.parent != examples else "*"
    return replace_part(page.read_text(), BEGIN, draw_table(examples, folder))


def draw_table(examples: Path, folder: str = "*") -> str:
    """Return the table in Markdown: a row for each example, recipe, policy and domain.

    A score is the mean over the seeds, with the range if they differ. The difference is from the
    lowest bound of the seeds' intervals to the highest. The minutes are those of a run's waves.
    """
    runs: defaultdict[tuple[str, str], list[Result]] = defaultdict(list)
    for file in sorted(examples.glob(f"{folder}/results/**/seed*.json")):
        result = json.loads(file.read_text())
        runs[result["example"], result["recipe"]].append(result)
    # `ltrain.toml` before the recipes that are compared with it
    ordered = sorted(runs.items(), key=lambda run: (run[0][0], run[0][1] != "ltrain.toml", run[0]))
    rows = [row for _, results in ordered for row in _rows(results)]
    if folder != "*":  # the page is that of the example
        return table(COLUMNS[1:], [row[1:] for row in rows])
    return table(COLUMNS, rows)


def summarize_seeds(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return for each policy and domain the scores and intervals of all seeds."""
    return [
        {
            "policy": policy,
            "domain": domain,
            "tasks": figures["tasks"],
            **{
                key: [each["policies"][policy]["held_out"][domain][key] for each in results]
                for key in ("before", "after", "interval_95")
            },
        }
        for policy, first in results[0]["policies"].items()
        for domain, figures in first["held_out"].items()
        if domain != "versions"
    ]


def _rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    first = results[0]
    several = len(first["policies"]) > 1
    minutes = median(
        sum(seconds for phase, seconds in each["seconds"].items() if phase in PHASES)
        for each in results
    )
    return [
        (
            f"[{first['example']}]({first['example']})",
            first["recipe"],
            f"{row['tasks']} {row['policy'] + ' ' if several else ''}{row['domain']}",
            ", ".join(str(each["seed"]) for each in results),
            _spread(row["before"]),
            _spread(row["after"]),
            _interval(row["interval_95"]),
            f"{minutes / 60:.1f}",
            ", ".join(sorted({each["machine"] for each in results})),
        )
        for row in summarize_seeds(results)
    ]


def _spread(values: Sequence[float]) -> str:
    low, high = (f"{value:.2f}" for value in (min(values), max(values)))
    mean = f"{sum(values) / len(values):.2f}"
    return mean if low == high else f"{mean} ({low} to {high})"


def _interval(intervals: Sequence[Sequence[float] | None]) -> str:
    known = [each for each in intervals if each]  # none where all tasks changed equally
    if not known:
        return "none"
    low, high = min(each[0] for each in known), max(each[1] for each in known)
    return f"{low:+.2f} to {high:+.2f}"
