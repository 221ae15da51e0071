"""`make docs`: write the pages of `docs/` that are generated from code.

`python -m setup.reference` writes them. With `--check` it only names those that are out of date,
with exit status 1.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from setup.api_page import api_lines
from setup.docstrings import name_docs
from setup.markdown import code, mark, page, replace_part, table
from setup.process_page import process_lines
from setup.recipe_page import recipe_lines

from ltrain.cli import app
from ltrain_collector import promoted_columns, schema, signals
from ltrain_instrument import attributes
from ltrain_instrument.instrumentors import LIBRARIES
from ltrain_instrument.settings import INSTRUMENTORS, SETTINGS
from ltrain_train import gateway
from ltrain_transforms import credit, exports, rewards
from ltrain_transforms.alarms import ALARMS
from ltrain_transforms.calls import membership, span_errors
from ltrain_transforms.datasets import pipeline
from ltrain_transforms.dialects import BY_PRECEDENCE
from ltrain_transforms.estimators import ESTIMATORS, STEP_ESTIMATORS, Estimator
from ltrain_transforms.recipe import REWARD_KINDS
from ltrain_transforms.samples import row_filters
from ltrain_transforms.source import trained_calls
from ltrain_transforms.tables import TABLES
from ltrain_transforms.traces import sender_roles

SHARED = 3
"""Commands that have an option with the same text, from which on the page tells it once."""
DOCS = Path(__file__).resolve().parent.parent / "docs"
REASONS = {
    "spans": pipeline.NOT_A_CALL
    | sender_roles.UNTRUSTED
    | membership.REASONS
    | span_errors.SPAN_REASONS,
    "calls": span_errors.ATTRIBUTE_REASONS | span_errors.DIALECT_REASONS,
    "states": span_errors.STATES_REASONS,
    "executions": trained_calls.REASONS,
    "rewards": rewards.REASONS,
    "groups": credit.REASONS,
    "rows": row_filters.REASONS | row_filters.UNCHOSEN,
    "exports": exports.REASONS,
}


def settings_page() -> str:
    lines = [
        "# Settings",
        "ltrain reads these environment variables. OpenTelemetry's own (`OTEL_*`) work as "
        "its documentation describes; the one that all processes of ltrain read is listed here.",
        table(
            ("variable", "default", "meaning"),
            ((f"`{each.name}`", code(each.default), each.doc) for each in SETTINGS),
        ),
    ]
    return page("ltrain_instrument/settings.py", lines)


def commands_page() -> str:
    commands = dict(commands_of(typer.main.get_command(app)))
    options = {name: _options(command) for name, command in commands.items()}
    shared = _shared_options(options.values())
    lines = [
        "# Commands",
        "Exit status: 0 for success, 1 for an error (the message has the value, the allowed values "
        "and a fix), 2 for wrong usage. `ltrain COMMAND -h` prints the text of this page, and "
        "`ltrain --version` the version. `ltrain --install-completion` lets the shell complete "
        "commands and options.",
        "## Options of several commands",
        "\n".join(sorted(shared.values())),
    ]
    for name, command in commands.items():
        paragraphs = [" ".join(part.split()) for part in command.help.split("\n\n")]
        lines += [f"## ltrain {name}", *(_example(part) for part in paragraphs)]
        own = {key: line for key, line in options[name].items() if shared.get(key) != line}
        others = ", ".join(key for key in options[name] if key not in own)
        above = [f"- {others}: [as above](#options-of-several-commands)."] if others else []
        lines.append("\n".join([*own.values(), *above]))
    return page("the help of the commands", lines)


def _shared_options(options: Iterable[dict[str, str]]) -> dict[str, str]:
    """Return the options that several commands have with the same text, by their names."""
    counts = Counter(item for each in options for item in each.items())
    return {
        name: line
        for (name, line), count in reversed(counts.most_common())
        if count >= SHARED and name.startswith("`--")
    }


def _options(command: Any) -> dict[str, str]:
    """Return the arguments and options of a command as list items, by their names."""
    context = typer.Context(command)
    records = [each.get_help_record(context) for each in command.params]
    return {
        code(name.split()[0]): f"- {code(name.replace(' range>', '>'))}: {text}"
        for name, text in filter(None, records)
    }


def commands_of(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command with the words that the user types, commands of groups included."""
    for name in sorted(group.commands):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def tables_page() -> str:
    lines = [
        "# Tables",
        "A dataset holds these tables, one folder of parquet files each. Times are nanoseconds "
        "since the epoch. All tables have the key `execution_id`.",
    ]
    for each in TABLES:
        rows = ((f"`{it.name}`", f"`{it.dtype}`", it.doc) for it in each.columns)
        lines += [f"## {each.name}", each.row, table(("column", "type", "meaning"), rows)]
    lines += [
        "## Reasons of drops",
        "Every input is in the lineage of an output, or in `drops` with one of these reasons.",
    ]
    reasons = (
        (stage, f"`{reason}`", text.replace("{}", "…"))
        for stage, texts in REASONS.items()
        for reason, text in texts.items()
    )
    lines.append(table(("stage", "reason", "meaning"), reasons))
    return page("ltrain_transforms/tables", lines)


