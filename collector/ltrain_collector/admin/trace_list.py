"""`ltrain traces`: print the rollouts and traces of a store, and their totals."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from ltrain_collector.admin.trace_filter import TraceFilter
from ltrain_collector.admin.trace_query import Line, Totals, read_lines, read_totals
from ltrain_collector.store import Store
from ltrain_instrument.machine import visible
from ltrain_instrument.quantity import quantity

ID_CHARACTERS = 12
"""Characters of an id in the table; `ltrain show` finds it by its beginning."""


def list_traces(
    store: Store,
    selection: TraceFilter,
    limit: int,
    as_json: bool,
    unread: Sequence[str] = (),
) -> None:
    """Print the newest rollouts and traces, their totals, and the next commands.

    Args:
        unread: sentences on spans that no reader knows.
    """
    lines, totals = read_lines(store, selection, limit), read_totals(store, selection)
    if as_json:
        traces = [asdict(line) for line in lines]
        for trace in traces:
            del trace["latest"]  # it is a position in a list of pages
        report = {"traces": traces, "totals": asdict(totals), "unread": list(unread)}
        print(json.dumps(report, indent=2, default=str))
        return
    if lines:
        # a trace can contain rich's markup, which must stay text
        Console(markup=False, emoji=False).print(_table(lines))
    print("\n".join([*unread, *_advice(lines, totals, selection)]))


def _table(lines: list[Line]) -> Table:
    """Return a table of the columns that have a value in some line; it fits into 80 columns."""
    rows = [list(map(visible, _cells(line))) for line in lines]
    filled = [any(column) for column in zip(*rows, strict=True)]
    table = Table(box=None, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for name, used in zip(HEADINGS, filled, strict=True):
        if used:
            table.add_column(
                name,
                justify="right" if name in NUMBERS else "left",
                no_wrap=name in NUMBERS or name in ("started", "id", "session"),
                overflow="fold",
            )
    for row in rows:
        table.add_row(*(cell for cell, used in zip(row, filled, strict=True) if used))
    return table


NUMBERS = ("llm", "tools", "tokens", "err", "s")
HEADINGS = ("started", "id", "session", "run", "mode", "agents", *NUMBERS, "reward")


def _cells(line: Line) -> tuple[str, ...]:
    return (
        f"{line.started:%m-%d %H:%M:%S}",
        line.id[:ID_CHARACTERS],
        line.session[:ID_CHARACTERS],
        line.run,
        line.mode,
        ", ".join(line.agents),
        str(line.llm_calls),
        *(str(number or "") for number in (line.tool_calls, line.tokens, line.errors)),
        f"{line.seconds:.2f}",
        _rewards(line.rewards),
    )


def _rewards(values: dict[str, str]) -> str:
    """Return the first reward and the number of the others, which `ltrain show` lists."""
    if not values:
        return ""
    name = "reward" if "reward" in values else next(iter(values))
    others = f" +{len(values) - 1}" if len(values) > 1 else ""
    return f"{name} {values[name]}{others}"


def _advice(lines: list[Line], totals: Totals, selection: TraceFilter) -> list[str]:
    """Return the totals and the next commands, or how to get what is missing."""
    if not lines and not totals.others and selection != TraceFilter():
        return ["No trace matches these options; `ltrain traces` without options lists all."]
    if not lines and not totals.others:
        return [
            "No traces yet. Start the store and run your agent with it:",
            "  ltrain up",
            "  opentelemetry-instrument python agent.py",
        ]
    summary = (
        f"{totals.units} rollouts and traces, {quantity(totals.sessions, 'session')}; "
        f"{quantity(totals.llm_calls, 'LLM call')} of {quantity(len(totals.models), 'model')} "
        f"with {quantity(totals.tokens, 'token')}; {quantity(totals.tool_calls, 'tool call')} "
        f"({', '.join(totals.tools) or 'no names'}); {quantity(totals.errors, 'error')}."
    )
    if not totals.units:
        return [
            f"{quantity(totals.others, 'trace')}, none with an LLM call (--all lists them): "
            "`ltrain doctor` in the agent's environment says which instrumentation is missing."
        ]
    others = (
        f"Not listed: {quantity(totals.others, 'trace')} without an LLM call (--all lists all)."
    )
    return [
        visible(summary),
        *([others] if totals.others and not selection.without_calls else []),
        f"Next: ltrain show {lines[0].id[:ID_CHARACTERS]}",
        "      ltrain init   # writes a recipe for these traces",
    ]
