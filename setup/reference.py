"""`make docs`: the pages of `docs/` that are made from code.

`python -m setup.reference` writes them; `--check` only says which are stale, with exit status 1.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from setup import recipe_page
from setup.docstrings import below_names
from setup.markdown import code, page, table

from ltrain.cli import app
from ltrain_instrument import attributes
from ltrain_instrument.instrumentors import LIBRARIES
from ltrain_instrument.settings import INSTRUMENTORS, SETTINGS
from ltrain_transforms import (
    breaks,
    credit,
    evaluations,
    exports,
    faults,
    membership,
    pipeline,
    rewards,
    roles,
    selection,
    unusable,
)
from ltrain_transforms.tables import TABLES

DOCS = Path(__file__).resolve().parent.parent / "docs"
REASONS = {
    "spans": pipeline.NOT_A_CALL | roles.UNTRUSTED | membership.REASONS | faults.REASONS,
    "calls": faults.ATTRIBUTES | faults.READERS,
    "states": faults.STATES,
    "executions": selection.REASONS,
    "rewards": evaluations.FAULTS | rewards.REASONS,
    "groups": credit.REASONS,
    "rows": unusable.REASONS,
    "exports": exports.REASONS,
}


def settings() -> str:
    lines = [
        "# Settings",
        "Settings are read from the environment. OpenTelemetry's own variables (`OTEL_*`) work as "
        "its documentation describes; this page repeats the one that ltrain's processes share.",
        table(
            ("variable", "default", "meaning"),
            ((f"`{each.name}`", code(each.default), each.doc) for each in SETTINGS),
        ),
    ]
    return page("ltrain_instrument/settings.py", lines)


def commands() -> str:
    group: Any = typer.main.get_command(app)
    lines = [
        "# Commands",
        "Exit status: 0 done, 1 failed (one sentence says what was given, what is allowed and what "
        "mends it), 2 wrong use. `ltrain COMMAND --help` says what this page says.",
    ]
    for name, command in commands_of(group):
        paragraphs = [" ".join(part.split()) for part in command.help.split("\n\n")]
        lines += [f"## ltrain {name}", *(_example(part) for part in paragraphs)]
        context = typer.Context(command)
        rows = [_parameter(each, context) for each in command.params if not each.hidden]
        lines.append(table(("argument", "type", "default", "what it says"), rows))
    return page("the commands' own help", lines)


def commands_of(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Give every command by what is typed for it, those of groups too."""
    for name in sorted(group.commands):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def tables() -> str:
    lines = [
        "# Tables",
        "What traces become, one parquet file a table. Times are nanoseconds since the epoch. "
        "`execution_id` is the key that the tables share.",
    ]
    for each in TABLES:
        rows = ((f"`{it.name}`", f"`{it.dtype}`", it.doc) for it in each.columns)
        lines += [f"## {each.name}", each.row, table(("column", "type", "a cell"), rows)]
    lines += ["## Reasons of drops", "Every input is in the lineage of an output, or here."]
    told = [(stage, why, text) for stage, texts in REASONS.items() for why, text in texts.items()]
    reasons = ((stage, f"`{why}`", text.replace("{}", "…")) for stage, why, text in told)
    lines.append(table(("stage", "reason", "what it means"), reasons))
    lines += ["## Why rows begin", "What `begins` of a sample says; [samples.md](samples.md)."]
    meant = below_names(breaks)
    why = ((f"`{each.value}`", meant[f"Begins.{each.name}"]) for each in breaks.Begins)
    lines.append(table(("begins", "what it means"), why))
    return page("ltrain_transforms/tables", lines)


def recipes() -> str:
    return page("ltrain_transforms/recipe", recipe_page.lines())


def names() -> str:
    meanings = below_names(attributes)
    constants = {name: value for name, value in vars(attributes).items() if name.isupper()}
    kinds = {
        "Attributes": [n for n in constants if not n.startswith(("SPAN_", "SCOPE_"))],
        "Spans": [n for n in constants if n.startswith("SPAN_")],
        "Tracers": [n for n in constants if n.startswith("SCOPE_")],
    }
    lines = [
        "# Attributes and spans",
        "The names that ltrain writes in addition to OpenTelemetry's own.",
    ]
    for kind, kind_names in kinds.items():
        rows = ((f"`{constants[name]}`", meanings[name]) for name in kind_names)
        lines += [f"## {kind}", table(("name", "meaning"), rows)]
    return page("ltrain_instrument/attributes.py", lines)


def instrumentors() -> str:
    lines = [
        "# Instrumentors",
        "Exactly one instrumentor per library is active: the first in its list that is installed "
        "and supports the library's version. "
        f"`{INSTRUMENTORS.name}=openai=openinference,mcp=none` (library=provider) selects others "
        "by the names below; `none` switches a library's instrumentation off. "
        "`OTEL_PYTHON_DISABLED_INSTRUMENTATIONS` works as OpenTelemetry documents it.",
        "An instrumentor loads when the agent imports the library. An instrumentor that is not in "
        "this list loads when the process starts. `ltrain doctor` shows which ones are selected "
        "here, which are not, and why.",
        "No instrumentor records token ids as ltrain's gateway does; the notes on token ids apply "
        "without the gateway.",
    ]
    for each in LIBRARIES:
        imports = ", ".join(f"`{name}`" for name in each.modules)
        trigger = f"Loads with {imports}." if imports else "Loads when the process starts."
        rows = (
            (code(it.provider), code(it.distribution), it.limitations.replace(" - ", ", "))
            for it in each.instrumentors
        )
        head = ("provider", "distribution", "limitations")
        lines += [f"## {each.name}", trigger, table(head, rows)]
    return page("ltrain_instrument/instrumentors.py", lines)


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings,
    "commands.md": commands,
    "tables.md": tables,
    "recipe.md": recipes,
    "attributes.md": names,
    "instrumentors.md": instrumentors,
}


def stale() -> list[str]:
    """Give the pages that do not say what the code says."""
    there = {name: DOCS / name for name in PAGES}
    return [
        name
        for name, path in there.items()
        if not path.exists() or path.read_text() != PAGES[name]()
    ]


def _example(paragraph: str) -> str:
    """Put an example into a block of its own, as it is typed."""
    if not paragraph.startswith("Example: "):
        return paragraph
    return f"```\n{paragraph.removeprefix('Example: ')}\n```"


def _parameter(each: Any, context: typer.Context) -> tuple[str, str, str, str]:
    names = [*each.opts, *each.secondary_opts]
    shown = ", ".join(f"`{name}`" for name in names)
    default = "required" if each.required else _value(each.default)
    return (
        shown,
        str(each.display_type(context)).strip("<>"),
        default,
        " ".join((each.help or "").split()),
    )


def _value(value: object) -> str:
    if value is None or callable(value) or value in ("", (), False):
        return ""
    return code(str(getattr(value, "value", value)))


def main() -> None:
    old = stale()
    if "--check" in sys.argv[1:]:
        sys.exit(f"Stale in docs/: {', '.join(old)}. `make docs` mends it." if old else 0)
    for name in old:
        (DOCS / name).write_text(PAGES[name]())
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