def recipe_page() -> str:
    return page("ltrain_transforms/recipe", recipe_lines())


def attributes_page() -> str:
    docs = name_docs(attributes)
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
    for kind, selected in kinds.items():
        rows = ((f"`{constants[name]}`", docs[name]) for name in selected)
        lines += [f"## {kind}", table(("name", "meaning"), rows)]
    lines += [
        "## Columns of the store",
        "Views and tables of the store have a column for each of these attributes. The first "
        "attribute that is not empty counts: those of the span or log record come before those of "
        "its resource. A number that none of them names is 0.",
        table(
            ("column", "views", "read from", "meaning"), map(_promoted, promoted_columns.PROMOTED)
        ),
    ]
    return page("ltrain_instrument/attributes.py and ltrain_collector/promoted_columns.py", lines)


def _promoted(column: promoted_columns.PromotedColumn) -> tuple[str, str, str, str]:
    views = ", ".join(
        f"`{signals.TABLES[f'otel.otel_{signal}'].view}`" for signal in column.signals
    )
    sources = [f"`{name}`" for name in column.record]
    sources += [f"`{name}` of the resource" for name in column.resource]
    return f"`{column.name}`", views, ", ".join(sources), column.doc


def instrumentors_page() -> str:
    lines = [
        "# Instrumentors",
        "ltrain activates one instrumentor per library: the first in its list that is installed "
        "and supports the version of the library. "
        f"`{INSTRUMENTORS.name}=openai=openinference,mcp=none` selects others by the names below; "
        "`none` disables the library's instrumentors. Telemetry that is built into the library and "
        "on by default stays on: that of strands-agents, google-adk and mcp. "
        "`OTEL_PYTHON_DISABLED_INSTRUMENTATIONS` works as in OpenTelemetry. An "
        "instrumentor loads when the agent imports the library. An instrumentor "
        "that is not in this list loads at the start. `ltrain doctor` prints which ones are "
        "selected, which are not, and why.",
        "A library that needs an instrumentor and has none causes a warning when the agent imports "
        f"it. The client openai does not where {_recorders('openai')} is in use, whose "
        "instrumentor records the calls that it makes by the client. Calls that the agent's own "
        "code makes by the client then leave no spans: install its instrumentor for these.",
        "The gateway of ltrain records token ids; no instrumentor records all of what it does. "
        "Remarks on token ids below are for agents without the gateway.",
    ]
    lines.append(
        table(
            ("library", "loads with", "instrumentors, the preferred first (limitations)"),
            _libraries(),
        )
    )
    return page("ltrain_instrument/instrumentors/libraries.py", lines)


def _recorders(client: str) -> str:
    """Return the libraries that record their calls by a client, joined by `or`."""
    return " or ".join(each.name for each in LIBRARIES if client in each.records)


def _libraries() -> Iterator[tuple[str, str, str]]:
    for each in LIBRARIES:
        instrumentors = (
            f"{code(it.provider)}: {code(it.distribution)}{_limits(it.limitations)}"
            for it in each.instrumentors
        )
        imports = ", ".join(map(code, each.modules)) or "the process"
        yield each.name, imports, "<br>".join(instrumentors)


def _limits(limitations: str) -> str:
    return f" ({limitations.replace(' - ', ', ')})" if limitations not in ("", "-") else ""


def process_page() -> str:
    return page("ltrain_instrument/patches.py and instrumentors/libraries.py", process_lines())


def api_page() -> str:
    return page("the docstrings of `import ltrain`", api_lines())


def credit_page() -> str:
    head = ("estimator", "equation", "paper", "what it is for")
    registries: dict[str, Mapping[str, Estimator[Any]]] = {
        "outcome": ESTIMATORS,
        "step": STEP_ESTIMATORS,
    }
    return _filled(
        "credit.md",
        {
            f"{kind} estimators": table(
                head,
                ((code(name), it.equation, it.paper, it.use) for name, it in estimators.items()),
            )
            for kind, estimators in registries.items()
        },
    )


