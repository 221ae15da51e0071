"""`make docs`: write Grafana's dashboards to `otel-config/`, from the panels in `setup/panels`.

A panel has a title, a kind and a query with the macros of Grafana's ClickHouse data source. Its
`columns` are the columns of the result, which a test checks.
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PANELS = Path(__file__).resolve().parent / "panels"
FOLDER = Path(__file__).resolve().parent.parent / "otel-config" / "grafana" / "dashboards"
PLUGIN = "grafana-clickhouse-datasource"
SOURCE = {"type": PLUGIN, "uid": "${datasource}"}
HALF, WHOLE, HEIGHT = 12, 24, 8
"""Grafana's grid has 24 columns."""
FORMATS = {"timeseries": 0, "trend": 1, "table": 1, "stat": 1, "traces": 3}
"""The data source's code for the format of a result, by kind of panel."""
NAMES = (
    "SELECT DISTINCT {column} AS name FROM {table} WHERE {column} != '' ORDER BY name LIMIT 1000"
)
VARIABLES = {
    "run": ("Run", NAMES.format(column="RunId", table="otel.spans", time="Timestamp"), True),
    "policy": (
        "Policy",
        NAMES.format(column="PolicyName", table="otel.spans", time="Timestamp"),
        True,
    ),
    "evaluation": (
        "Evaluation",
        NAMES.format(column="name", table="otel.rewards", time="judged"),
        False,
    ),
    "rollout": (
        "Rollout",
        "SELECT rollout FROM otel.rollouts WHERE $__timeFilter(closed) "
        "AND $__conditionalAll(run IN (${run:singlequote}), $run) "
        "GROUP BY rollout ORDER BY max(closed) DESC LIMIT 500",
        False,
    ),
}
"""Label, query, and whether several values may be selected (all of them by default)."""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    kind: str
    sql: str
    columns: list[str]
    unit: str = ""
    """The unit of every number."""
    units: dict[str, str] = field(default_factory=dict)
    """Units of single columns."""
    x: str = ""
    """The column of the x axis, if that is not time."""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str
    title: str
    about: str
    variables: list[str]
    panels: list[Panel]


def dashboards() -> list[Dashboard]:
    """Read the dashboards that `setup/panels` declares."""
    loaded = []
    for path in sorted(PANELS.glob("*.toml")):
        declared = tomllib.loads(path.read_text())
        panels = [Panel(**each) for each in declared.pop("panel")]
        loaded.append(Dashboard(name=path.stem, panels=panels, **declared))
    return loaded


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard in the format that Grafana imports."""
    return {
        "uid": f"ltrain-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["ltrain"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), *map(_variable, dashboard.variables)]},
        "panels": list(_placed(dashboard.panels)),
    }


def _placed(panels: list[Panel]) -> Iterator[dict[str, Any]]:
    x = y = 0
    for number, panel in enumerate(panels, 1):
        width = WHOLE if panel.wide else HALF
        if x + width > WHOLE:
            x, y = 0, y + HEIGHT
        yield _panel(panel, number) | {"gridPos": {"x": x, "y": y, "w": width, "h": HEIGHT}}
        x += width


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    options = {"xField": panel.x} if panel.x else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "targets": [_target(panel)],
        "options": options,
        "fieldConfig": {
            "defaults": {"unit": panel.unit} if panel.unit else {},
            "overrides": [_unit(column, unit) for column, unit in panel.units.items()],
        },
    }


def _target(panel: Panel) -> dict[str, Any]:
    return {
        "refId": "A",
        "datasource": SOURCE,
        "editorType": "sql",
        "queryType": panel.kind if panel.kind in ("timeseries", "traces") else "table",
        "format": FORMATS[panel.kind],
        "rawSql": panel.sql.strip(),
    }


def _unit(column: str, unit: str) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": column},
        "properties": [{"id": "unit", "value": unit}],
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Store", "type": "datasource", "query": PLUGIN}


def _variable(name: str) -> dict[str, Any]:
    label, query, multiple = VARIABLES[name]
    current = {"current": {"text": ["All"], "value": ["$__all"]}} if multiple else {}
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "multi": multiple,
        "includeAll": multiple,
        **current,
    }


def files() -> dict[str, str]:
    """Return the text of each dashboard, by the name of its file."""
    return {
        f"{each.name}.json": json.dumps(document(each), indent=2) + "\n" for each in dashboards()
    }


def main() -> None:
    for name, text in files().items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"otel-config/grafana/dashboards/{name}")


if __name__ == "__main__":
    main()