def dialects_page() -> str:
    head = ("module", "written by", "read from", "kinds", "messages", "tokens", "missing")
    rows = (
        (code(it.name), it.written_by, it.read_from, it.kinds, it.messages, it.tokens, it.missing)
        for it in BY_PRECEDENCE
    )
    return _filled("dialects.md", {"dialects": table(head, rows)})


def rules_page() -> str:
    rows = ((code(name), kind.__doc__ or "") for name, kind in REWARD_KINDS.items())
    return _filled("rules.md", {"kinds": table(("kind", "key and what it reads"), rows)})


def alarms_page() -> str:
    rows = ((code(name), it.looks_at, it.fires) for name, it in ALARMS.items())
    head = ("alarm", "looks at", "fires if")
    return _filled("alarms.md", {"alarms": table(head, rows)})


def requests_page() -> str:
    """Return the page with the treatment of each field of a request."""
    values = (
        (code(name), ", ".join(code(json.dumps(value)) for value in values))
        for name, values in gateway.NO_EFFECT.items()
    )
    return _filled(
        "requests.md",
        {
            "fields": _fields(gateway.SERVER_RULES),
            "completions": _fields(gateway.COMPLETION_RULES),
            "values": table(("field", "values"), values),
            "responses": _fields(gateway.RESPONSE_RULES),
            "messages": _fields(gateway.MESSAGE_RULES),
            "gemini": _fields(gateway.GEMINI_RULES),
        },
    )


def _fields(rules: Iterable[gateway.FieldRule]) -> str:
    rows = (
        (
            _names(it.fields),
            f"{it.treatment} in every mode" if it.everywhere else it.treatment,
            it.reason,
            code(it.allow) if it.allow else "",
        )
        for it in rules
    )
    made = table(("fields", "treatment", "why", "`allow`"), rows)
    return made.replace("`messages.content`", "parts of `messages` that are not text")


def collector_page() -> str:
    head = ("signal", "path of OTLP over HTTP", "service of OTLP over gRPC")
    rows = ((it.name, code(it.path), code(it.service)) for it in signals.SIGNALS)
    return _filled("collector.md", {"signals": table(head, rows)})


def store_page() -> str:
    """Return the page with the views and tables of the signals."""
    views, tables = [], []
    for each in signals.SIGNALS:
        views.append((_names(it.view for it in each.tables), each.doc))
        tables.append((_names(it.name for it in each.tables), _order(each.tables[0]), each.noun))
    return _filled(
        "store.md",
        {
            "views": table(("view", "one row is"), views),
            "tables": table(("table", "order", "what"), tables),
        },
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))


def _order(each: signals.Table) -> str:
    """Return the sorting key of a table, as its DDL declares it."""
    statements = (text for step in each.steps for text in schema.read_statements(step))
    [created] = (text for text in statements if f"CREATE TABLE IF NOT EXISTS {each.name} " in text)
    return code(created.partition("ORDER BY (")[2].partition(")")[0])


def _filled(name: str, tables: Mapping[str, str]) -> str:
    """Return a page with its generated tables, by the names in their marks."""
    text = (DOCS / name).read_text()
    for table_name, made in tables.items():
        text = replace_part(text, mark(table_name, "make docs"), made)
    return text


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "commands.md": commands_page,
    "tables.md": tables_page,
    "recipe.md": recipe_page,
    "attributes.md": attributes_page,
    "api.md": api_page,
    "alarms.md": alarms_page,
    "credit.md": credit_page,
    "dialects.md": dialects_page,
    "rules.md": rules_page,
    "collector.md": collector_page,
    "store.md": store_page,
    "requests.md": requests_page,
    "instrumentors.md": instrumentors_page,
    "process.md": process_page,
}


def stale_pages() -> list[str]:
    """Return the pages that differ from what the code generates."""
    paths = {name: DOCS / name for name in PAGES}
    return [
        name
        for name, path in paths.items()
        if not path.exists() or path.read_text() != PAGES[name]()
    ]


def _example(paragraph: str) -> str:
    """Return an example as a code block, and another paragraph as it is."""
    if not paragraph.startswith("Example: "):
        return paragraph
    return f"```bash\n{paragraph.removeprefix('Example: ')}\n```"


def main() -> None:
    stale = stale_pages()
    if "--check" in sys.argv[1:]:
        sys.exit(f"Out of date in docs/: {', '.join(stale)}. Run `make docs`." if stale else 0)
    for name in stale:
        (DOCS / name).write_text(PAGES[name]())
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
